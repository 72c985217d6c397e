# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""RocksDB with blob files (``rocksdict``): blocks lie in files beside its tree, which compaction leaves alone.

Set up for large values: no log, no compression, direct reads, flush and compaction. A batch of puts is one write batch
into memory, which RocksDB's threads write out; a batch of gets is one multi-get. Python's binding copies each value
twice. What was deleted is given back by compaction only, so a long run of puts needs more than its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

from kvstore.bench.content import Buffers
from kvstore.bench.engines.base import Op, Work, key_of
from kvstore.bench.engines.folder import Folder, FolderEngine

__all__ = ["RocksDbEngine"]

MIB = 1 << 20


class RocksDbEngine(FolderEngine):
    """One database, which all threads share."""

    name = "rocksdb"

    def __init__(self) -> None:
        self.db: Any = None

    def why_not(self) -> str | None:
        return (
            None if find_spec("rocksdict") else "rocksdict is missing: pip install 'nvme-kvstore[bench]' or rocksdict"
        )

    def open(self, work: Work) -> None:
        self.work = work
        self.folder = Folder(work)
        self._open_db()

    def _open_db(self) -> None:
        rocks = import_module("rocksdict")
        options = rocks.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(rocks.DBCompressionType.none())
        options.set_use_direct_reads(True)
        options.set_use_direct_io_for_flush_and_compaction(True)
        options.set_enable_blob_files(True)
        options.set_enable_blob_gc(True)
        options.set_min_blob_size(1)
        options.set_blob_file_size(256 * MIB)
        options.set_write_buffer_size(min(max(16 * self.work.row_bytes, 64 * MIB), 256 * MIB))
        options.increase_parallelism(2)
        self.db = rocks.Rdict(str(self.path / "db"), options)
        writing = rocks.WriteOptions()
        writing.disable_wal = True
        self.db.set_write_options(writing)

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        if op == "put":
            self._put(numbers, buffers)
            return None
        values = self.db.get([key_of(number) for number in numbers])
        for row, (number, value) in enumerate(zip(numbers, values, strict=True)):
            if value is None:
                continue
            nbytes = self.work.bytes_of(number)
            if len(value) != nbytes:
                raise RuntimeError(f"block {number} has {len(value)} bytes, not {nbytes}")
            np.copyto(buffers.rows[row][:nbytes], np.frombuffer(value, np.uint8))
        return [value is not None for value in values]

    def _put(self, numbers: Sequence[int], buffers: Buffers) -> None:
        together = import_module("rocksdict").WriteBatch(raw_mode=True)
        for row, number in enumerate(numbers):
            together.put(key_of(number), buffers.view(row, self.work.bytes_of(number)).tobytes())
            if number >= self.work.kept:
                together.delete(key_of(number - self.work.kept))
        self.db.write(together)

    def flush(self) -> None:
        self.db.flush(True)

    def forget(self) -> None:
        """Open again: nothing is got from the memory that was written to, nor from what its threads cached."""
        self.db.close()
        self._open_db()

    def close(self) -> None:
        if self.db is not None:
            self.db.close()
            self.db = None
        super().close()

    def facts(self) -> dict[str, Any]:
        return {"version": f"rocksdict {version('rocksdict')}", "path": "blob files, direct I/O, no log"}
