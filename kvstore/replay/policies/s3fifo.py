# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""S3-FIFO: three queues, the first of which sorts out what is never used again.

Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023, algorithm 1: the small queue has a tenth of
the blocks, the ghost queue remembers as many as the main queue holds, uses count up to three.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from kvstore.replay.policies.base import BlockPolicy
from kvstore.replay.trace import Trace

__all__ = ["S3Fifo"]

_SMALL_SHARE = 10
_USES_MAX = 3


class S3Fifo(BlockPolicy):
    """Small, main and ghost queue."""

    name = "s3fifo"
    about = "block-wise S3-FIFO"

    def __init__(self, capacity_blocks: int, trace: Trace, blocks_per_region: int) -> None:
        super().__init__(capacity_blocks, trace, blocks_per_region)
        self._small_blocks = max(capacity_blocks // _SMALL_SHARE, 1)
        self._uses: dict[int, int] = {}  # of every resident block
        self._small: OrderedDict[int, None] = OrderedDict()
        self._main: OrderedDict[int, None] = OrderedDict()
        self._ghost: OrderedDict[int, None] = OrderedDict()

    @property
    def resident(self) -> Collection[int]:
        return self._uses

    def touch(self, block: int) -> None:
        self._uses[block] = min(self._uses[block] + 1, _USES_MAX)

    def insert(self, block: int) -> None:
        while len(self._uses) >= self.capacity_blocks:
            if len(self._small) >= self._small_blocks or not self._main:
                self._evict_from_small()
            else:
                self._evict_from_main()
        if self._ghost.pop(block, False) is None:
            self._main[block] = None
        else:
            self._small[block] = None
        self._uses[block] = 0

    def _evict_from_small(self) -> None:
        block, _ = self._small.popitem(last=False)
        if self._uses[block] > 1:
            self._main[block] = None
            self._uses[block] = 0
            return
        del self._uses[block]
        self._ghost[block] = None
        if len(self._ghost) > self.capacity_blocks - self._small_blocks:
            self._ghost.popitem(last=False)

    def _evict_from_main(self) -> None:
        while True:
            block, _ = self._main.popitem(last=False)
            if self._uses[block] == 0:
                del self._uses[block]
                return
            self._uses[block] -= 1
            self._main[block] = None
