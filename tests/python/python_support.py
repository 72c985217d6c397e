# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the Python tests share beside fixtures: sizes, seeded bytes, memory at chosen addresses."""

from __future__ import annotations

import ctypes
import mmap
import random
import time
from collections.abc import Callable
from typing import TypeVar

from kvstore.errors import EngineError

Answer = TypeVar("Answer")

MIB = 1 << 20
PAGE = 4096
POOL = {"size": 192 * MIB, "region_bytes": 4 * MIB, "min_block_bytes": 4096}
IDENTITY = {"engine": "test", "model": "none", "dtype": "uint8", "tp_size": 1}


def random_bytes(nbytes: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(nbytes)


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 10) -> None:
    """Poll for what other threads or processes bring about; fails, rather than goes on, when they do not."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not after {timeout_s} s"
        time.sleep(0.001)


def patiently(call: Callable[[], Answer], timeout_s: float) -> Answer:
    """The value of the first call that a metadata engine answers."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except EngineError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


PROT_NONE = 0  # mmap has no name for it


class Arena:
    """Memory at chosen addresses: pages, and behind them one that faults when it is touched."""

    def __init__(self, pages: int) -> None:
        self._map = mmap.mmap(-1, (pages + 1) * PAGE)
        self._anchor = ctypes.c_char.from_buffer(self._map)
        self.base = ctypes.addressof(self._anchor)
        self.nbytes = pages * PAGE
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._protect(PROT_NONE)

    def _protect(self, protection: int) -> None:
        guard = ctypes.c_void_p(self.base + self.nbytes)
        if self._libc.mprotect(guard, ctypes.c_size_t(PAGE), protection) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    def at(self, offset: int, nbytes: int) -> memoryview:
        """Writable bytes from ``offset`` on, as a ctypes view (format '<B'), the kind LMCache hands out."""
        assert offset + nbytes <= self.nbytes
        return memoryview((ctypes.c_ubyte * nbytes).from_address(self.base + offset))

    def before_guard(self, nbytes: int) -> memoryview:
        """The last ``nbytes`` before the page that faults."""
        return self.at(self.nbytes - nbytes, nbytes)

    def fill(self, byte: int) -> None:
        ctypes.memset(self.base, byte, self.nbytes)

    def close(self) -> None:
        if self._map.closed:
            return
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)
        del self._anchor
        self._map.close()
