# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Transfers: batches of pages to and from the store, each one job, with a limit in time.

Guarantees: when a call returns, no device touches the pages of that call any more (I11). SGLang gives them to somebody
else then: a late read would write into another request's page, and a late write would store its bytes under this key.

So a batch that takes longer than its limit drops what has not begun and waits for the pieces that the device has.
After a late load, loads go through the store's own memory, with a deadline that holds whatever the device does, until
one comes in time: a device that hangs can hold one load, not all. A store that the device does not answer holds its
thread, on which SGLang does nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import kvstore
from kvstore.buffers import BlockBuffer
from kvstore.errors import WaitTimeout

_log = logging.getLogger("kvstore.sglang")


class Transfers:
    """Loads and stores of one backend. Thread-safe.

    Parameters
    ----------
    load_timeout_s, store_timeout_s : limits of one batch; 0 is none.
    staged_loads : every load goes through the store's own memory.
    durable : a store is complete only when its descriptors are on the device.
    """

    def __init__(self, load_timeout_s: float, store_timeout_s: float, *, staged_loads: bool, durable: bool) -> None:
        self._load_timeout_s = load_timeout_s
        self._store_timeout_s = store_timeout_s
        self._staged_loads = staged_loads
        self._durable = durable
        self._lock = threading.Lock()
        self._was_late = False
        self.loads_late = 0
        self.stores_late = 0

    def load(
        self, space: kvstore.Space, keys: Sequence[bytes], outs: Sequence[BlockBuffer], block_bytes: int
    ) -> list[bool]:
        """Read blocks; return which of ``outs`` hold theirs. The contents of the others are undefined.

        Raises
        ------
        KvStoreError : the store refuses the batch; nothing was read.
        """
        staged = self._load_timeout_s > 0 and (self._staged_loads or self._was_late)
        job = space.get_many(keys, outs, deadline_ms=self._load_timeout_s * 1000 if staged else None)
        if staged:
            results = job.wait()  # the deadline ends it
            late = any(result.code == "timeout" for result in results)
        else:
            results, late = _wait(job, self._load_timeout_s)
        with self._lock:
            self._was_late = late
            self.loads_late += late
        if late:
            _log.warning("a load of %d pages took over %.1f s: misses", len(keys), self._load_timeout_s)
        self._forget_unreadable(space, keys, results)
        return [result.status == "hit" and result.nbytes == block_bytes for result in results]

    def store(
        self,
        space: kvstore.Space,
        keys: Sequence[bytes],
        values: Sequence[BlockBuffer],
        parents: Sequence[bytes | None],
        depths: Sequence[int],
    ) -> list[bool]:
        """Write blocks; return which are there now.

        Raises
        ------
        KvStoreError : the store refuses the batch; nothing was written.
        """
        job = space.put_many(keys, values, parents=parents, depths=depths, durable=self._durable)
        results, late = _wait(job, self._store_timeout_s)
        if late:
            with self._lock:
                self.stores_late += 1
            _log.warning("a store of %d pages took over %.1f s", len(keys), self._store_timeout_s)
        failed = [result.error for result in results if result.error is not None]
        if failed:
            _log.warning("%d of %d pages were not stored, the first: %s", len(failed), len(keys), failed[0])
        return [bool(result) for result in results]

    def _forget_unreadable(
        self, space: kvstore.Space, keys: Sequence[bytes], results: Sequence[kvstore.Result]
    ) -> None:
        """Delete what the device cannot read: while it is there every request asks for it, and no store mends it."""
        unreadable = [key for key, result in zip(keys, results, strict=True) if result.code == "io"]
        if unreadable:
            _log.warning("%d pages cannot be read and are dropped", len(unreadable))
            space.delete(unreadable)


def _wait(job: kvstore.Job, timeout_s: float) -> tuple[list[kvstore.Result], bool]:
    """Wait for a job; after ``timeout_s`` for its pieces on the device only. Return its results and if it was late."""
    try:
        return job.wait(timeout_s or None), False
    except WaitTimeout:
        job.cancel()
    return job.wait(), True
