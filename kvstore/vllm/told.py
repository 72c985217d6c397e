# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""ToldKeys: blocks that all workers say they stored, and that the scheduler's own index need not have yet.

In shared mode a put is a hit at once in the process that made it; in the others only when its descriptor is on the
device and they have read that, 50 ms and more later. The scheduler is one of the others. But it is a worker that loads
what the scheduler finds, so the workers' word is enough, and what they stored is a hit as soon as they have said so.

A key is told for a while only: by then the index knows of it, or it was evicted. One that is told and gone is a load
that fails, and its block is computed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from kvstore.vllm.timed import TimedKeys

TOLD_S = 10.0


class ToldKeys:
    """What the workers said they stored, less what one of them said it did not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._told = TimedKeys(TOLD_S, clock)
        # A worker may say so long before the last one has done its part, with which the job is complete.
        self._not_stored = TimedKeys(TOLD_S, clock)

    def __contains__(self, key: bytes) -> bool:
        return key in self._told

    def __len__(self) -> int:
        return len(self._told)

    def not_stored(self, keys: Iterable[bytes]) -> None:
        """A worker did not store its part of these, whatever the others did."""
        for key in keys:
            self._told.discard(key)
            self._not_stored.add([key])

    def complete(self, keys: Iterable[bytes]) -> None:
        """Every worker is done with a job that was to store these."""
        self._told.add(key for key in keys if key not in self._not_stored)

    def discard(self, key: bytes) -> None:
        """The index has it, or a worker did not find it."""
        self._told.discard(key)

    def clear(self) -> None:
        """The workers store under another epoch from now on."""
        self._told.clear()
        self._not_stored.clear()
