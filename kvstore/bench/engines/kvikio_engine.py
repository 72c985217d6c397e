# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""kvikio on host memory: its thread pool moves the pieces of a batch, with a future for each block.

Blocks lie in one file as ``FlatFile`` says. kvikio asks CUDA's driver whose memory it is given, so it needs a
libcuda.so.1 for host memory too; one that finds no GPU will do (tests/fakes/stub_libcuda.cpp). Reads into GPU memory
are compared by scripts/gpu-check.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from kvstore.bench.content import Buffers, whole_pages
from kvstore.bench.engines.base import Op, Work
from kvstore.bench.engines.flat import FlatEngine, FlatFile

__all__ = ["KvikioEngine"]


class KvikioEngine(FlatEngine):
    """One file or device."""

    name = "kvikio"

    def __init__(self) -> None:
        self.handle: Any = None

    def why_not(self) -> str | None:
        if find_spec("kvikio") is None:
            return "kvikio is missing: pip install 'nvme-kvstore[gpu]'"
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            return f"kvikio needs a driver, and so a GPU: {error}"
        return None

    def open(self, work: Work) -> None:
        kvikio = import_module("kvikio")
        self.work = work
        self.file = FlatFile(work)
        import_module("kvikio.defaults").set({"num_threads": work.iodepth * work.numjobs})
        self.handle = kvikio.CuFile(str(self.file.path), "r+")

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        assert self.file is not None
        sizes = [whole_pages(self.work.bytes_of(number)) for number in numbers]
        call = self.handle.pread if op == "get" else self.handle.pwrite
        futures = [
            call(buffers.rows[row][:nbytes], file_offset=self.file.offset(number))
            for row, (number, nbytes) in enumerate(zip(numbers, sizes, strict=True))
        ]
        for nbytes, moved in zip(sizes, _all(futures), strict=True):
            if moved != nbytes:
                raise RuntimeError(f"{op} of {nbytes} bytes moved {moved}")
        return None

    def close(self) -> None:
        if self.handle is not None:
            self.handle.close()
            self.handle = None
        super().close()

    def facts(self) -> dict[str, Any]:
        return {"version": import_module("kvikio").__version__, "path": "kvikio's threads, host memory"}


def _all(futures: Sequence[Any]) -> list[int]:
    """What each moved; a failure is told when none of the others writes to the caller's rows any more."""
    moved: list[int] = []
    failures: list[Exception] = []
    for future in futures:
        try:
            moved.append(future.get())
        except Exception as error:  # noqa: BLE001 - told below, whatever it is
            failures.append(error)
    if failures:
        raise failures[0]
    return moved
