# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A file for each block, opened, moved in one call and closed: what a cache over a file system does at its simplest.

Direct I/O unless ``direct=0``; then puts end in the page cache, and gets of a block that was moved before come out of
it. The oldest files are removed as further ones are put.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from kvstore.bench.content import Buffers, whole_pages
from kvstore.bench.engines.base import Op, Work
from kvstore.bench.engines.folder import Folder, FolderEngine, direct_io
from kvstore.bench.engines.threaded import ThreadedEngine

__all__ = ["FilePerKeyEngine"]


class FilePerKeyEngine(FolderEngine, ThreadedEngine):
    """A thread for each block in flight."""

    name = "file-per-key"
    operations = frozenset({"get", "put", "lookup"})
    option_help: ClassVar[Mapping[str, str]] = {"direct": "1: O_DIRECT; 0: through the page cache"}

    def open(self, work: Work) -> None:
        self.work = work
        self.direct = os.O_DIRECT if direct_io(work) else 0
        self.folder = Folder(work)
        self.start_threads(work)

    def _path(self, number: int) -> Path:
        return self.path / f"block-{number}"

    def move(self, op: Op, number: int, buffers: Buffers, row: int) -> bool:
        if op == "lookup":
            return self._path(number).exists()
        return self._get(number, buffers, row) if op == "get" else self._put(number, buffers, row)

    def _get(self, number: int, buffers: Buffers, row: int) -> bool:
        nbytes = self.work.bytes_of(number)
        try:
            fd = os.open(self._path(number), os.O_RDONLY | self.direct)
        except FileNotFoundError:
            return False
        try:
            moved = os.readv(fd, [buffers.view(row, whole_pages(nbytes))])
        finally:
            os.close(fd)
        if moved != nbytes:
            raise RuntimeError(f"get of {nbytes} bytes moved {moved}")
        return True

    def _put(self, number: int, buffers: Buffers, row: int) -> bool:
        nbytes = self.work.bytes_of(number)
        moving = whole_pages(nbytes) if self.direct else nbytes
        fd = os.open(self._path(number), os.O_WRONLY | os.O_CREAT | self.direct, 0o600)
        try:
            moved = os.writev(fd, [buffers.view(row, moving)])
            if moved != moving:
                raise RuntimeError(f"put of {moving} bytes moved {moved}")
            if moving != nbytes:
                os.ftruncate(fd, nbytes)
        finally:
            os.close(fd)
        if number >= self.work.kept:
            self._path(number - self.work.kept).unlink(missing_ok=True)
        return True

    def close(self) -> None:
        self.stop_threads()
        super().close()

    def facts(self) -> dict[str, Any]:
        return {"path": "O_DIRECT" if self.direct else "page cache, empty after filling"}
