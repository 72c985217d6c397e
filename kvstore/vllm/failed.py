# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""FailedKeys: blocks whose load failed, which are misses for a while although the index may have them.

vLLM asks again for a key whose load failed, and a tier that says hit again is asked to load it again, for ever. A block
that did not verify leaves the index by itself; one that the device cannot read now does not.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

MISS_S = 60.0
_KEYS_MAX = 65_536


class FailedKeys:
    """Keys that are misses until their time is over, or until they are stored again. Bounded: the oldest go first.

    Parameters
    ----------
    clock : seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, keys: Iterable[bytes]) -> None:
        """From now on these are misses."""
        until = self._clock() + MISS_S
        for key in keys:
            self._until[key] = until
            self._until.move_to_end(key)
        while len(self._until) > _KEYS_MAX:
            self._until.popitem(last=False)

    def discard(self, key: bytes) -> None:
        """It was stored again."""
        self._until.pop(key, None)

    def __contains__(self, key: bytes) -> bool:
        until = self._until.get(key)
        if until is None:
            return False
        if self._clock() < until:
            return True
        del self._until[key]
        return False
