# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Region LRU that also empties regions in which next to nothing is used any more.

What region LRU loses against LRU of single blocks it loses to regions that one hot block keeps while the others are
long dead. Here, as a log-structured file system cleans segments (Rosenblum and Ousterhout, "The design and
implementation of a log-structured file system", SOSP 1991), the hot blocks of such a region are written again and the
region is reclaimed, as long as that stays within a budget of writes.

A block is hot when it was used within the last .85 capacities of blocks put; whatever region LRU keeps beyond that is
old. That share, and the budget, are the only settings; they are the same for every trace and size.
"""

from __future__ import annotations

from kvstore.replay.policies.regions import RegionLru
from kvstore.replay.trace import Request, Trace

__all__ = ["RegionClean"]

_HOT_CAPACITIES = 0.85
_BUDGET = 0.05  # of what is put; so write amplification is at most 1.05
_HOT_SHARE_MAX = 0.5  # of a region that is cleaned: more would free too little
_CANDIDATES = 32


class RegionClean(RegionLru):
    """Cleans the best of a few regions, in turn, when the one used longest ago is still young."""

    name = "region-clean"
    about = "by region: LRU that writes hot blocks of nearly dead regions again, 5 % of writes at most"

    def __init__(self, capacity_blocks: int, trace: Trace, blocks_per_region: int) -> None:
        super().__init__(capacity_blocks, trace, blocks_per_region)
        self._hot_puts = int(_HOT_CAPACITIES * capacity_blocks)
        self._used_at: dict[int, int] = {}  # of each resident block, in blocks put
        self._region_used_at: dict[int, int] = {}
        self._in_turn: list[int] = []  # all regions, from which candidates are taken round and round
        self._turn = 0

    def serve(self, request: Request, run: int, keep: int) -> None:
        super().serve(request, run, keep)
        # What was put without being copied: the base class knows no times.
        for block in request.blocks[:keep]:
            if block in self._region_of:
                self._used_at[block] = self.blocks_put

    def touch(self, block: int) -> None:
        super().touch(block)
        self._used_at[block] = self._region_used_at[self._region_of[block]] = self.blocks_put

    def append(self, block: int) -> None:
        super().append(block)
        if self._open not in self._region_used_at:
            self._in_turn.append(self._open)
        self._region_used_at[self._open] = self.blocks_put
        self._used_at.setdefault(block, self.blocks_put)

    def victim(self) -> int:
        oldest = super().victim()
        hot_since = self.blocks_put - self._hot_puts
        if self._region_used_at[oldest] <= hot_since:
            return oldest
        best, hot_min = oldest, int(_HOT_SHARE_MAX * self.blocks_per_region) + 1
        hot_min = min(hot_min, int(_BUDGET * self.blocks_put) - self.blocks_copied + 1)
        for _ in range(min(_CANDIDATES, len(self._in_turn))):
            self._turn = (self._turn + 1) % len(self._in_turn)
            region = self._in_turn[self._turn]
            hot = sum(self._used_at[block] > hot_since for block in self._regions[region])
            if region != self._open and hot < hot_min:
                best, hot_min = region, hot
        return best

    def reclaim(self, victim: int) -> None:
        hot_since = self.blocks_put - self._hot_puts
        cleaned = victim != super().victim()
        blocks = self._regions[victim]
        super().reclaim(victim)
        del self._region_used_at[victim]
        self._in_turn.remove(victim)
        for block in blocks:
            used_at = self._used_at.pop(block)
            if cleaned and used_at > hot_since:
                self.append(block)
                self._used_at[block] = used_at
                self.blocks_copied += 1
