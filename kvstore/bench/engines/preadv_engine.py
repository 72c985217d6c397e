# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""``os.preadv`` and ``os.pwritev`` with O_DIRECT, a thread for each block in flight: what needs no library at all.

Blocks lie one after another, each at a multiple of the largest; a number lies where its remainder by the count of
places says. Nothing is verified, nothing indexed, nothing survives.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kvstore.bench.content import Buffers
from kvstore.bench.engines.base import Engine, Op, Work
from kvstore.bench.places import grow, usable_bytes

__all__ = ["PreadvEngine"]


class PreadvEngine(Engine):
    """One path, opened once."""

    name = "preadv"

    def __init__(self) -> None:
        self.fd = -1
        self.threads: ThreadPoolExecutor | None = None

    def open(self, work: Work) -> None:
        self.work = work
        path = Path(work.paths[0])
        grow(path, work.size_bytes)
        self.places = usable_bytes(path, work.size_bytes) // work.row_bytes
        if self.places < work.population:
            raise RuntimeError(f"{path} has room for {self.places} blocks, not for {work.population}")
        self.fd = os.open(path, os.O_RDWR | os.O_DIRECT)
        if work.iodepth > 1:
            self.threads = ThreadPoolExecutor(work.iodepth * work.numjobs)

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        if self.threads is None:
            self._move(op, 0, numbers[0], buffers)
        else:
            list(self.threads.map(lambda row: self._move(op, row, numbers[row], buffers), range(len(numbers))))
        return None

    def _move(self, op: Op, row: int, number: int, buffers: Buffers) -> None:
        nbytes = -(-self.work.bytes_of(number) // 4096) * 4096  # O_DIRECT moves whole pages
        offset = number % self.places * self.work.row_bytes
        call = os.preadv if op == "get" else os.pwritev
        moved = call(self.fd, [buffers.view(row, nbytes)], offset)
        if moved != nbytes:
            raise RuntimeError(f"{op} of {nbytes} bytes at {offset} moved {moved}")

    def flush(self) -> None:
        os.fdatasync(self.fd)

    def close(self) -> None:
        if self.threads is not None:
            self.threads.shutdown()
            self.threads = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def facts(self) -> dict[str, Any]:
        return {"path": f"preadv O_DIRECT, {self.work.iodepth} threads"}
