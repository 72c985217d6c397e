# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The worker's half of the connector: moves blocks between the engine's KV cache and the pool, and says what did not.

Guarantees: no call raises into the engine once its KV cache is registered; every job is reported; a block is used again
only when no device touches it; what was computed with a block that did not come is never stored.
"""

from __future__ import annotations

import time
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import get_offloading_group_ids
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker

from kvstore._device_transfer import DeviceTransfer
from kvstore._transfer import Block, Done, HostTransfer, Region, Transfer
from kvstore.errors import ConfigError
from kvstore.vllm import compat, metrics
from kvstore.vllm.connector_scheduler import ConnectorMetadata, ConnectorWorkerMetadata, IndexSpec
from kvstore.vllm.device_regions import device_regions
from kvstore.vllm.failed import FailedKeys
from kvstore.vllm.opened import WHERE, Opened
from kvstore.vllm.trouble import Trouble, answers

logger = compat.logger()

# Memory that a device may still write to after its worker was shut down. Held for the life of the process (I11).
_leaked: list[Any] = []


class _Caches(OffloadingConnectorWorker):
    """vLLM's own way to see any KV cache as rows of bytes, one for each block."""

    caches: Any = None

    def _init_worker(self, kv_caches: Any) -> None:
        self.caches = kv_caches


def host_regions(
    kv_caches: dict[str, Any], vllm_config: Any, kv_cache_config: Any, offloading_config: Any
) -> dict[int, list[Region]]:
    """Where the blocks of each KV cache group are, in memory that the CPU addresses."""
    worker = _Caches(IndexSpec(offloading_config), vllm_config, kv_cache_config)
    worker.register_kv_caches(kv_caches)
    found = {}
    group_ids = get_offloading_group_ids(kv_cache_config)
    for group_id, refs in zip(group_ids, worker.caches.group_data_refs, strict=True):
        names = list(kv_cache_config.kv_cache_groups[group_id].layer_names)
        of_part = [(name,) for name in names] if len(refs) == len(names) else [tuple(names)] * len(refs)
        tensors = [worker.caches.tensors[ref.tensor_idx].tensor for ref in refs]
        found[group_id] = [
            Region(layers, int(tensor.data_ptr()), int(tensor.stride(0)), int(ref.page_size_bytes))
            for layers, tensor, ref in zip(of_part, tensors, refs, strict=True)
        ]
    return found


def device_of(kv_caches: dict[str, Any]) -> int | None:
    """The GPU that the KV cache is in the memory of; None: it is in memory that the CPU addresses.

    Raises
    ------
    ConfigError : it is in other memory, or in several.
    """
    kinds = sorted({str(tensor.device.type) for tensor in kv_caches.values()})
    if kinds == ["cpu"]:
        return None
    numbers = {tensor.device.index for tensor in kv_caches.values()}
    if kinds != ["cuda"] or len(numbers) != 1:
        raise ConfigError(
            f"KVStoreConnector moves blocks of a KV cache in host memory or in that of one CUDA device, and this one "
            f"is in memory of {kinds}, devices {sorted(map(str, numbers))}: use KVStoreTier"
        )
    return int(numbers.pop() or 0)


