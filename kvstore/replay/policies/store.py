# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the store itself does (csrc/store/catalog_regions.cpp), in terms of replay.

Region LRU, and of it what decides hits: an engine matches the prefix, reads that run, and puts what follows it; the
store touches the run from its tail on and what it finds present from the head on; a few regions are kept free, so that
puts need not wait for reclaim, and hold nothing. A copy, which runs none of the store's code:
tests/python/test_replay_store.py holds it against the store.
"""

from __future__ import annotations

from typing import ClassVar

from kvstore.pool import ReclaimOrder
from kvstore.replay.policies.regions import RegionLru
from kvstore.replay.trace import Request, Trace

__all__ = ["StoreDefault", "StoreFifo"]

FREE_REGIONS_TARGET = 2
_REGIONS_PER_FREE_ONE = 8


class StoreDefault(RegionLru):
    """The store with its default options."""

    name = "store"
    about = "what this store does: region LRU with two regions kept free"

    def __init__(self, capacity_blocks: int, trace: Trace, blocks_per_region: int) -> None:
        super().__init__(capacity_blocks, trace, blocks_per_region)
        # Free while no put waits: reclaim runs when a region was opened, not when it is needed.
        free = min(FREE_REGIONS_TARGET, max(self.region_count // _REGIONS_PER_FREE_ONE, 1))
        self._regions_kept = max(self.region_count - free, 1)

    def serve(self, request: Request, run: int, keep: int) -> None:
        blocks = request.blocks
        for block in reversed(blocks[:run]):
            self.touch(block)
        missing = []
        for block in blocks[run:keep]:
            if block in self._region_of:
                self.touch(block)
            else:
                missing.append(block)
        for block in missing:
            self.append(block)
            self.blocks_put += 1

    def _open_region(self) -> None:
        self._open = self._regions_opened
        self._regions_opened += 1
        self._regions[self._open] = []
        while len(self._regions) > self._regions_kept:
            self.reclaim(self.victim())


class StoreFifo(StoreDefault):
    """The store opened with ``reclaim_order="fifo"``."""

    name = "store-fifo"
    about = 'this store with reclaim_order="fifo": the region written longest ago goes first'
    reclaim_order: ClassVar[ReclaimOrder] = "fifo"

    def touch(self, block: int) -> None:
        """Uses do not count."""
