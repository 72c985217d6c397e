# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""``os.preadv`` and ``os.pwritev`` with O_DIRECT, a thread for each block in flight: what needs no library at all.

Nothing is verified, nothing indexed, nothing survives.
"""

from __future__ import annotations

import os
from typing import Any

from kvstore.bench.content import Buffers, whole_pages
from kvstore.bench.engines.base import Op, Work
from kvstore.bench.engines.flat import FlatEngine, FlatFile
from kvstore.bench.engines.threaded import ThreadedEngine

__all__ = ["PreadvEngine"]


class PreadvEngine(FlatEngine, ThreadedEngine):
    """One path, opened once."""

    name = "preadv"

    def open(self, work: Work) -> None:
        self.work = work
        self.file = FlatFile(work)
        self.start_threads(work)

    def move(self, op: Op, number: int, buffers: Buffers, row: int) -> bool:
        assert self.file is not None
        nbytes = whole_pages(self.work.bytes_of(number))
        offset = self.file.offset(number)
        call = os.preadv if op == "get" else os.pwritev
        moved = call(self.file.fd, [buffers.view(row, nbytes)], offset)
        if moved != nbytes:
            raise RuntimeError(f"{op} of {nbytes} bytes at {offset} moved {moved}")
        return True

    def close(self) -> None:
        self.stop_threads()
        super().close()

    def facts(self) -> dict[str, Any]:
        return {"path": f"preadv O_DIRECT, {self.work.iodepth} threads"}
