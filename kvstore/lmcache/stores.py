# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""StoreTable: the stores of the multiprocess door, and which blocks LMCache is to be told of as stored.

A block may be evicted before LMCache hears that it was stored: the job it belongs to is long, or its result has not
been taken. An eviction of a key with a store in flight therefore cancels that store's notice instead of being told.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from lmcache.logging import init_logger
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult

import kvstore
from kvstore.errors import KvStoreError
from kvstore.lmcache import compat
from kvstore.lmcache.jobs import wait_for_job
from kvstore.lmcache.l2_batches import L2Batches

logger = init_logger(__name__)


class Notices(NamedTuple):
    """What LMCache is to be told: keys and sizes of blocks that are new, and of blocks that are gone."""

    stored: list[tuple[ObjectKey, int]]
    gone: list[tuple[ObjectKey, int]]


@dataclasses.dataclass(eq=False)
class _Store:
    task_id: int
    keys: list[ObjectKey]
    objects: list[Any]  # keeps the buffers alive until the last piece has been written
    parts: dict[int, tuple[kvstore.Job, Sequence[int]]] = dataclasses.field(default_factory=dict)
    success: bool = True
    stored_bytes: int = 0


class StoreTable:
    """The stores in flight of one adapter. Thread-safe; never waits but in ``close``.

    Parameters
    ----------
    queue : the completion queue its jobs are submitted to; its eventfd is LMCache's store fd.
    durable : jobs complete only when their descriptors are on the device.
    """

    def __init__(self, queue: kvstore.CompletionQueue, durable: bool) -> None:
        self._queue = queue
        self._durable = durable
        self._lock = threading.Lock()
        self._stores: dict[int, _Store] = {}
        self._store_of_job: dict[int, _Store] = {}
        self._results: dict[int, L2StoreResult] = {}
        self._pending: Counter[ObjectKey] = Counter()
        self._evicted: dict[ObjectKey, int] = {}  # of pending ones: payload bytes
        self.failed_blocks = 0

    def submit(self, task_id: int, keys: Sequence[ObjectKey], objects: Sequence[Any], batches: L2Batches) -> None:
        """Start a store. What the store refuses makes the task fail."""
        store = _Store(task_id, list(keys), list(objects))
        with self._lock:
            self._stores[task_id] = store
            for batch in batches.of(keys):
                parents, depths = batches.places(batch, keys)
                values = [compat.buffer_of(objects[position]) for position in batch.positions]
                try:
                    job = batch.space.put_many(
                        batch.keys,
                        values,
                        parents=parents,
                        depths=depths,
                        salts=batch.salts,
                        durable=self._durable,
                        queue=self._queue,
                        tag=task_id,
                    )
                except KvStoreError as error:
                    logger.warning("kvstore refused to store %d blocks: %s", len(batch.keys), error)
                    self.failed_blocks += len(batch.keys)
                    store.success = False
                    continue
                store.parts[job.id] = (job, batch.positions)
                self._store_of_job[job.id] = store
                self._pending.update(keys[position] for position in batch.positions)
            if sum(len(positions) for _, positions in store.parts.values()) < len(keys):
                store.success = False
            if not store.parts:
                self._finish_locked(store)
                self._signal()

    def harvest(self) -> Notices:
        """Take in finished jobs; return what LMCache is to be told."""
        notices = Notices([], [])
        with self._lock:
            for job in self._queue.drain():
                store = self._store_of_job.pop(job.id, None)
                if store is not None:
                    self._complete_locked(store, job, notices)
        return notices

    def signal_results(self) -> None:
        """Wake LMCache when results wait for it: ``harvest`` on another thread cleared the eventfd."""
        with self._lock:
            if self._results:
                self._signal()

    def take_results(self) -> dict[int, L2StoreResult]:
        """Return the results of finished tasks, each once; ``harvest`` first."""
        with self._lock:
            results, self._results = self._results, {}
        return results

    def cancel_notice(self, key: ObjectKey, payload_bytes: int) -> bool:
        """Note that ``key`` was evicted; return whether a store of it is in flight, so that nobody must be told yet."""
        with self._lock:
            if self._pending[key] <= 0:
                del self._pending[key]
                return False
            self._evicted[key] = payload_bytes
            return True

    def wait(self, timeout_s: float) -> int:
        """Wait for every job, ``timeout_s`` seconds at most; return how many are left."""
        end = time.monotonic() + timeout_s
        with self._lock:
            jobs = [job for store in self._stores.values() for job, _ in store.parts.values()]
        left = 0
        for job in jobs:
            left += not wait_for_job(job, end - time.monotonic())
        return left

    def numbers(self) -> dict[str, int]:
        """Return the counts that ``report_status`` shows."""
        with self._lock:
            return {
                "store_inflight_task_count": len(self._stores),
                "completed_store_task_count": len(self._results),
                "failed_store_block_count": self.failed_blocks,
            }

    # ---- with the lock held ----

    def _complete_locked(self, store: _Store, job: kvstore.Job, notices: Notices) -> None:
        _, positions = store.parts.pop(job.id)
        for position, result in zip(positions, job.results, strict=True):
            key = store.keys[position]
            evicted = self._evicted.pop(key, None)
            self._pending[key] -= 1
            if self._pending[key] <= 0:
                del self._pending[key]
            elif evicted is not None and result.status != "stored":
                self._evicted[key] = evicted  # the store that joined this one tells
                evicted = None
            if result.status == "stored":
                store.stored_bytes += result.nbytes
                if evicted is None:
                    notices.stored.append((key, result.nbytes))
            elif evicted is not None:
                notices.gone.append((key, evicted))
            if not result:
                store.success = False
                self.failed_blocks += 1
                logger.warning("kvstore could not store a block: %s", result.error)
        if not store.parts:
            self._finish_locked(store)

    def _finish_locked(self, store: _Store) -> None:
        del self._stores[store.task_id]
        self._results[store.task_id] = L2StoreResult(store.success, store.stored_bytes)

    def _signal(self) -> None:
        os.eventfd_write(self._queue.fileno(), 1)
