# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Policies of one queue of blocks: FIFO, LRU, CLOCK."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from kvstore.replay.policies.base import BlockPolicy
from kvstore.replay.trace import Trace

__all__ = ["Clock", "Fifo", "Lru"]


class Fifo(BlockPolicy):
    """The oldest goes."""

    name = "fifo"
    about = "block-wise: what was written first goes first"

    def __init__(self, capacity_blocks: int, trace: Trace, blocks_per_region: int) -> None:
        super().__init__(capacity_blocks, trace, blocks_per_region)
        self._queue: OrderedDict[int, bool] = OrderedDict()

    @property
    def resident(self) -> Collection[int]:
        return self._queue

    def touch(self, block: int) -> None:
        pass

    def insert(self, block: int) -> None:
        if len(self._queue) >= self.capacity_blocks:
            self._queue.popitem(last=False)
        self._queue[block] = False


class Lru(Fifo):
    """The one unused for longest goes."""

    name = "lru"
    about = "block-wise: what was used longest ago goes first, tails before their heads"

    def touch(self, block: int) -> None:
        self._queue.move_to_end(block)


class Clock(Fifo):
    """FIFO in which a block that was used since it was last looked at goes to the end instead."""

    name = "clock"
    about = "block-wise FIFO with a second chance for what was used"

    def touch(self, block: int) -> None:
        self._queue[block] = True

    def insert(self, block: int) -> None:
        queue = self._queue
        if len(queue) >= self.capacity_blocks:
            # Ends: each turn clears a mark.
            while True:
                oldest, used = queue.popitem(last=False)
                if not used:
                    break
                queue[oldest] = False
        queue[block] = False