class ConnectorWorker:
    """The calls of vLLM's worker.

    Parameters
    ----------
    opened : the pool.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._configs = opened.configs
        self._many_groups = len(opened.configs.kv_cache.kv_cache_groups) > 1
        self._trouble = Trouble()
        self.counts = metrics.TierCounts()
        self._failed = FailedKeys()
        self._epoch = ""
        self._transfer: Transfer | None = None
        self._block_bytes: dict[int, int] = {}
        self._layers: set[str] = set()
        # By vLLM's number of a job.
        self._loads: dict[int, tuple[str, list[Block]]] = {}
        self._stores: dict[int, list[Block]] = {}
        self._in_step: set[int] = set()  # those of _loads that the step's forward pass waits for
        self._waited: set[str] = set()
        self._results = KVConnectorTransferResults()
        self._invalid: set[int] = set()
        self._failures = 0
        self._meta = ConnectorWorkerMetadata()

    # ---- the KV cache ----

    def register(self, kv_caches: dict[str, Any]) -> None:
        """The engine's KV cache is there: one tensor for each layer."""
        device = device_of(kv_caches)
        if device is None:
            regions = host_regions(kv_caches, *self._configs)
        else:
            kv_cache_config = self._configs[1]
            regions = device_regions(kv_caches, kv_cache_config, get_offloading_group_ids(kv_cache_config))
        self._block_bytes = {group: sum(one.nbytes for one in parts) for group, parts in regions.items()}
        region_bytes = min(block["geometry"]["region_bytes"] for block in self._opened.pool.superblocks())
        largest = max(self._block_bytes.values())
        if largest > region_bytes:
            raise ConfigError(
                f"{WHERE}.path: a block of this engine has {largest} bytes and a region of the pool {region_bytes}; "
                f"format it with --block-bytes {largest}"
            )
        space = self._opened.space(self._opened.rank, self._epoch)
        self._layers = {layer for parts in regions.values() for part in parts for layer in part.layers}
        self._transfer = self._transfer_of(space, regions, kv_caches, device)
        logger.info(
            "kvstore: %s open with %d blocks; blocks of %s bytes in %s, loaded %s; space %s",
            ", ".join(self._opened.config.path),
            self._opened.pool.stats()["blocks"],
            ", ".join(str(nbytes) for nbytes in sorted(set(self._block_bytes.values()))),
            _memory(self._transfer),
            "layer by layer" if self._opened.by_layer else "between steps",
            space.json,
        )

    def _transfer_of(
        self, space: Any, regions: dict[int, list[Region]], kv_caches: Any, device: int | None
    ) -> Transfer:
        config = self._opened.config
        options: dict[str, Any] = {
            "by_layer": self._opened.by_layer,
            "durable": config.durable,
            "deadline_ms": config.load_timeout_s * 1000 or None,
        }
        if device is None:
            return HostTransfer(space, regions, dict(kv_caches), **options)
        return DeviceTransfer(
            space,
            regions,
            dict(kv_caches),
            stream=lambda: compat.current_stream(device),
            extents_bytes=config.gpu_extents_bytes,
            **options,
        )

    def _cache(self) -> Transfer:
        if self._transfer is None:
            raise ConfigError("the KV cache is not registered")
        return self._transfer

    def _enter(self, epoch: str) -> None:
        if epoch != self._epoch:
            self._epoch = epoch
            self._cache().space = self._opened.space(self._opened.rank, epoch)

    # ---- a step ----

    @answers(lambda: None, "blocks are not waited for")
    def before_blocks_are_reused(self, meta: ConnectorMetadata) -> None:
        """The step may overwrite the blocks of some stores: these end first, those of this step too."""
        flushed = meta.jobs_to_flush or set()
        for job_id in flushed & meta.store_jobs.keys():
            self._store(job_id, meta.store_jobs.pop(job_id), meta)
        self._cache().wait(flushed)

    @answers(lambda: None, "loads are not started")
    def start_loads(self, meta: ConnectorMetadata) -> None:
        """Start the step's loads."""
        self._waited.clear()
        for job_id, job in meta.load_jobs.items():
            self.counts.add("load_jobs")
            if meta.by_layer:
                self._in_step.add(job_id)
            try:
                blocks = _blocks(job.src_spec, job.dst_spec)
                if not blocks:
                    raise ValueError(f"request {job.req_id} is to load, and no block is named")
                self._enter(meta.epoch)
                submit = self._cache().load_by_layer if meta.by_layer else self._cache().load
                submit(job_id, blocks)
                self._loads[job_id] = (job.req_id, blocks)
            except Exception as error:  # noqa: BLE001 - the engine goes on, whatever it is; told with its place
                self._trouble.tell("a load is refused", error)
                self._refused(job_id, job)

    def _refused(self, job_id: int, job: Any) -> None:
        """Nothing of a load was begun: the request is computed as if nothing were there."""
        self._over(job_id, job.req_id, list(job.src_spec.keys))
        if job_id in self._in_step:
            self._in_step.discard(job_id)
            self._invalid.update(int(number) for number in job.dst_spec.block_ids)
        else:
            self._results.failed_recving.add(job.req_id)

    @answers(lambda: None, "a layer is not waited for")
    def wait_for_layer(self, layer: str) -> None:
        """The forward pass comes to a layer."""
        if self._in_step:
            self._cache().wait_layer(layer)
            self._waited.add(layer)

    @answers(lambda: None, "blocks are not stored")
    def after_forward(self, meta: ConnectorMetadata) -> None:
        """The step's blocks are computed."""
        if self._in_step:
            self._end_loads_in_step()
        for job_id, job in meta.store_jobs.items():
            self._store(job_id, job, meta)

    def _end_loads_in_step(self) -> None:
        try:
            self._cache().wait(self._in_step)
            if self._layers <= self._waited:
                self._poll()
            else:
                # Attention was computed without asking, so it may have seen a block before it was loaded.
                self._trouble.tell("layers were not waited for, and are computed again", "no hook")
        except Exception as error:  # noqa: BLE001 - the engine goes on, whatever it is; told with its place
            self._trouble.tell("loads within a step did not end", error)
        for job_id in list(self._in_step):
            self._loaded(job_id, [False] * len(self._loads[job_id][1]))

    def _store(self, job_id: int, job: Any, meta: ConnectorMetadata) -> None:
        self.counts.add("store_jobs")
        # Until the scheduler has heard of a load that failed within a step, what it lets compute may come from there.
        if self._failures == meta.failures_seen:
            try:
                blocks = _blocks(job.dst_spec, job.src_spec)
                self._enter(meta.epoch)
                self._cache().store(job_id, blocks)
                self._stores[job_id] = blocks
                return
            except Exception as error:  # noqa: BLE001 - the engine goes on, whatever it is; told with its place
                self._trouble.tell("a store is refused", error)
        self.counts.add("blocks_not_stored", len(job.dst_spec.keys))
        self._meta.mark_completed(job_id)
        self._meta.not_stored_keys += job.dst_spec.keys

    # ---- what ended ----

    def _poll(self) -> None:
        for done in self._cache().poll():
            if done.tag in self._loads:
                for result in (result for result, good in zip(done.results, done.good, strict=True) if not good):
                    self._trouble.tell("a block is not loaded and will be computed again", _reason(result))
                self._loaded(done.tag, done.good)
            elif done.tag in self._stores:
                self._stored(done)

    def _loaded(self, job_id: int, good: list[bool]) -> None:
        request_id, blocks = self._loads.pop(job_id)
        bad = [block for block, is_good in zip(blocks, good, strict=True) if not is_good]
        self.counts.add("blocks_loaded", len(blocks) - len(bad))
        self.counts.add("bytes_loaded", self._bytes(blocks) - self._bytes(bad))
        self._over(job_id, request_id, [block.key for block in bad])
        in_step = job_id in self._in_step
        self._in_step.discard(job_id)
        if bad and self._many_groups and not in_step:
            # vLLM cannot tell of which group a number is.
            self._results.failed_recving.add(request_id)
        else:
            self._invalid.update(block.number for block in bad)

    def _over(self, job_id: int, request_id: str, bad: list[bytes]) -> None:
        """A load is over, without these blocks."""
        if job_id in self._in_step:
            self._failures += bool(bad)
        else:
            self._meta.mark_completed(job_id)
            self._results.finished_recving.add(request_id)
        if bad:
            self.counts.add("blocks_not_loaded", len(bad))
            self._failed.add(bad)
            self._meta.failed_keys += bad
            self._meta.failed_requests.append(request_id)

    def _stored(self, done: Done) -> None:
        blocks = self._stores.pop(done.tag)
        self._meta.mark_completed(done.tag)
        for block, result in zip(blocks, done.results, strict=True):
            if result.status == "stored":
                self.counts.add("blocks_stored")
                self.counts.add("bytes_stored", self._block_bytes[block.group])
                if block.key in self._failed:
                    self._failed.discard(block.key)
                    self._meta.mended_keys.append(block.key)
            elif result:
                self.counts.add("blocks_present")
            else:
                self.counts.add("blocks_not_stored")
                self._meta.not_stored_keys.append(block.key)
                self._trouble.tell("a block is not stored", _reason(result))

    def _bytes(self, blocks: list[Block]) -> int:
        return sum(self._block_bytes[block.group] for block in blocks)

    @answers(KVConnectorTransferResults, "what was loaded is not reported")
    def take_results(self) -> KVConnectorTransferResults:
        """The requests whose loads ended since the last call."""
        # With speculative decoding vLLM asks before it calls after_forward, and takes no word of this step later.
        if self._in_step:
            self._end_loads_in_step()
        self._poll()
        taken, self._results = self._results, KVConnectorTransferResults()
        return taken

    def take_invalid(self) -> set[int]:
        """The numbers of the blocks that were not loaded since the last call."""
        taken, self._invalid = self._invalid, set()
        return taken

    def take_meta(self) -> ConnectorWorkerMetadata | None:
        """What the scheduler is to know of the jobs that ended since the last call."""
        taken = self._meta
        if not (taken.completed_jobs or taken.failed_keys or taken.mended_keys):
            return None
        self._meta = ConnectorWorkerMetadata()
        taken.failures = self._failures
        return taken

    def status(self) -> dict[str, Any]:
        """The counts since the start, the trouble by kind, and the store's own numbers."""
        return {**self.counts.totals, "trouble": dict(self._trouble.counts), "pool": self._opened.pool.stats()}

    # ---- end ----

    @answers(lambda: None, "the connector is not shut down cleanly")
    def shutdown(self) -> None:
        """Wait for what is in flight, let go of the KV cache, undo the opening of the pool."""
        end = time.monotonic() + self._opened.config.close_timeout_s
        transfer, self._transfer = self._transfer, None
        if transfer is not None and not transfer.close(self._opened.config.close_timeout_s):
            logger.error("kvstore: jobs are still on the device, the KV cache's memory stays")
            _leaked.append(transfer)
        self._opened.close(max(0.0, end - time.monotonic()))


def _blocks(stored: Any, cached: Any) -> list[Block]:
    """The blocks of one job: ``stored`` is a :class:`Keys`, ``cached`` vLLM's numbers in the cache, in the same order.

    Raises
    ------
    ValueError : there are not as many of one as of the other.
    """
    places = zip(stored.parents, stored.depths, strict=True) if stored.parents else ((None, 0) for _ in stored.keys)
    return [
        Block(key, compat.group_of(key), int(number), parent, depth)
        for key, number, (parent, depth) in zip(stored.keys, cached.block_ids, places, strict=True)
    ]


def _memory(transfer: Transfer) -> str:
    """Where the KV cache is, for the log."""
    if not isinstance(transfer, DeviceTransfer):
        return "host memory"
    ways = ", ".join(sorted(set(transfer.ways.values())))
    return f"memory of GPU {transfer.device} ({ways}; {transfer.extents_bytes} bytes for extents)"


def _reason(result: Any) -> Any:
    return result.error or result.status
