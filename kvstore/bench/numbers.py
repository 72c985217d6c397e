# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Which blocks are put and which are got, by number.

Puts count up. Gets choose among the newest ``live`` blocks that are all there: none that somebody is just putting, and
none so old that a put may be overwriting it. So a get that brings another block is the engine's fault, whatever the
threads do at once; a put waits where it would overtake a slow get by more than ``slack``. It waits for engines' calls
only: whoever has numbers gives them back before.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["Choices", "Numbers"]

_CHUNK = 4096


class Numbers:
    """The numbers of one store. Safe from many threads.

    Parameters
    ----------
    live : blocks that gets choose from, once so many were put.
    slack : how many more an engine must keep: those being put, and those put while a get runs.
    """

    def __init__(self, live: int, slack: int) -> None:
        self.live = live
        self.kept = live + slack
        self.next = 0
        self._putting: list[int] = []
        self._getting: list[int] = []
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def putting(self, count: int, give_back: Callable[[], bool] = lambda: False) -> Iterator[range]:
        """Numbers for ``count`` blocks, which are there when this ends.

        Parameters
        ----------
        give_back : called where a put has to wait: ends something that the caller itself has begun to get or put, and
            says whether there was any.
        """
        wait, first = False, None
        while first is None:
            first = self._take(count, wait)
            wait = first is None and not give_back()
        try:
            yield range(first, first + count)
        finally:
            with self._changed:
                self._putting.remove(first)
                self._changed.notify_all()

    def _take(self, count: int, wait: bool) -> int | None:
        """The first of so many numbers; None: there is no room for them."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._has_room(count))
            elif not self._has_room(count):
                return None
            first, self.next = self.next, self.next + count
            self._putting.append(first)
            return first

    @contextlib.contextmanager
    def getting(self) -> Iterator[range]:
        """Those that may be got, and stay until this ends."""
        with self._changed:
            high = min(self._putting, default=self.next)
            # Where one put is slow, others may be far ahead of it, and over what would be the oldest.
            low = max(high - self.live, self.next - self.kept, 0)
            self._getting.append(low)
        try:
            yield range(low, high)
        finally:
            with self._changed:
                self._getting.remove(low)
                self._changed.notify_all()

    def _has_room(self, count: int) -> bool:
        return self.next + count - self.kept <= self._oldest_needed()

    def _oldest_needed(self) -> int:
        """What no put may overwrite: what is being got, what is being put, and one block before that to get."""
        return min([*self._getting, *(first - 1 for first in self._putting)], default=self.next)


class Choices:
    """Draws among ``live`` blocks: all alike, or by Zipf's law with the popular ones scattered. For one thread."""

    def __init__(self, live: int, distribution: tuple[str, float], seed: int, worker: int, loop: int = 0) -> None:
        kind, theta = distribution
        self._draw = np.random.default_rng([seed, worker, loop])
        self._live = live
        self._cumulative: npt.NDArray[np.float64] | None = None
        if kind == "zipf":
            weights = np.arange(1, live + 1, dtype=np.float64) ** -theta
            self._cumulative = np.cumsum(weights / weights.sum())
            # The same blocks are popular with every thread.
            self._place = np.random.default_rng(seed).permutation(live)
        self._chunk: list[int] = []

    def among(self, there: range, count: int) -> list[int]:
        """``count`` numbers out of those that are there; the same one may come twice."""
        while len(self._chunk) < count:
            self._chunk.extend(self._places())
        chosen, self._chunk = self._chunk[:count], self._chunk[count:]
        return [self._number(there, place) for place in chosen]

    def percent(self) -> float:
        """A draw from 0 to 100."""
        return float(self._draw.random() * 100)

    def _number(self, there: range, place: int) -> int:
        """The block in a place: of all that are equal modulo ``live`` the one that is there. It stays there while it
        lives, however many are put, or no block would stay popular.
        """
        number = there.start + (place - there.start) % self._live
        # The store is not filled yet, or the newest are just being put.
        return number if number < there.stop else there.start + place % len(there)

    def _places(self) -> list[int]:
        if self._cumulative is None:
            places: list[int] = self._draw.integers(0, self._live, _CHUNK).tolist()
            return places
        ranks = np.minimum(np.searchsorted(self._cumulative, self._draw.random(_CHUNK)), self._live - 1)
        popular: list[int] = self._place[ranks].tolist()
        return popular
