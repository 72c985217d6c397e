# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Store: an open engine, which blocks are in it, and the buffers of each thread, one for each call in flight."""

from __future__ import annotations

from kvstore.bench.engines.base import Engine, SelfTimedEngine, Work
from kvstore.bench.numbers import Numbers

__all__ = ["Store"]


class Store:
    """An open engine and which blocks are in it. Jobs that need the same one after another share it."""

    def __init__(self, engine: Engine, work: Work, live: int) -> None:
        self.engine, self.work = engine, work
        self.numbers = Numbers(live, work.population - live)
        self.content = work.content()
        self._forgotten = 0  # the first number that may be in the engine's memory still
        try:
            engine.open(work)
            self_timed = isinstance(engine, SelfTimedEngine)
            threads = 0 if self_timed else work.numjobs
            self.buffers = [[engine.buffers() for _ in range(work.calls)] for _ in range(threads)]
        except BaseException:
            engine.close()
            raise
        for buffers in (one for worker in self.buffers for one in worker):
            self.content.fill(buffers)

    def forget(self) -> None:
        """Have gets come from the device, if anything was put since the last time. Takes time, which must not count."""
        if self._forgotten != self.numbers.next:
            self.engine.flush()
            self.engine.forget()
            self._forgotten = self.numbers.next

    def close(self) -> None:
        """Give everything back; buffers first, which may be the engine's memory."""
        self.buffers.clear()
        self.engine.close()
