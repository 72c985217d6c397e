# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""ChainTable: which block comes before which, learnt from the order of keys in lookups.

LMCache hands a lookup its keys in token order but a store only the keys that were written, in any order. A chunk's
hash covers every token before it, so its place in the chain is a property of the hash alone: what one lookup taught
holds for every rank, group, salt and later store. Positions are hints for the store's reclaim, never for correctness.

Bounded: the positions used longest ago are forgotten. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

Digest = TypeVar("Digest", bound=Hashable)


class Position(NamedTuple, Generic[Digest]):
    """Where a block stands: the digest before it (None at the start) and how many blocks precede it."""

    parent: Digest | None
    depth: int


class ChainTable(Generic[Digest]):
    """Chain positions by chunk hash.

    Parameters
    ----------
    entries_max : how many positions are remembered.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._positions: OrderedDict[Digest, Position[Digest]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._positions)

    def learn(self, digests: Sequence[Digest]) -> None:
        """Record that these blocks follow each other.

        Parameters
        ----------
        digests : in token order. The first one keeps the position it is known by: a caller that has the start of a
            chain elsewhere asks only for the rest.
        """
        if not digests:
            return
        with self._lock:
            known = self._positions.get(digests[0])
            parent, depth = known if known is not None else (None, 0)
            for digest in digests:
                self._positions[digest] = Position(parent, depth)
                self._positions.move_to_end(digest)
                parent, depth = digest, depth + 1
            while len(self._positions) > self._entries_max:
                self._positions.popitem(last=False)

    def position(self, digest: Digest) -> Position[Digest]:
        """Return where this block stands; the start of a chain of its own when nothing is known."""
        with self._lock:
            return self._positions.get(digest) or Position(None, 0)
