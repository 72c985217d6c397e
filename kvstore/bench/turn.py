# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Turn: so many seconds or blocks of one engine, which its threads share, and how far they are. Thread-safe."""

from __future__ import annotations

import math
import threading
import time

from kvstore.bench.clock import JobClock

__all__ = ["Turn"]


class Turn:
    """When the threads of a contender have to stop, and how far they are."""

    def __init__(self, seconds: float | None, blocks: int | None, clock: JobClock | None = None) -> None:
        self.begun = time.perf_counter()
        self.seconds, self.blocks = seconds, blocks
        self.clock = clock or JobClock()
        self._clock_began_s = self.clock.seconds
        self.stopped = threading.Event()
        self.failure: BaseException | None = None
        self.taken = 0
        self.moved_bytes = 0
        self._lock = threading.Lock()

    def take(self, count: int) -> int:
        """How many blocks a thread may move now, ``count`` at most; 0: it is over.

        A turn moves one batch at least, also on a machine that is so busy that it is over when its threads begin.
        """
        late = self.seconds is not None and time.perf_counter() - self.begun >= self.seconds
        with self._lock:
            if (late and self.taken) or self.stopped.is_set():
                return 0
            taken = count if self.blocks is None else min(count, self.blocks - self.taken)
            self.taken += taken
            return taken

    def moved(self, nbytes: int) -> None:
        """For whoever watches."""
        with self._lock:
            self.moved_bytes += nbytes

    def fail(self, error: BaseException) -> None:
        """End it for all threads; the first failure is the one that is told."""
        with self._lock:
            self.failure = self.failure or error
        self.stopped.set()

    @property
    def left_s(self) -> float:
        """Seconds until it is over by time."""
        return math.inf if self.seconds is None else self.begun + self.seconds - time.perf_counter()

    @property
    def bytes_per_s(self) -> float:
        """How fast it is so far, in time that counts."""
        return self.moved_bytes / max(self.clock.seconds - self._clock_began_s, 1e-9)

    @property
    def fraction(self) -> float:
        """How much of it is over, 0 to 1."""
        by_time = (time.perf_counter() - self.begun) / self.seconds if self.seconds else 0.0
        by_blocks = self.taken / self.blocks if self.blocks else 0.0
        return min(max(by_time, by_blocks), 1.0)
