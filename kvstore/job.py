# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Job: one submitted batch. CompletionQueue: where finished jobs can be waited for with an eventfd."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from kvstore import _core
from kvstore._core import Result
from kvstore.errors import WaitTimeout

__all__ = ["CompletionQueue", "Job", "Result"]


class Job:
    """One submitted batch: reads and writes on their way.

    Made by :meth:`Space.put_many`, :meth:`Space.get_many` and :meth:`Space.prefetch`. The buffers of the batch are held
    until the job is done, whatever becomes of this object; ``(pointer, nbytes)`` memory is the caller's to keep.
    Dropping a job does not cancel it.

    Two jobs are equal when they are the same job, so what a completion queue drains can be looked up in a dict.

    Notes
    -----
    Safe from many threads. Not usable in a forked child.

    Examples
    --------
    >>> pool = kvstore.open(example_pool)
    >>> space = pool.space(engine="example", model="none")
    >>> job = space.put_many([b"job-1", b"job-2"], [b"abc", b"defg"], tag=7)
    >>> job.tag, len(job)
    (7, 2)
    >>> all(job.wait(timeout_s=10))
    True
    >>> pool.close()
    """

    __slots__ = ("_core",)

    def __init__(self, core: _core.JobHandle) -> None:
        self._core = core

    @property
    def id(self) -> int:
        """Number of the job, unique in its pool while that is open."""
        return self._core.id

    @property
    def tag(self) -> int:
        """The number given at submission."""
        return self._core.tag

    @property
    def done(self) -> bool:
        """Whether every item has its result, and no device will touch the buffers any more. Does not block."""
        return self._core.done

    @property
    def elapsed_s(self) -> float:
        """Seconds from submission to completion, measured by the engine; 0.0 while the job runs."""
        return self._core.elapsed_ns / 1e9

    @property
    def results(self) -> list[Result]:
        """One result per item, in the order given.

        Raises
        ------
        WaitTimeout : the job is not done.
        """
        return self._core.results()

    def wait(self, timeout_s: float | None = None) -> list[Result]:
        """Wait for the job.

        Parameters
        ----------
        timeout_s : seconds to wait at most; None: until it is done.

        Returns
        -------
        one :class:`Result` per item, in the order given.

        Raises
        ------
        WaitTimeout : the wait ended; the job goes on, and its buffers stay in use until it is done.
        ClosedError : the pool was closed while the device still had the job; or this is a forked child.

        Notes
        -----
        Blocking; releases the GIL. On the main thread Python's signal handlers run at least every 50 ms; one that
        raises ends the wait, not the job.
        """
        if not self._core.wait(timeout_s):
            raise WaitTimeout(f"job {self.id} of {len(self)} items is not done after {timeout_s} s; it goes on")
        return self._core.results()

    def cancel(self, item: int | None = None) -> None:
        """Cancel what has not begun.

        Parameters
        ----------
        item : its index; None: all items.

        Notes
        -----
        Items not begun end as an error with code ``"canceled"``. Pieces that the device has are waited for: the buffers
        are free when the job is done, not before. Does nothing to a finished job. Does not block.
        """
        self._core.cancel(item)

    def __await__(self) -> Generator[Any, None, list[Result]]:
        """Wait in asyncio: the eventfd of one queue per loop is watched, no thread takes part.

        Canceling the task ends the wait, not the job. Only one event loop can await a job. Raises as :meth:`wait`.
        """
        if not self._core.done:
            from kvstore._asyncio import wait_for  # here, so that importing kvstore does not import asyncio

            yield from wait_for(self._core).__await__()
        return self._core.results()

    def __len__(self) -> int:
        return len(self._core)

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self._core is other._core

    def __hash__(self) -> int:
        return hash(self._core)

    def __repr__(self) -> str:
        return f"<Job {self.id}: {len(self)} items, {'done' if self.done else 'in flight'}>"


class CompletionQueue:
    """Finished jobs in the order of their completion, behind an eventfd.

    Made by :meth:`Pool.queue`. Give it as ``queue=`` when submitting; each such job shows up here once, when done.
    Watch :meth:`fileno` with select, epoll or an event loop: it is readable while jobs wait to be drained. No Python
    thread takes part.

    Notes
    -----
    Safe from many threads. Stays drainable after the pool is closed. Its eventfd is closed with the last reference.

    Examples
    --------
    >>> import select
    >>> pool = kvstore.open(example_pool)
    >>> space = pool.space(engine="example", model="none")
    >>> queue = pool.queue()
    >>> job = space.put_many([b"queue-1"], [b"abc"], queue=queue)
    >>> select.select([queue], [], [], 10)[0] == [queue]
    True
    >>> queue.drain() == [job]
    True
    >>> pool.close()
    """

    __slots__ = ("_core",)

    def __init__(self) -> None:
        self._core = _core.QueueHandle()

    def fileno(self) -> int:
        """The eventfd, readable while finished jobs wait. Owned by the queue: do not close or read it."""
        return self._core.fileno()

    def drain(self, limit: int | None = None) -> list[Job]:
        """Take finished jobs.

        Parameters
        ----------
        limit : how many at most; None: all there are.

        Returns
        -------
        the jobs, in order of completion; empty when none is waiting. Clears the eventfd when it took the last.

        Notes
        -----
        Does not block.
        """
        return [Job(core) for core in self._core.drain(limit)]
