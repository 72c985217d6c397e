# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""LMDB: blocks are values in its memory map; a get is a copy out of the page cache, and there is no direct I/O.

A batch of puts is one transaction without a flush (``sync=False``); gets copy in a thread for each block in flight,
since each page fault waits for the device. The oldest blocks are deleted as further ones are put.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from kvstore.bench.content import Buffers
from kvstore.bench.engines.base import Op, Work, key_of
from kvstore.bench.engines.folder import Folder, FolderEngine, forget_cached
from kvstore.bench.engines.threaded import ThreadedEngine

__all__ = ["LmdbEngine"]


class LmdbEngine(FolderEngine, ThreadedEngine):
    """One environment, one database."""

    name = "lmdb"
    operations = frozenset({"get", "put", "lookup"})

    def __init__(self) -> None:
        self.env: Any = None

    def why_not(self) -> str | None:
        return None if find_spec("lmdb") else "LMDB is missing: pip install 'nvme-kvstore[bench]' or lmdb"

    def open(self, work: Work) -> None:
        self.work = work
        self.folder = Folder(work)
        self._open_env()
        self.start_threads(work)

    def _open_env(self) -> None:
        self.env = import_module("lmdb").open(
            str(self.path),
            map_size=2 * self.work.size_bytes + (64 << 20),  # large values want runs of free pages
            sync=False,
            metasync=False,
            max_readers=2 * self.work.iodepth * self.work.numjobs + 8,
        )

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        if op != "put":
            return super().batch(op, numbers, buffers)
        with self.env.begin(write=True) as transaction:
            for row, number in enumerate(numbers):
                transaction.put(key_of(number), buffers.view(row, self.work.bytes_of(number)))
                if number >= self.work.kept:
                    transaction.delete(key_of(number - self.work.kept))
        return None

    def move(self, op: Op, number: int, buffers: Buffers, row: int) -> bool:
        with self.env.begin(buffers=True) as transaction:
            value = transaction.get(key_of(number))
            if value is None or op == "lookup":
                return value is not None
            nbytes = self.work.bytes_of(number)
            if len(value) != nbytes:
                raise RuntimeError(f"block {number} has {len(value)} bytes, not {nbytes}")
            np.copyto(buffers.rows[row][:nbytes], np.frombuffer(value, np.uint8))  # other threads may run meanwhile
        return True

    def flush(self) -> None:
        self.env.sync(True)

    def forget(self) -> None:
        self.env.close()  # pages that are mapped stay in memory
        self.env = None
        forget_cached(self.path)
        self._open_env()

    def close(self) -> None:
        self.stop_threads()
        if self.env is not None:
            self.env.close()
            self.env = None
        super().close()

    def facts(self) -> dict[str, Any]:
        lmdb = import_module("lmdb")
        return {
            "version": f"{lmdb.__version__} of {'.'.join(map(str, lmdb.version()))}",
            "path": "memory map, page cache empty after filling; no flush in a put",
        }
