# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""For engines whose calls move one block and wait for it: a thread for each block in flight."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from kvstore.bench.content import Buffers
from kvstore.bench.engines.base import Engine, Op, Work

__all__ = ["ThreadedEngine"]


class ThreadedEngine(Engine):
    """Its ``open`` calls :meth:`start_threads`, its ``close`` :meth:`stop_threads`."""

    threads: ThreadPoolExecutor | None = None

    @abstractmethod
    def move(self, op: Op, number: int, buffers: Buffers, row: int) -> bool:
        """Move one block; False: it is not there."""

    def start_threads(self, work: Work) -> None:
        """None for one block at a time: the caller's own does it, without a hand-over."""
        if work.iodepth > 1:
            self.threads = ThreadPoolExecutor(work.iodepth * work.numjobs)

    def stop_threads(self) -> None:
        """Also when they were not started."""
        if self.threads is not None:
            self.threads.shutdown()
            self.threads = None

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        if self.threads is None:
            return [self.move(op, numbers[0], buffers, 0)]
        moving = [self.threads.submit(self.move, op, number, buffers, row) for row, number in enumerate(numbers)]
        try:
            return [one.result() for one in moving]
        except BaseException:
            wait(moving)  # who calls may use the rows again when this has raised
            raise
