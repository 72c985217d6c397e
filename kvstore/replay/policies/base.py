# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The one interface of all policies of replay: what a cache keeps, request by request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import ClassVar

from kvstore.pool import ReclaimOrder
from kvstore.replay.trace import Request, Trace

__all__ = ["BlockPolicy", "Policy"]


class Policy(ABC):
    """A cache of ``capacity_blocks`` equal blocks.

    Parameters
    ----------
    capacity_blocks : how many it may hold, 1 or more.
    trace : what will be replayed. Only a bound may look at it.
    blocks_per_region : unit of reuse of policies that work on regions.
    """

    name: ClassVar[str]
    #: What the policy is, in half a line.
    about: ClassVar[str]
    #: Whether it reuses whole regions; the others evict single blocks, which a drive pays for by copying inside.
    by_region: ClassVar[bool] = False
    #: The store's own order of reclaim that does the same, or comes closest: a run against the store uses it.
    reclaim_order: ClassVar[ReclaimOrder] = "lru"

    def __init__(self, capacity_blocks: int, trace: Trace, blocks_per_region: int) -> None:
        self.capacity_blocks = capacity_blocks
        self.blocks_per_region = blocks_per_region
        #: Blocks that callers put and that were written.
        self.blocks_put = 0
        #: Blocks that the policy wrote once more to keep them.
        self.blocks_copied = 0

    @property
    @abstractmethod
    def resident(self) -> Collection[int]:
        """The blocks that are hits now. Membership is what counts: ``block in policy.resident``."""

    @abstractmethod
    def serve(self, request: Request, run: int, keep: int) -> None:
        """One request: its leading ``run`` blocks were read, those missing of its first ``keep`` are put.

        A chain is touched from its tail to its head, so that the head is the youngest.
        """


class BlockPolicy(Policy):
    """A policy that decides block by block. Walks each request from its tail to its head."""

    def serve(self, request: Request, run: int, keep: int) -> None:
        resident = self.resident
        blocks = request.blocks
        for index in range(len(blocks) - 1, -1, -1):
            block = blocks[index]
            if block in resident:
                self.touch(block)
            elif index < keep:
                self.insert(block)
                self.blocks_put += 1

    @abstractmethod
    def touch(self, block: int) -> None:
        """A resident block is used."""

    @abstractmethod
    def insert(self, block: int) -> None:
        """A block that is not resident is written; what must go for it, goes."""
