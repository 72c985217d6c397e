# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""LoadTable: the loads of the multiprocess door, from submit to the moment their buffers are LMCache's again.

LMCache unlocks a load's keys before it frees the buffers when it gives a request up, and never says which request an
unlock belongs to. So this file decides from the keys an unlock lists:

* those of a load whose result was taken: the normal end of that load;
* exactly those of one load that no other lock covers: that load was given up. It drops what was not submitted to the
  device and waits for what was;
* exactly those of several loads, or of one that another lock may cover: it waits for them and drops nothing;
* some of a load's keys, not covered by other locks: those are dropped and waited for.

Guarantees: when ``unlock`` returns, the kernel writes into no buffer of a load given up, or that buffer is withheld
from LMCache's allocator until it stops (I11). A load older than its time limit is answered as a miss, its unfinished
buffers withheld in the same way. Every table is bounded by what is in flight. Thread-safe; only ``unlock`` and
``close`` wait.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.logging import init_logger
from lmcache.v1.distributed.api import ObjectKey

import kvstore
from kvstore.errors import KvStoreError
from kvstore.lmcache import compat
from kvstore.lmcache.jobs import wait_for_job
from kvstore.lmcache.l2_batches import L2Batch

logger = init_logger(__name__)

# Results that were taken and whose unlock has not come: more than LMCache has requests in flight.
_TAKEN_MAX = 1024
# Results nobody takes: of loads given up in doubt. LMCache takes the others within milliseconds.
_READY_MAX = 256
_READY_SIGNAL_S = 5.0
# Between the end of a load's time and giving up on its pieces that are on the device.
_GRACE_S = 1.0
# LMCache frees the buffers right after an unlock, on the thread that unlocked.
_FREE_DELAY_S = 1.0

# Buffers of pieces that had not ended when their adapter was closed. Held for the life of the process, on purpose.
_leaked: list[Any] = []


@dataclasses.dataclass(eq=False)
class _Part:
    """The keys of one load that are in one space: one job of the store."""

    job: kvstore.Job
    positions: Sequence[int]


@dataclasses.dataclass(eq=False)
class _Load:
    task_id: int
    keys: tuple[ObjectKey, ...]
    objects: list[Any]
    deadline: float
    parts: dict[int, _Part] = dataclasses.field(default_factory=dict)  # by job id; those not complete
    hits: list[int] = dataclasses.field(default_factory=list)
    canceled: bool = False
    ready_at: float = 0.0


@dataclasses.dataclass(eq=False)
class _Withheld:
    """Buffers of one job that outlived its load."""

    job: kvstore.Job
    objects: list[Any]
    load: _Load
    taken: bool = False  # LMCache has the result, so it tries to free the buffers before it unlocks
    unlocked_at: float | None = None


