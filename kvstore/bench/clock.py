# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""JobClock: the time of a job that counts, which is when at least one of its threads is inside the engine.

Bandwidth is bytes over this time. The mean of what each thread spent inside would not do: while one thread checks what
it got, another has the device for itself, and its shorter call would count as if both had been served that fast.
"""

from __future__ import annotations

import threading
import time

__all__ = ["JobClock"]


class JobClock:
    """Runs while anybody is inside. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._entered = 0.0  # when the first of those inside did
        self._seconds = 0.0  # until then

    @property
    def seconds(self) -> float:
        """What it shows."""
        with self._lock:
            return self._at(time.perf_counter())

    def enter(self, now: float) -> float:
        """A thread goes inside, at this ``perf_counter``; what the clock shows then."""
        with self._lock:
            if self._inside == 0:
                self._entered = now
            self._inside += 1
            return self._at(now)

    def leave(self, now: float) -> float:
        """It comes out again; what the clock shows then."""
        with self._lock:
            shown = self._at(now)
            self._inside -= 1
            if self._inside == 0:
                self._seconds = shown
            return shown

    def advance(self, seconds: float) -> None:
        """Time that was measured elsewhere, while nobody was inside."""
        with self._lock:
            self._seconds += seconds

    def _at(self, now: float) -> float:
        return self._seconds + (max(now - self._entered, 0.0) if self._inside else 0.0)
