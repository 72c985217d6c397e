# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""ARC: two LRU queues, used once and used more often, whose share follows the misses.

Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003, figure 4.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from kvstore.replay.policies.base import BlockPolicy
from kvstore.replay.trace import Trace

__all__ = ["Arc"]


class Arc(BlockPolicy):
    """T1 and T2 are resident, B1 and B2 remember what left them."""

    name = "arc"
    about = "block-wise ARC"

    def __init__(self, capacity_blocks: int, trace: Trace, blocks_per_region: int) -> None:
        super().__init__(capacity_blocks, trace, blocks_per_region)
        self._queue_of: dict[int, OrderedDict[int, None]] = {}  # of every resident block
        self._once: OrderedDict[int, None] = OrderedDict()
        self._often: OrderedDict[int, None] = OrderedDict()
        self._once_ghosts: OrderedDict[int, None] = OrderedDict()
        self._often_ghosts: OrderedDict[int, None] = OrderedDict()
        self._once_target = 0.0

    @property
    def resident(self) -> Collection[int]:
        return self._queue_of

    def touch(self, block: int) -> None:
        del self._queue_of[block][block]
        self._add(self._often, block)

    def insert(self, block: int) -> None:
        capacity = self.capacity_blocks
        once_ghosts, often_ghosts = self._once_ghosts, self._often_ghosts
        if block in once_ghosts:
            step = max(len(often_ghosts) / len(once_ghosts), 1)
            self._once_target = min(self._once_target + step, capacity)
            self._replace(in_often_ghosts=False)
            del once_ghosts[block]
            self._add(self._often, block)
        elif block in often_ghosts:
            step = max(len(once_ghosts) / len(often_ghosts), 1)
            self._once_target = max(self._once_target - step, 0)
            self._replace(in_often_ghosts=True)
            del often_ghosts[block]
            self._add(self._often, block)
        else:
            self._make_room()
            self._add(self._once, block)

    def _make_room(self) -> None:
        capacity = self.capacity_blocks
        if len(self._once) + len(self._once_ghosts) == capacity:
            if len(self._once) < capacity:
                self._once_ghosts.popitem(last=False)
                self._replace(in_often_ghosts=False)
            else:
                del self._queue_of[self._once.popitem(last=False)[0]]
            return
        known = len(self._queue_of) + len(self._once_ghosts) + len(self._often_ghosts)
        if known >= capacity:
            if known == 2 * capacity:
                self._often_ghosts.popitem(last=False)
            self._replace(in_often_ghosts=False)

    def _replace(self, *, in_often_ghosts: bool) -> None:
        if len(self._queue_of) < self.capacity_blocks:
            return
        once = len(self._once)
        from_once = once > 0 and (once > self._once_target or (in_often_ghosts and once == self._once_target))
        queue, ghosts = (self._once, self._once_ghosts) if from_once else (self._often, self._often_ghosts)
        if not queue:
            queue, ghosts = self._once, self._once_ghosts
        block, _ = queue.popitem(last=False)
        del self._queue_of[block]
        ghosts[block] = None

    def _add(self, queue: OrderedDict[int, None], block: int) -> None:
        queue[block] = None
        self._queue_of[block] = queue
