# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The bound: keeps what is asked for soonest, and writes nothing that it would not keep.

Belady, "A study of replacement algorithms for a virtual-storage computer", 1966, with bypass. Of blocks that are next
asked for by the same request the head is worth more, because of a chain only the leading run is usable.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection

from kvstore.replay.policies.base import Policy
from kvstore.replay.trace import Request, Trace

__all__ = ["Optimal"]

_NEVER = float("inf")


class Optimal(Policy):
    """Belady's choice with bypass: knows the whole trace."""

    name = "opt"
    about = "the bound: knows the future (Belady, with bypass)"

    def __init__(self, capacity_blocks: int, trace: Trace, blocks_per_region: int) -> None:
        super().__init__(capacity_blocks, trace, blocks_per_region)
        latest: dict[int, int] = {}
        self._next_uses: list[list[float]] = []  # of each block of each request: the request that asks next
        for number in range(len(trace.requests) - 1, -1, -1):
            blocks = trace.requests[number].blocks
            self._next_uses.append([latest.get(block, _NEVER) for block in blocks])
            latest.update(dict.fromkeys(blocks, number))
        self._next_uses.reverse()
        self._number = 0
        self._resident: dict[int, tuple[float, int]] = {}
        self._worst: list[tuple[float, int, int]] = []  # a heap; entries that _resident does not confirm are old

    @property
    def resident(self) -> Collection[int]:
        return self._resident

    def serve(self, request: Request, run: int, keep: int) -> None:
        resident = self._resident
        added: set[int] = set()
        for depth, (block, next_use) in enumerate(zip(request.blocks, self._next_uses[self._number], strict=True)):
            if block not in resident:
                if depth >= keep or next_use == _NEVER:
                    continue
                added.add(block)
            resident[block] = (next_use, depth)
            heapq.heappush(self._worst, (-next_use, -depth, block))
        self._number += 1
        while len(resident) > self.capacity_blocks:
            next_use, depth, block = heapq.heappop(self._worst)
            if resident.get(block) == (-next_use, -depth):
                del resident[block]
                added.discard(block)
        self.blocks_put += len(added)
