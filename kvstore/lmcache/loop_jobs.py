# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""LoopJobs: jobs of the store awaited on one asyncio event loop, with no thread in between.

The loop watches the eventfd of a completion queue. A job whose wait was ended goes on; its objects are released when
it is complete, because the kernel may use their memory until then (I11). Every call is made on the loop's own thread.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

from lmcache.v1.memory_management import MemoryObj

import kvstore
from kvstore.lmcache.jobs import wait_for_job


@dataclasses.dataclass(eq=False)
class _Pending:
    job: kvstore.Job
    future: asyncio.Future[Any]
    objects: Sequence[MemoryObj]
    release_at_end: bool


class LoopJobs:
    """The jobs of one connector.

    Parameters
    ----------
    loop : the event loop.
    queue : the completion queue the jobs are submitted to.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, queue: kvstore.CompletionQueue) -> None:
        self._loop = loop
        self._queue = queue
        self._pending: dict[int, _Pending] = {}
        self._watching = False

    def watch(
        self, job: kvstore.Job, objects: Sequence[MemoryObj], *, release_at_end: bool = False
    ) -> asyncio.Future[Sequence[kvstore.Result]]:
        """Return a future of the job's results.

        Parameters
        ----------
        objects : what the job reads from or writes to.
        release_at_end : drop one reference of each object when the job is complete, whoever waits.
        """
        if not self._watching:
            self._loop.add_reader(self._queue.fileno(), self._finish)
            self._watching = True
        future: asyncio.Future[Sequence[kvstore.Result]] = self._loop.create_future()
        self._pending[job.id] = _Pending(job, future, objects, release_at_end)
        return future

    def abandon(self, future: asyncio.Future[Any]) -> bool:
        """End the wait for a job: its objects are released when it is complete. False when it is already."""
        for pending in self._pending.values():
            if pending.future is future:
                pending.job.cancel()
                pending.release_at_end = True
                future.cancel()
                return True
        return False

    async def close(self, timeout_s: float) -> None:
        """Drop what has not begun and wait for the rest; what is not complete by then keeps its objects."""
        end = self._loop.time() + timeout_s
        for pending in self._pending.values():
            pending.job.cancel()
        for pending in list(self._pending.values()):
            await self._loop.run_in_executor(None, wait_for_job, pending.job, end - self._loop.time())
        # A job is done a moment before its queue tells.
        while any(pending.job.done for pending in self._pending.values()):
            self._finish()
            await asyncio.sleep(0)
        if self._watching:
            self._loop.remove_reader(self._queue.fileno())
            self._watching = False

    def _finish(self) -> None:
        for job in self._queue.drain():
            pending = self._pending.pop(job.id, None)
            if pending is None:
                continue
            if pending.release_at_end:
                release(pending.objects)
            if not pending.future.done():
                pending.future.set_result(job.results)


def release(objects: Sequence[MemoryObj]) -> None:
    """Drop one reference of each object."""
    for obj in objects:
        obj.ref_count_down()