class LoadTable:
    """The loads in flight of one adapter.

    Parameters
    ----------
    queue : the completion queue its jobs are submitted to; its eventfd is LMCache's load fd.
    timeout_s : a load's time limit; 0 is none.
    """

    def __init__(self, queue: kvstore.CompletionQueue, timeout_s: float) -> None:
        self._queue = queue
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._loads: dict[int, _Load] = {}
        self._load_of_job: dict[int, _Load] = {}
        self._ready: OrderedDict[int, _Load] = OrderedDict()
        self._taken: OrderedDict[tuple[ObjectKey, ...], int] = OrderedDict()
        self._withheld: dict[int, _Withheld] = {}
        self.timed_out = 0
        self.given_up = 0

    # ---- submit and result ----

    def submit(
        self,
        task_id: int,
        keys: Sequence[ObjectKey],
        objects: Sequence[Any],
        batches: Sequence[L2Batch],
    ) -> None:
        """Start a load. What the store refuses is a miss.

        Parameters
        ----------
        task_id : of the load, unique in this adapter.
        keys, objects : as LMCache gave them.
        batches : of ``keys``.
        """
        deadline = time.monotonic() + self._timeout_s if self._timeout_s else float("inf")
        load = _Load(task_id, tuple(keys), list(objects), deadline)
        with self._lock:
            self._loads[task_id] = load
            for batch in batches:
                outs = [compat.buffer_of(objects[position]) for position in batch.positions]
                try:
                    job = batch.space.get_many(batch.keys, outs, salts=batch.salts, queue=self._queue, tag=task_id)
                except KvStoreError as error:
                    logger.warning("kvstore refused to load %d blocks: %s", len(outs), error)
                    continue
                load.parts[job.id] = _Part(job, batch.positions)
                self._load_of_job[job.id] = load
            if not load.parts:
                self._set_ready_locked(load)
                self._signal_ready_locked()

    def take(self, task_id: int) -> tuple[Bitmap, list[ObjectKey]] | None:
        """Return the result of a load once: which keys were loaded, as a bitmap and as a list; None before its end."""
        with self._lock:
            self._harvest_locked()
            load = self._ready.pop(task_id, None)
            self._signal_ready_locked()
            if load is None:
                return None
            self._taken[load.keys] = self._taken.get(load.keys, 0) + 1
            self._taken.move_to_end(load.keys)
            while len(self._taken) > _TAKEN_MAX:
                self._taken.popitem(last=False)
            for withheld in self._withheld.values():
                if withheld.load is load:
                    withheld.taken = True
        bitmap = Bitmap(len(load.keys))
        for position in load.hits:
            bitmap.set(position)
        return bitmap, [load.keys[position] for position in sorted(load.hits)]

    # ---- unlock ----

    def unlock(self, keys: Sequence[ObjectKey], locks: Mapping[ObjectKey, int], wait_s: float) -> None:
        """End or give up the loads that an unlock of ``keys`` means. Waits at most ``wait_s``.

        Parameters
        ----------
        keys : as LMCache gave them.
        locks : how many locks each of them has left.
        wait_s : for pieces on the device; what lasts longer is withheld.
        """
        listed = tuple(keys)
        with self._lock:
            was_taken = listed in self._taken
            if was_taken:
                self._end_taken_locked(listed)
            self._harvest_locked()
            same = [load for load in self._untaken_locked() if load.keys == listed]
            if was_taken:
                # Two loads of one key list look alike here: it may be the one in flight whose buffers LMCache is about
                # to free. Nothing is dropped, and nothing is left writing.
                given_up = None
                waiting = [part.job for load in same for part in load.parts.values()]
            elif same:
                given_up = same[0] if len(same) == 1 and self._uncovered_locked(set(keys), locks) else None
                if given_up is not None:
                    self.given_up += 1
                    self._cancel_locked(given_up)
                waiting = [part.job for load in same for part in load.parts.values()]
            else:
                given_up = None
                waiting = self._cancel_some_locked(self._uncovered_locked(set(keys), locks))
        deadline = time.monotonic() + wait_s
        for job in waiting:
            wait_for_job(job, deadline - time.monotonic())
        if not same:
            return
        now = time.monotonic()
        with self._lock:
            self._harvest_locked()
            for load in same:
                self._complete_done_locked(load)
                if load.parts:
                    logger.error(
                        "A load that LMCache may have given up is still on the device after %.1f s; its buffers are "
                        "withheld from LMCache's allocator until it ends",
                        wait_s,
                    )
                    self._withhold_locked(load)
                    self._set_ready_locked(load)
            for withheld in self._withheld.values():
                if withheld.load in same:
                    withheld.unlocked_at = now
            if given_up is not None:
                self._ready.pop(given_up.task_id, None)
            self._signal_ready_locked()

    def _untaken_locked(self) -> list[_Load]:
        return [*self._loads.values(), *self._ready.values()]

    def _end_taken_locked(self, listed: tuple[ObjectKey, ...]) -> None:
        self._taken[listed] -= 1
        if self._taken[listed] == 0:
            del self._taken[listed]
        of_keys = [w for w in self._withheld.values() if w.taken and w.unlocked_at is None and w.load.keys == listed]
        for withheld in of_keys:
            if withheld.load is of_keys[0].load:
                withheld.unlocked_at = time.monotonic()

    def _uncovered_locked(self, keys: set[ObjectKey], locks: Mapping[ObjectKey, int]) -> set[ObjectKey]:
        loading = Counter(key for load in self._untaken_locked() for key in load.keys if key in keys)
        return {key for key, count in loading.items() if locks.get(key, 0) < count}

    def _cancel_some_locked(self, keys: set[ObjectKey]) -> list[kvstore.Job]:
        jobs = []
        for load in self._loads.values() if keys else ():
            for part in load.parts.values():
                items = [item for item, position in enumerate(part.positions) if load.keys[position] in keys]
                for item in items:
                    part.job.cancel(item)
                if items:
                    jobs.append(part.job)
        return jobs

    # ---- time ----

    def enforce_time_limits(self) -> None:
        """Answer loads that took too long as misses, and give back withheld buffers; call it a few times a second."""
        now = time.monotonic()
        with self._lock:
            self._return_withheld_locked()
            for load in [load for load in self._loads.values() if now > load.deadline]:
                if not load.canceled:
                    logger.warning(
                        "A load of %d blocks took over %.1f s; what is not there becomes a miss",
                        len(load.keys),
                        self._timeout_s,
                    )
                    self.timed_out += 1
                    self._cancel_locked(load)
                elif now > load.deadline + _GRACE_S:
                    self._withhold_locked(load)
                    self._set_ready_locked(load)
            self._signal_ready_locked()

    # ---- the end ----

    def close(self, wait_s: float) -> int:
        """Give everything up and wait; return how many loads had pieces on the device when the time was over."""
        deadline = time.monotonic() + wait_s
        with self._lock:
            for load in self._loads.values():
                self._cancel_locked(load)
            jobs = [part.job for load in self._loads.values() for part in load.parts.values()]
            jobs += [withheld.job for withheld in self._withheld.values()]
        stuck = [job for job in jobs if not wait_for_job(job, deadline - time.monotonic())]
        with self._lock:
            if stuck:
                _leaked.extend([*self._loads.values(), *self._withheld.values()])
            self._loads.clear()
            self._load_of_job.clear()
            self._ready.clear()
        return len(stuck)

    def numbers(self) -> dict[str, int]:
        """Return the counts that ``report_status`` shows."""
        with self._lock:
            withheld = [obj for entry in self._withheld.values() for obj in entry.objects]
            return {
                "load_inflight_task_count": len(self._loads),
                "completed_load_task_count": len(self._ready),
                "loads_timed_out": self.timed_out,
                "loads_given_up": self.given_up,
                "withheld_bytes": sum(obj.get_physical_size() for obj in withheld),
            }

    # ---- with the lock held ----

    def _harvest_locked(self) -> None:
        for job in self._queue.drain():
            load = self._load_of_job.get(job.id)
            if load is not None:
                self._complete_locked(load, job)
        self._return_withheld_locked()

    def _complete_done_locked(self, load: _Load) -> None:
        # A job is done a moment before its queue tells.
        for part in list(load.parts.values()):
            if part.job.done:
                self._complete_locked(load, part.job)

    def _complete_locked(self, load: _Load, job: kvstore.Job) -> None:
        del self._load_of_job[job.id]
        part = load.parts.pop(job.id)
        for position, result in zip(part.positions, job.results, strict=True):
            if result and result.nbytes == load.objects[position].get_size():
                load.hits.append(position)
            elif result.error and not load.canceled:
                logger.warning("kvstore could not load a block, LMCache recomputes it: %s", result.error)
        if not load.parts:
            self._set_ready_locked(load)

    def _set_ready_locked(self, load: _Load) -> None:
        if self._loads.pop(load.task_id, None) is None:
            return
        load.ready_at = time.monotonic()
        self._ready[load.task_id] = load
        while len(self._ready) > _READY_MAX:
            self._ready.popitem(last=False)

    def _signal_ready_locked(self) -> None:
        # Draining clears the eventfd, of results that somebody else is waiting for too.
        since = time.monotonic() - _READY_SIGNAL_S
        if any(load.ready_at > since for load in self._ready.values()):
            os.eventfd_write(self._queue.fileno(), 1)

    def _cancel_locked(self, load: _Load) -> None:
        load.canceled = True
        for part in load.parts.values():
            part.job.cancel()

    def _withhold_locked(self, load: _Load) -> None:
        for job_id, part in load.parts.items():
            objects = [load.objects[position] for position in part.positions]
            for obj in objects:
                compat.withhold(obj)
            self._withheld[job_id] = _Withheld(part.job, objects, load)
            self._load_of_job.pop(job_id, None)
        load.parts.clear()

    def _return_withheld_locked(self) -> None:
        now = time.monotonic()
        for job_id, withheld in list(self._withheld.items()):
            if not withheld.job.done:
                continue
            if withheld.unlocked_at is not None:
                if now < withheld.unlocked_at + _FREE_DELAY_S:
                    continue
                for obj in withheld.objects:
                    compat.give_back(obj)
            elif withheld.taken:
                continue  # LMCache is between the result and the unlock, or has freed it already
            else:
                for obj in withheld.objects:
                    compat.restore(obj)
            del self._withheld[job_id]
