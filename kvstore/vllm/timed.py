# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""TimedKeys: keys of which something is known that holds for a while only. Bounded: the oldest are forgotten first."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

_KEYS_MAX = 65_536


class TimedKeys:
    """Keys, each until its time is over.

    Parameters
    ----------
    seconds : how long a key is in it.
    clock : seconds, monotonic.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, keys: Iterable[bytes]) -> None:
        """Their time begins, or begins anew."""
        until = self._clock() + self._seconds
        for key in keys:
            self._until[key] = until
            self._until.move_to_end(key)
        while len(self._until) > _KEYS_MAX:
            self._until.popitem(last=False)

    def discard(self, key: bytes) -> None:
        """It does not hold any more."""
        self._until.pop(key, None)

    def clear(self) -> None:
        """Nor for any of them."""
        self._until.clear()

    def __contains__(self, key: bytes) -> bool:
        until = self._until.get(key)
        if until is None:
            return False
        if self._clock() < until:
            return True
        del self._until[key]
        return False
