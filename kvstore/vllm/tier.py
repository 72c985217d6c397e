# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""KVStoreTier: a kvstore pool behind vLLM's CPU tier.

vLLM calls it from its scheduler, one call at a time, and polls it. Lookups are answered from the index at once. A job
of vLLM is one job of the store, from and into the rows of the CPU tier, without a copy and without a thread.

Guarantees: no call raises into the engine, trouble is a miss or a failed job; what is reported as loaded is what was
stored; a key whose load failed is a miss before vLLM hears of the failure; no job is reported while the device may
still touch its rows (I11).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Any, ClassVar, NamedTuple

from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

import kvstore
from kvstore._transfer import ends_by
from kvstore.errors import ConfigError, KvStoreError, WaitTimeout
from kvstore.vllm import compat, metrics
from kvstore.vllm.chains import places
from kvstore.vllm.config import TierConfig
from kvstore.vllm.failed import FailedKeys
from kvstore.vllm.revision import revision_of
from kvstore.vllm.space import identity_of
from kvstore.vllm.trouble import Trouble, answers

logger = compat.logger()

_DRAIN_SLICE_S = 10.0
# Memory that a device may still write to after its tier was shut down. Held for the life of the process (I11).
_leaked: list[Any] = []


def _nothing() -> Iterable[Any]:
    return ()


class _Running(NamedTuple):
    """One job of vLLM that the store has."""

    job_id: int
    keys: list[bytes]
    job: kvstore.Job
    is_load: bool


