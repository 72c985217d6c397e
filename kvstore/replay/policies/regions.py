# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Policies that reuse whole regions, as the store does: FIFO, LRU, and FIFO with a second chance.

Blocks are written in the order of their chain into the one open region. When it is full and no region is free, a
victim loses all its blocks at once. A copy of the store's own choice, with the regions that it keeps free, is in
store.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import ClassVar

from kvstore.pool import ReclaimOrder
from kvstore.replay.policies.base import Policy
from kvstore.replay.trace import Request, Trace

__all__ = ["RegionFifo", "RegionLru", "RegionSecondChance"]


class RegionFifo(Policy):
    """The region filled first goes."""

    name = "region-fifo"
    about = "by region: the one filled first goes first"
    by_region = True
    reclaim_order: ClassVar[ReclaimOrder] = "fifo"

    def __init__(self, capacity_blocks: int, trace: Trace, blocks_per_region: int) -> None:
        super().__init__(capacity_blocks, trace, blocks_per_region)
        self.region_count = max(capacity_blocks // blocks_per_region, 1)
        self._region_of: dict[int, int] = {}
        self._regions: OrderedDict[int, list[int]] = OrderedDict()  # the next victim first
        self._open = -1  # the region that is filled
        self._regions_opened = 0

    @property
    def resident(self) -> Collection[int]:
        return self._region_of

    def serve(self, request: Request, run: int, keep: int) -> None:
        missing = [block for block in request.blocks[:keep] if block not in self._region_of]
        for block in reversed(request.blocks):
            if block in self._region_of:
                self.touch(block)
        for block in missing:
            self.append(block)
            self.blocks_put += 1

    def touch(self, block: int) -> None:
        """A resident block is used."""

    def append(self, block: int) -> None:
        """Write a block to the open region, and open one for it if need be."""
        region = self._regions.get(self._open)
        while region is None or len(region) == min(self.blocks_per_region, self.capacity_blocks):
            self._open_region()
            region = self._regions[self._open]
        region.append(block)
        self._region_of[block] = self._open

    def _open_region(self) -> None:
        if len(self._regions) >= self.region_count:
            self.reclaim(self.victim())
        # What reclaiming wrote may have opened one that has room.
        if len(self._regions) < self.region_count:
            self._open = self._regions_opened
            self._regions_opened += 1
            self._regions[self._open] = []

    def victim(self) -> int:
        """Which region goes next."""
        return next(iter(self._regions))

    def reclaim(self, victim: int) -> None:
        """A region becomes free, and what lived there misses."""
        for block in self._regions.pop(victim):
            if self._region_of.get(block) == victim:
                del self._region_of[block]


class RegionLru(RegionFifo):
    """The region used longest ago goes."""

    name = "region-lru"
    about = "by region: the one used longest ago goes first, tails of chains touched first"
    reclaim_order: ClassVar[ReclaimOrder] = "lru"

    def touch(self, block: int) -> None:
        self._regions.move_to_end(self._region_of[block])

    def append(self, block: int) -> None:
        super().append(block)
        self._regions.move_to_end(self._open)


class RegionSecondChance(RegionFifo):
    """The region filled first goes, but blocks of it that were used are written again first."""

    name = "region-second-chance"
    about = "by region: FIFO that writes again what was used"

    def __init__(self, capacity_blocks: int, trace: Trace, blocks_per_region: int) -> None:
        super().__init__(capacity_blocks, trace, blocks_per_region)
        self._used: set[int] = set()

    def touch(self, block: int) -> None:
        self._used.add(block)

    def reclaim(self, victim: int) -> None:
        used = [block for block in self._regions[victim] if block in self._used]
        super().reclaim(victim)
        self._used.difference_update(used)
        for block in used:
            self.append(block)
            self.blocks_copied += 1
