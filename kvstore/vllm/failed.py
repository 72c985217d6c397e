# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""FailedKeys: blocks whose load failed, which are misses for a while although the index may have them.

vLLM asks again for a key whose load failed, and a tier that says hit again is asked to load it again, for ever. A block
that did not verify leaves the index by itself; one that the device cannot read now does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kvstore.vllm.timed import TimedKeys

MISS_S = 60.0


class FailedKeys(TimedKeys):
    """Keys that are misses until their time is over, or until they are stored again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(MISS_S, clock)
