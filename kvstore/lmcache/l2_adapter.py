# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""KVStoreL2Adapter: LMCache's multiprocess mode on a kvstore pool.

LMCache's store and prefetch controllers call it from two threads, wait on three eventfds and ask for results. Two of
the eventfds are those of the store's completion queues, so a finished load wakes LMCache from the store's engine with
no Python thread in between; a lookup needs no I/O and is complete when it is submitted. One housekeeping thread tells
LMCache of evicted blocks and ends loads that take too long.

Guarantees: nothing that goes wrong on the device leaves a ``submit_*`` call, it becomes a miss or a failed store; what
was loaded has the length and the bytes that were stored; a locked key is not deleted.
"""

from __future__ import annotations

import itertools
import select
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.logging import init_logger
from lmcache.v1.distributed.api import KeyEntry, KeyListPage, MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.internal_api import L1MemoryDesc, L2AdapterListener, L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface, L2TaskId
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.platform import create_event_notifier

import kvstore
from kvstore.errors import KvStoreError
from kvstore.lmcache.config import DoorConfig
from kvstore.lmcache.keys import L2_DOOR, l2_object_key
from kvstore.lmcache.l2_batches import L2Batches
from kvstore.lmcache.listing import Pager
from kvstore.lmcache.loads import LoadTable
from kvstore.lmcache.spaces import ListedBlock, SpaceTable
from kvstore.lmcache.stores import Notices, StoreTable

logger = init_logger(__name__)

HOUSEKEEPING_PERIOD_S = 0.25
# Evictions that wait for the housekeeping thread; more than that and everything is counted again.
_EVICTIONS_MAX = 1 << 20
# Keys per call of a listener, when it is told of what a restart recovered.
_REPLAY_KEYS = 4096
# Results of lookups that nobody takes, of requests LMCache gave up.
_LOOKUPS_MAX = 4096


class KVStoreL2Adapter(L2AdapterInterface):
    """LMCache L2 adapter that keeps blocks in a kvstore pool.

    Parameters
    ----------
    params : ``adapter_params`` of ``--l2-adapter``; see :class:`kvstore.lmcache.config.DoorConfig`.
    l1_memory_desc : LMCache's own buffer arena, registered for zero copy where it exposes a stable part of it.

    Raises
    ------
    ConfigError : a bad setting; the message names it.
    KvStoreError : the pool cannot be opened; the message says why and, for a pool in use, by whom.
    """

    def __init__(self, params: Mapping[str, Any], l1_memory_desc: L1MemoryDesc | None = None) -> None:
        config = DoorConfig.from_mapping(params, "adapter_params")
        super().__init__()
        self._config = config
        self._lock = threading.Lock()
        # Held while LMCache is told anything, so that a listener being replayed hears of no event twice or too late.
        self._notice_lock = threading.RLock()
        self._locks: Counter[ObjectKey] = Counter()
        self._lookups: dict[L2TaskId, tuple[Bitmap, list[ObjectKey]]] = {}
        self._task_ids = itertools.count(1)
        self._registered_l1: tuple[int, int] | None = None
        self._l1_path = "unregistered"
        self._resyncs = 0
        self._stopping = False
        self._closed = False

        self._pool = kvstore.open(list(config.path), **config.open_options())
        try:
            self._spaces = SpaceTable(self._pool, L2_DOOR, config.identity, l2_object_key)
            self._batches = L2Batches(self._spaces, config.chain_entries)
            self._lookup_event = create_event_notifier()
            self._stop_event = create_event_notifier()
            self._store_queue = self._pool.queue()
            self._load_queue = self._pool.queue()
            self._stores = StoreTable(self._store_queue, config.durable)
            self._loads = LoadTable(self._load_queue, config.load_timeout_s)
            self._pager: Pager[ListedBlock[ObjectKey]] = Pager(self._spaces.blocks)
            self._feed = self._pool.evictions(_EVICTIONS_MAX)
            self._max_capacity_bytes = config.max_capacity_bytes or int(self._pool.stats()["capacity_bytes"])
            self._count_recovered()
            self._register_l1(l1_memory_desc)
            self._housekeeper = threading.Thread(target=self._keep_house, name="kvstore-lmcache", daemon=True)
            self._housekeeper.start()
        except BaseException:
            self._pool.close(config.close_timeout_s)
            raise
        usage = self.get_usage()
        logger.info(
            "kvstore: %s open with %d bytes of LMCache blocks, capacity %d bytes; L1 is %s",
            ", ".join(config.path),
            usage.total_bytes_used,
            usage.total_capacity_bytes,
            self._l1_path,
        )

    # ---- event fds ----

    def get_store_event_fd(self) -> int:
        return -1 if self._closed else int(self._store_queue.fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return -1 if self._closed else int(self._lookup_event.fileno())

    def get_load_event_fd(self) -> int:
        return -1 if self._closed else int(self._load_queue.fileno())

    # ---- store ----

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2TaskId:
        """Start writing ``objects``; they must stay as they are until the task is complete.

        Raises
        ------
        ValueError : no keys, or not as many objects.
        RuntimeError : the adapter is closed.
        """
        self._check_submit(keys, objects)
        task_id = next(self._task_ids)
        self._stores.submit(task_id, keys, objects, self._batches)
        return task_id

    def pop_completed_store_tasks(self) -> dict[L2TaskId, L2StoreResult]:
        self._tell_stored()
        return self._stores.take_results()

    # ---- lookup and lock ----

    def submit_lookup_and_lock_task(
        self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc]
    ) -> L2TaskId:
        """Look up and lock ``keys``; complete when this returns.

        Parameters
        ----------
        keys : rows of chunk-ordered keys, a row for each rank and object group.
        group_layout_descs : not used; the length of a block is checked when it is loaded.
        """
        self._check_submit(keys, keys)
        self._batches.learn(keys)
        found = Bitmap(len(keys))
        hits: list[ObjectKey] = []
        for batch in self._batches.of(keys):
            try:
                payload_bytes = batch.space.lookup(batch.keys, salts=batch.salts, pin=True)
            except KvStoreError as error:
                logger.warning("kvstore cannot look up %d blocks, they are misses: %s", len(batch.keys), error)
                continue
            for position, nbytes in zip(batch.positions, payload_bytes, strict=True):
                if nbytes >= 0:
                    found.set(position)
                    hits.append(keys[position])
        task_id = next(self._task_ids)
        forgotten: list[ObjectKey] = []
        with self._lock:
            self._locks.update(hits)
            self._lookups[task_id] = found, hits
            while len(self._lookups) > _LOOKUPS_MAX:
                forgotten += self._lookups.pop(next(iter(self._lookups)))[1]
        self._unpin(self._take_locks(forgotten))
        self._lookup_event.notify()
        return task_id

    def query_lookup_and_lock_result(self, task_id: L2TaskId) -> Bitmap | None:
        with self._lock:
            bitmap, _ = self._lookups.pop(task_id, (None, []))
        return bitmap

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        """Give up one lock of each key; what is not locked is left alone.

        A load of ``keys`` that is still in flight is given up first: LMCache frees its buffers when this returns.
        Waits for pieces that are on the device, at most ``load_timeout_s`` (``close_timeout_s`` without a limit).
        """
        unlocked = self._take_locks(keys)
        with self._lock:
            left = {key: self._locks.get(key, 0) for key in keys}
        self._loads.unlock(keys, left, self._config.load_timeout_s or self._config.close_timeout_s)
        self._unpin(unlocked)

    def _take_locks(self, keys: Sequence[ObjectKey]) -> list[ObjectKey]:
        """Take one lock off each key that has one; return those that had."""
        unlocked = []
        with self._lock:
            for key in keys:
                if self._locks[key] > 0:
                    self._locks[key] -= 1
                    unlocked.append(key)
                if self._locks[key] == 0:
                    del self._locks[key]
        return unlocked

    def _unpin(self, keys: Sequence[ObjectKey]) -> None:
        for batch in self._batches.of(keys):
            try:
                batch.space.unpin(batch.keys, salts=batch.salts)
            except KvStoreError as error:
                # Pins have a lease, so they end all the same.
                logger.warning("kvstore cannot unpin %d blocks: %s", len(batch.keys), error)

    # ---- load ----

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2TaskId:
        """Start reading into ``objects``, which the store may write to until the task is complete or unlocked.

        Raises
        ------
        ValueError : no keys, or not as many objects.
        RuntimeError : the adapter is closed.
        """
        self._check_submit(keys, objects)
        task_id = next(self._task_ids)
        self._loads.submit(task_id, keys, objects, self._batches.of(keys))
        return task_id

    def query_load_result(self, task_id: L2TaskId) -> Bitmap | None:
        taken = self._loads.take(task_id)
        if taken is None:
            return None
        bitmap, loaded = taken
        if loaded:
            with self._notice_lock:
                self._guarded(self._notify_keys_accessed, loaded)
        return bitmap

    # ---- eviction, listing, listeners ----

    def delete(self, keys: list[ObjectKey]) -> None:
        """Delete what is there and not locked. The space is reused when its whole region is."""
        if self._closed or not keys:
            return
        missed: list[ObjectKey] = []
        for batch in self._batches.of(keys):
            try:
                results = batch.space.delete(batch.keys, salts=batch.salts)
            except KvStoreError as error:
                logger.warning("kvstore cannot delete %d blocks: %s", len(batch.keys), error)
                continue
            for position, result in zip(batch.positions, results, strict=True):
                if result.status == "miss":
                    missed.append(keys[position])
        self._tell_evictions()
        if missed and self._resyncs:
            # Evicted when there were too many evictions to name: a policy that still lists them must hear of it.
            with self._notice_lock:
                self._guarded(self._notify_keys_deleted, missed, [0] * len(missed))

    def list_l2_keys(
        self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None
    ) -> KeyListPage:
        """List the blocks of this adapter, page by page, from the device.

        Raises
        ------
        ValueError : a ``page_size`` below 1, or a ``cursor`` that is none.
        """
        page = self._pager.page(page_size, cursor, lambda block: model_name in (None, block.key.model_name))
        entries = tuple(KeyEntry(block.key.to_encoded_object_key(), block.payload_bytes) for block in page.entries)
        return KeyListPage(entries=entries, next_page_token=page.cursor)

    def register_listener(self, listener: L2AdapterListener) -> None:
        """Register a listener and tell it of every block that is there already, as if it were stored now."""
        with self._notice_lock:
            super().register_listener(listener)
            for blocks in _pages(self._spaces.blocks(), _REPLAY_KEYS):
                keys = [block.key for block in blocks]
                self._guarded(listener.on_l2_keys_stored, keys, [block.payload_bytes for block in blocks])

    # ---- status and end ----

    def report_status(self) -> dict[str, Any]:
        """Return health, the two figures of use, and how bytes travel.

        ``live_bytes`` are what LMCache counts for its watermark and quotas: payloads that can be loaded.
        ``occupied_bytes`` are what the pool cannot write to now: live blocks, rounding, and dead blocks whose region
        has not been reclaimed yet.
        """
        usage = self.get_usage()
        status: dict[str, Any] = {
            "is_healthy": not self._closed and self._housekeeper.is_alive(),
            "type": type(self).__name__,
            "paths": list(self._config.path),
            "verify": self._config.verify,
            "live_bytes": usage.total_bytes_used,
            "capacity_bytes": usage.total_capacity_bytes,
            "l1_memory": self._l1_path,
            "locked_key_count": len(self._locks),
            "chain_position_count": len(self._batches.chain),
            "refused_key_count": self._batches.refused_keys,
            "eviction_resync_count": self._resyncs,
            **self._stores.numbers(),
            **self._loads.numbers(),
        }
        try:
            stats: dict[str, Any] = self._pool.stats()
        except KvStoreError as error:
            status["is_healthy"] = False
            status["error"] = str(error)
            return status
        status["is_healthy"] = status["is_healthy"] and not stats["write_refusal"]
        status["write_refusal"] = stats["write_refusal"]
        status["occupied_bytes"] = stats["occupied_bytes"]
        moved, staged = stats["bytes_put"] + stats["bytes_got"], stats["bytes_staged"]
        status["byte_path"] = {
            "device_kind": stats["device_kind"],
            "zero_copy_bytes": max(0, moved - staged),
            "staged_bytes": staged,
            "registered_requests": stats["pieces_fixed"],
        }
        status["pool"] = stats
        return status

    def close(self) -> None:
        """Give up what is in flight, wait for it, close the pool. Idempotent.

        Pieces still on the device after ``close_timeout_s`` keep their buffers alive for the life of the process.
        """
        with self._lock:
            if self._closed or self._stopping:
                return
            self._stopping = True
        self._stop_event.notify()
        self._housekeeper.join()
        self._stop_event.close()
        limit = self._config.close_timeout_s
        stuck = self._loads.close(limit) + self._stores.wait(limit)
        self._tell_stored()
        if stuck:
            logger.error("%d loads or stores were still on the device after %.1f s", stuck, limit)
        self._closed = True
        self._lookup_event.close()
        try:
            if self._registered_l1 is not None:
                self._pool.unregister(self._registered_l1)
        except KvStoreError as error:
            logger.error("kvstore: L1 stays registered: %s", error)
        try:
            self._pool.close(limit)
        except KvStoreError as error:
            logger.error("kvstore: the pool did not close cleanly: %s", error)

    # ---- parts of the above ----

    def _check_submit(self, keys: Sequence[Any], objects: Sequence[Any]) -> None:
        if not keys or len(keys) != len(objects):
            raise ValueError(f"need as many objects as keys and at least one, got {len(keys)} and {len(objects)}")
        if self._closed or self._stopping:
            raise RuntimeError("this kvstore L2 adapter is closed")

    def _register_l1(self, desc: L1MemoryDesc | None) -> None:
        if desc is None or not self._config.register_l1:
            return
        if not desc.stable_registration_size:
            logger.info("kvstore: LMCache's L1 has no stable part to register; direct I/O without registration")
            return
        arena = (desc.ptr, desc.stable_registration_size)
        try:
            registration = self._pool.register(arena)
        except KvStoreError as error:  # by another adapter on this pool, already
            self._l1_path = f"not registered: {error}"
        else:
            self._registered_l1 = arena
            if registration:
                self._l1_path = f"registered, {desc.stable_registration_size} of {desc.size} bytes"
            else:
                self._l1_path = f"not registered: {registration.reason}"
        if not self._l1_path.startswith("registered"):
            logger.info("kvstore: L1 is %s; direct I/O without registration", self._l1_path)

    def _count_recovered(self) -> None:
        """Set the byte counters to what is on the device; evictions told meanwhile are in what was counted."""
        for _ in range(3):
            self._feed.drain()
            by_salt = self._spaces.bytes_by_salt()
            if not self._feed.drain():
                break
        with self._usage_lock:
            self._total_bytes_used = sum(by_salt.values())
            self._bytes_by_cache_salt = {salt.decode(): nbytes for salt, nbytes in by_salt.items()}

    def _keep_house(self) -> None:
        poller = select.poll()
        poller.register(self._feed.fileno(), select.POLLIN)
        poller.register(self._stop_event.fileno(), select.POLLIN)
        while not self._stopping:
            poller.poll(HOUSEKEEPING_PERIOD_S * 1000)
            try:
                self._tell_evictions()
                self._loads.enforce_time_limits()
            except KvStoreError as error:
                logger.warning("kvstore housekeeping: %s", error)

    def _tell_evictions(self) -> None:
        with self._notice_lock:
            evictions = self._feed.drain()
            # What was stored before it was evicted is told before it.
            self._tell_stored()
            self._stores.signal_results()
            gone: list[tuple[ObjectKey, int]] = []
            for eviction in evictions:
                key = self._spaces.key_of(eviction.space_json, eviction.salt, eviction.key)
                if key is not None and not self._stores.cancel_notice(key, eviction.nbytes):
                    gone.append((key, eviction.nbytes))
            self._notify(Notices([], gone))
            if self._feed.overflowed:
                self._resyncs += 1
                logger.warning("kvstore: more evictions than could be told; counting what is there")
                self._count_recovered()

    def _tell_stored(self) -> None:
        with self._notice_lock:
            self._notify(self._stores.harvest())

    def _notify(self, notices: Notices) -> None:
        for notify, pairs in ((self._notify_keys_stored, notices.stored), (self._notify_keys_deleted, notices.gone)):
            if pairs:
                self._guarded(notify, [key for key, _ in pairs], [nbytes for _, nbytes in pairs])

    def _guarded(self, call: Any, *arguments: Any) -> None:
        """Call LMCache's listeners; what they raise must end neither a load nor the housekeeping."""
        try:
            call(*arguments)
        except Exception:  # foreign code: anything may come out
            logger.exception("kvstore: a listener of LMCache failed")


def _pages(blocks: Iterator[ListedBlock[ObjectKey]], size: int) -> Iterator[list[ListedBlock[ObjectKey]]]:
    while batch := list(itertools.islice(blocks, size)):
        yield batch
