# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Awaiting jobs in asyncio: one completion queue per event loop, its eventfd watched while somebody waits."""

from __future__ import annotations

import asyncio
import os
from weakref import WeakKeyDictionary

from kvstore import _core


class LoopQueue:
    """The completions that one loop waits for."""

    def __init__(self) -> None:
        self._core = _core.QueueHandle()
        self._waiting: dict[_core.JobHandle, list[asyncio.Future[None]]] = {}

    async def wait_for(self, job: _core.JobHandle) -> None:
        loop = asyncio.get_running_loop()
        job.notify(self._core)
        if not self._waiting:
            # Watched only meanwhile: a descriptor that is closed in a selector comes back as somebody else's.
            loop.add_reader(self._core.fileno(), self._drain)
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(job, []).append(future)
        try:
            await future
        finally:
            waiters = self._waiting.get(job, [])
            if future in waiters:  # canceled: the job will come here all the same and find nobody
                waiters.remove(future)
                if not waiters:
                    del self._waiting[job]
            if not self._waiting:
                loop.remove_reader(self._core.fileno())

    def _drain(self) -> None:
        for job in self._core.drain(None):
            for future in self._waiting.pop(job, ()):
                if not future.done():
                    future.set_result(None)


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopQueue] = WeakKeyDictionary()
os.register_at_fork(after_in_child=_queues.clear)


async def wait_for(job: _core.JobHandle) -> None:
    """Return when the job is done."""
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = LoopQueue()
    await queue.wait_for(job)
