# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""io_uring from Python, through PyPI's ``liburing``: a ring for each worker, a batch submitted in one call.

The binding takes ``bytes`` and ``bytearray`` only, and always the whole of one. So blocks go through bytearrays whose
contents begin at a page's border, for direct I/O, and are copied once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

from kvstore.bench.content import PAGE_BYTES, Buffers, whole_pages
from kvstore.bench.engines.base import Op, Work
from kvstore.bench.engines.flat import FlatEngine, FlatFile

__all__ = ["LiburingEngine"]


class _RingBuffers(Buffers):
    """Rows, and the ring that moves them."""

    def __init__(self, count: int, row_bytes: int) -> None:
        super().__init__(count, row_bytes)
        self.memory = {(row, row_bytes): _aligned(row_bytes) for row in range(count)}
        liburing = import_module("liburing")
        self.ring, self.completion = liburing.Ring(), liburing.Cqe()
        liburing.io_uring_queue_init(max(count, 1), self.ring)

    def memory_of(self, row: int, nbytes: int) -> bytearray:
        """What a block of this size goes through on its way to the row."""
        if (row, nbytes) not in self.memory:
            self.memory[row, nbytes] = _aligned(nbytes)
        return self.memory[row, nbytes]


class LiburingEngine(FlatEngine):
    """One file or device."""

    name = "liburing"

    def __init__(self) -> None:
        self.rings: list[Any] = []

    def why_not(self) -> str | None:
        if find_spec("liburing") is None:
            return "liburing is missing: pip install 'nvme-kvstore[bench]' or liburing"
        liburing = import_module("liburing")
        ring = liburing.Ring()
        try:
            liburing.io_uring_queue_init(1, ring)
        except OSError as error:
            return f"io_uring is not allowed here ({error}): sysctl kernel.io_uring_disabled=0"
        liburing.io_uring_queue_exit(ring)
        return None

    def open(self, work: Work) -> None:
        self.work = work
        self.file = FlatFile(work)

    def buffers(self) -> Buffers:
        buffers = _RingBuffers(self.work.iodepth, self.work.row_bytes)
        self.rings.append(buffers.ring)
        return buffers

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        assert self.file is not None
        assert isinstance(buffers, _RingBuffers)
        liburing = import_module("liburing")
        sizes = [whole_pages(self.work.bytes_of(number)) for number in numbers]
        for row, (number, nbytes) in enumerate(zip(numbers, sizes, strict=True)):
            memory = buffers.memory_of(row, nbytes)
            if op == "put":
                np.copyto(np.frombuffer(memory, np.uint8), buffers.rows[row][:nbytes])
            entry = liburing.io_uring_get_sqe(buffers.ring)
            prepare = liburing.io_uring_prep_read if op == "get" else liburing.io_uring_prep_write
            prepare(entry, self.file.fd, memory, self.file.offset(number))
            entry.user_data = row + 1
        liburing.io_uring_submit_and_wait(buffers.ring, len(numbers))
        for _ in numbers:
            liburing.io_uring_wait_cqe(buffers.ring, buffers.completion)
            done = buffers.completion[0]
            row, moved = done.user_data - 1, done.res
            liburing.io_uring_cqe_seen(buffers.ring, done)
            if moved != sizes[row]:
                raise RuntimeError(f"{op} of {sizes[row]} bytes moved {moved}")
            if op == "get":
                moved_to = np.frombuffer(buffers.memory_of(row, sizes[row]), np.uint8)
                np.copyto(buffers.rows[row][: sizes[row]], moved_to)
        return None

    def close(self) -> None:
        while self.rings:
            import_module("liburing").io_uring_queue_exit(self.rings.pop())
        super().close()

    def facts(self) -> dict[str, Any]:
        return {"version": f"liburing {version('liburing')}", "path": "io_uring, O_DIRECT, no fixed buffers"}


def _aligned(nbytes: int) -> bytearray:
    """Zeros on a page's border: a bytearray from which the bytes before the border were deleted, which moves its begin
    and not its contents.
    """
    memory = bytearray(nbytes + PAGE_BYTES)
    before = -_address(memory) % PAGE_BYTES
    del memory[:before]
    del memory[nbytes:]
    if _address(memory) % PAGE_BYTES or len(memory) != nbytes:
        raise RuntimeError("this Python moves a bytearray when it is cut")
    return memory


def _address(memory: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