class KVStoreTier(SecondaryTierManager):
    """vLLM's secondary tier that keeps blocks in a kvstore pool.

    Parameters
    ----------
    offloading_spec, primary_kv_view, tier_type, backpressure_detector : vLLM's; the view is the memory of its CPU tier,
        one row a chunk.
    settings : see :class:`kvstore.vllm.config.TierConfig`.

    Raises
    ------
    ConfigError : a bad setting; the message names it.
    KvStoreError : the pool cannot be opened; the message says why and, for a pool in use, by whom.
    """

    medium: ClassVar[Any] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **settings: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self._trouble = Trouble()
        self._counts = metrics.TierCounts()
        self._failed = FailedKeys()
        self._running: dict[int, _Running] = {}  # by the store's job id
        self._refused: list[JobResult] = []
        self._events: list[OffloadingEvent] = []
        self._closed = False
        self._registered = False
        self._row_bytes = self.block_size_bytes
        self._memory: Any = primary_kv_view.obj  # not the view, whose owner could not release it
        self._memory_bytes = primary_kv_view.nbytes
        self._address = compat.address_of(primary_kv_view)
        self._chunk_tokens = [n * offloading_spec.blocks_per_chunk for n in offloading_spec.tokens_per_block]
        try:
            self._open(offloading_spec, settings)
        except KvStoreError as error:
            logger.error("kvstore: the tier %s cannot start: %s", tier_type, error)
            raise

    def _open(self, spec: Any, settings: dict[str, Any]) -> None:
        where = f"secondary_tiers.{self.tier_type}"
        self._config = config = TierConfig.from_mapping(settings, where)
        self.locality = Locality(config.locality) if config.locality else None
        replicas = spec.config.parallel.data_parallel_size
        if replicas > 1 and config.mode != "shared":
            raise ConfigError(
                f'{where}.mode must be "shared": {replicas} data parallel engines open one pool, and in owner mode '
                "it has one opener"
            )
        revision = config.revision or revision_of(spec.config.model.name, where)
        identity = identity_of(spec.config, self._row_bytes, revision, config.identity)
        self._has_events = config.enable_kv_events and spec.kv_events_config.enable_kv_cache_events
        self._deadline_ms = config.load_timeout_s * 1000 or None
        self._pool = kvstore.open(list(config.path), **config.open_options())
        try:
            self._check_region_bytes(where)
            self._space = self._pool.space(**identity)
            self._queue = self._pool.queue()
            self._feed = self._pool.evictions() if self._has_events else None
            path = self._register_primary()
        except BaseException:
            self._pool.close(config.close_timeout_s)
            raise
        logger.info(
            "kvstore: %s open with %d blocks; rows of %d bytes, CPU tier %s; space %s",
            ", ".join(config.path),
            self._pool.stats()["blocks"],
            self._row_bytes,
            path,
            self._space.json,
        )

    def _check_region_bytes(self, where: str) -> None:
        region_bytes = min(block["geometry"]["region_bytes"] for block in self._pool.superblocks())
        if self._row_bytes > region_bytes:
            raise ConfigError(
                f"{where}.path: a block of this engine has {self._row_bytes} bytes and a region of the pool "
                f"{region_bytes}; format it with --block-bytes {self._row_bytes}"
            )

    def _register_primary(self) -> str:
        if not self._config.register_primary:
            return "not registered, by its setting"
        try:
            registration = self._pool.register((self._address, self._memory_bytes))
        except KvStoreError as error:
            return f"not registered: {error}"
        self._registered = True
        return "registered" if registration else f"not registered: {registration.reason}"

    # ---- lookup ----

    @answers(lambda: LookupResult.MISS, "a lookup is a miss")
    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        """Answer HIT or MISS from the index; never RETRY, and no I/O."""
        self._counts.add("lookups")
        if self._closed or key in self._failed or not self._space.contains(key):
            return LookupResult.MISS
        self._counts.add("lookup_hits")
        return LookupResult.HIT

    @answers(lambda: None, "a use is not counted")
    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        """Count a use of each block, so that it is reclaimed later."""
        if keys and not self._closed:
            self._space.touch(list(keys))

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        """Blocks are stored as they are computed."""
        return RequestOffloadingContext()

    # ---- jobs ----

    def submit_store(self, job_metadata: Any) -> None:
        """Start writing rows; vLLM keeps them as they are until the job is reported."""
        self._submit(job_metadata, is_load=False)

    def submit_load(self, job_metadata: Any) -> None:
        """Start reading into rows, which are the store's until the job is reported."""
        self._submit(job_metadata, is_load=True)

    def _submit(self, transfer: Any, *, is_load: bool) -> None:
        keys = list(transfer.keys)
        self._counts.add("load_jobs" if is_load else "store_jobs")
        try:
            job = self._start(keys, transfer, is_load=is_load)
        except Exception as error:  # noqa: BLE001 - the engine goes on, whatever it is; told with its place
            self._trouble.tell("a load is refused" if is_load else "a store is refused", error)
            self._count_failed(keys, is_load=is_load)
            self._refused.append(JobResult(transfer.job_id, success=False))
            return
        self._running[job.id] = _Running(transfer.job_id, keys, job, is_load)

    def _start(self, keys: list[bytes], transfer: Any, *, is_load: bool) -> kvstore.Job:
        rows = [(self._address + int(chunk) * self._row_bytes, self._row_bytes) for chunk in transfer.chunk_ids]
        if is_load:
            return self._space.get_many(keys, rows, queue=self._queue, deadline_ms=self._deadline_ms)
        parents, depths = places(keys, transfer.req_context, self._chunk_tokens)
        return self._space.put_many(
            keys, rows, parents=parents, depths=depths, durable=self._config.durable, queue=self._queue
        )

    @answers(_nothing, "finished jobs are not reported")
    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Report the jobs that ended since the last call, with the keys of each load that are right."""
        finished, self._refused = self._refused, []
        for job in self._queue.drain() if self._running else ():
            running = self._running.pop(job.id, None)
            if running is not None:
                finished.append(self._result_of(running))
        return finished

    def _result_of(self, running: _Running) -> JobResult:
        end = self._loaded if running.is_load else self._stored
        try:
            return end(running, list(zip(running.keys, running.job.results, strict=True)))
        except Exception as error:  # noqa: BLE001 - vLLM would wait for ever for a job that nobody reports
            self._trouble.tell("a job is reported as failed", error)
            self._count_failed(running.keys, is_load=running.is_load)
            return JobResult(running.job_id, False)

    def _loaded(self, running: _Running, results: list[tuple[bytes, kvstore.Result]]) -> JobResult:
        good = [key for key, result in results if result.status == "hit" and result.nbytes == self._row_bytes]
        nbytes = len(good) * self._row_bytes
        self._counts.add("blocks_loaded", len(good))
        self._counts.add("bytes_loaded", nbytes)
        if len(good) == len(results):
            return JobResult(running.job_id, True, transfer_time=running.job.elapsed_s, transfer_bytes=nbytes)
        loaded = set(good)
        for key, result in results:
            if key not in loaded:
                self._trouble.tell("a block is not loaded and will be computed again", result.error or result.status)
        self._count_failed([key for key, _ in results if key not in loaded], is_load=True)
        return JobResult(
            running.job_id,
            False,
            successful_keys=tuple(good) if good else None,
            transfer_time=running.job.elapsed_s,
            transfer_bytes=nbytes,
        )

    def _stored(self, running: _Running, results: list[tuple[bytes, kvstore.Result]]) -> JobResult:
        stored = [key for key, result in results if result.status == "stored"]
        failed = [(key, result) for key, result in results if not result]
        for key in stored:
            self._failed.discard(key)
        for _, result in failed:
            self._trouble.tell("a block is not stored", result.error or result.status)
        nbytes = len(stored) * self._row_bytes
        self._counts.add("blocks_stored", len(stored))
        self._counts.add("bytes_stored", nbytes)
        self._counts.add("blocks_present", len(results) - len(stored) - len(failed))
        self._count_failed([key for key, _ in failed], is_load=False)
        if stored and self._has_events:
            self._events.append(self._event(stored, removed=False))
        return JobResult(running.job_id, not failed, transfer_time=running.job.elapsed_s, transfer_bytes=nbytes)

    def _count_failed(self, keys: list[bytes], *, is_load: bool) -> None:
        self._counts.add("blocks_not_loaded" if is_load else "blocks_not_stored", len(keys))
        if is_load:
            self._failed.add(keys)

    def has_pending_work(self) -> bool:
        """Whether a job is to be reported yet."""
        return bool(self._running or self._refused)

    @answers(lambda: None, "jobs are not waited for")
    def drain_jobs(self) -> None:
        """Wait until no device touches a row any more, however long that takes."""
        for running in list(self._running.values()):
            while not running.job.done:
                try:
                    running.job.wait(_DRAIN_SLICE_S)
                except WaitTimeout:
                    logger.warning("kvstore: waiting for the device to end job %d", running.job_id)

    # ---- what vLLM reads ----

    @answers(_nothing, "events are not told")
    def take_events(self) -> Iterable[OffloadingEvent]:
        """What was stored and evicted since the last call, where ``enable_kv_events`` asks for it."""
        if self._feed is None:
            return ()
        taken, self._events = self._events, []
        gone = [item.key for item in self._feed.drain() if item.space_json == self._space.json]
        if gone:
            taken.append(self._event(gone, removed=True))
        return taken

    def _event(self, keys: list[bytes], *, removed: bool) -> OffloadingEvent:
        return OffloadingEvent(keys=keys, medium=Medium.STORAGE, removed=removed, locality=self.locality)

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """The counters of this tier; see :mod:`kvstore.vllm.metrics`."""
        return dict(metrics.definitions())

    @answers(lambda: None, "counts are not told")
    def get_stats(self) -> Any:
        """What was counted since the last call."""
        return self._counts.take()

    def report_status(self) -> dict[str, Any]:
        """Return the counts since the start, the trouble by kind, and the store's own numbers."""
        status = {**self._counts.totals, "trouble": dict(self._trouble.counts), "failed_keys": len(self._failed)}
        try:
            status["pool"] = self._pool.stats()
        except KvStoreError as error:
            status["error"] = str(error)
        return status

    # ---- end ----

    @answers(lambda: None, "the tier is not shut down cleanly")
    def shutdown(self) -> None:
        """Wait for what is in flight, let go of the CPU tier's memory, close the pool. Idempotent.

        What is still on the device after ``close_timeout_s`` keeps the memory mapped for the life of the process.
        """
        if self._closed:
            return
        self._closed = True
        end = time.monotonic() + self._config.close_timeout_s
        left = [running.job_id for running in self._running.values() if not ends_by(running.job, end)]
        if left:
            logger.error("kvstore: jobs %s are still on the device, the CPU tier's memory stays mapped", left)
            _leaked.append(self._memory)
        elif self._registered:
            self._pool.unregister((self._address, self._memory_bytes))
        self._memory = None
        self._pool.close(max(0.0, end - time.monotonic()))
