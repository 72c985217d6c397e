# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler's half of the connector: what is there, what is to be loaded and stored, and what did not come.

Which blocks of which KV cache group a request needs, and when a block that is being stored may be used again, is vLLM's
own offloading scheduler's work; here are the index that it asks, and what it has no notion of: loads that fail, and
loads within a step.

Guarantees: a lookup is answered from the index at once, or by the workers' word, where these are processes of their own
whose puts the index learns of later; a key whose load failed is a miss before its request is looked up again, which
would go on for ever otherwise.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
    TransferJob,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.v1.kv_offload.base import (
    GPULoadStoreSpec,
    LoadStoreSpec,
    LookupResult,
    OffloadingManager,
    OffloadingSpec,
    PrepareStoreOutput,
    RequestOffloadingContext,
    make_offload_key,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvstore.vllm import compat, metrics
from kvstore.vllm.chains import places
from kvstore.vllm.failed import FailedKeys
from kvstore.vllm.opened import Opened
from kvstore.vllm.told import ToldKeys
from kvstore.vllm.trouble import Trouble, answers


@dataclass
class Keys(LoadStoreSpec):
    """The blocks of one job, in the order of their numbers in the cache; of stores, with their places in chains."""

    keys: list[bytes]
    parents: list[bytes | None] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)


@dataclass
class ConnectorMetadata(OffloadingConnectorMetadata):
    """What a step's workers are to do."""

    epoch: str = ""
    by_layer: bool = False
    failures_seen: int = 0


@dataclass
class ConnectorWorkerMetadata(OffloadingWorkerMetadata):
    """What a worker's jobs came to.

    Parameters
    ----------
    failed_keys : blocks that could not be loaded.
    failed_requests : whose loads these were.
    mended_keys : such blocks of before, stored anew.
    not_stored_keys : of jobs that are complete, blocks that this worker did not store.
    failures : loads within a step that failed since the start.
    """

    failed_keys: list[bytes] = field(default_factory=list)
    failed_requests: list[str] = field(default_factory=list)
    mended_keys: list[bytes] = field(default_factory=list)
    not_stored_keys: list[bytes] = field(default_factory=list)
    failures: int = 0

    def aggregate(self, other: Any) -> ConnectorWorkerMetadata:
        both = super().aggregate(other)
        return ConnectorWorkerMetadata(
            both.completed_jobs,
            both.transfer_stats,
            failed_keys=[*self.failed_keys, *other.failed_keys],
            failed_requests=[*self.failed_requests, *other.failed_requests],
            mended_keys=[*self.mended_keys, *other.mended_keys],
            not_stored_keys=[*self.not_stored_keys, *other.not_stored_keys],
            failures=max(self.failures, other.failures),
        )


class IndexManager(OffloadingManager):
    """vLLM's view of the index: a block is there when the parts of all ranks are.

    Parameters
    ----------
    opened : the pool.
    block_tokens : of each KV cache group, by its number.
    loads, stores : whether the engine's role has them.
    """

    def __init__(self, opened: Opened, block_tokens: list[int], *, loads: bool, stores: bool) -> None:
        self._opened = opened
        self._block_tokens = block_tokens
        self._loads = loads
        self._stores = stores
        self._trouble = Trouble()
        self.counts = metrics.TierCounts()
        self.failed = FailedKeys()
        self.told = ToldKeys()
        self.epoch = ""
        self._spaces = self._spaces_of_ranks()

    def _spaces_of_ranks(self) -> list[Any]:
        return [self._opened.space(rank, self.epoch) for rank in self._opened.ranks]

    def _has(self, key: bytes) -> bool:
        if key in self.failed:
            return False
        if all(space.contains(key) for space in self._spaces):
            self.told.discard(key)  # from now on the index knows best
            return True
        return key in self.told

    @answers(lambda: LookupResult.MISS, "a lookup is a miss")
    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        if not self._loads:
            return LookupResult.MISS
        self.counts.add("lookups")
        if not self._has(key):
            return LookupResult.MISS
        self.counts.add("lookup_hits")
        return LookupResult.HIT

    def get_load_source(self, key: Any, req_context: Any) -> CacheHitSource:
        return CacheHitSource.DISK

    def prepare_load(self, keys: Collection[Any], req_context: Any) -> Keys:
        return Keys(list(keys))

    @answers(lambda: None, "blocks are not stored")
    def prepare_store(self, keys: Collection[Any], req_context: Any) -> PrepareStoreOutput:
        asked = list(dict.fromkeys(keys)) if self._stores else []
        wanted = [key for key in asked if not self._has(key)]
        self.counts.add("blocks_present", len(asked) - len(wanted))
        parents, depths = places(wanted, req_context, self._block_tokens)
        return PrepareStoreOutput(wanted, Keys(wanted, parents, depths), [])

    def complete_store(self, keys: Collection[Any], req_context: Any, success: bool = True) -> None:
        # In owner mode the index is the workers' own.
        if success and self._opened.config.mode == "shared":
            self.told.complete(keys)

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    @answers(lambda: None, "the cache is not reset")
    def reset_cache(self) -> None:
        # Whoever asks for it has changed what the model computes. What is stored from now on is right for this engine
        # only, and what was stored before for others.
        self.epoch = uuid.uuid4().hex
        self.told.clear()
        self._spaces = self._spaces_of_ranks()

    def get_stats(self) -> Any:
        return self.counts.take()

    def status(self) -> dict[str, Any]:
        """The counts since the start, and the trouble by kind."""
        return {**self.counts.totals, "trouble": dict(self._trouble.counts), "failed_keys": len(self.failed)}


class IndexSpec(OffloadingSpec):
    """What vLLM's offloading scheduler is built from."""

    def __init__(self, config: Any, manager: IndexManager | None = None) -> None:
        super().__init__(config)
        self._manager = manager

    def get_manager(self) -> Any:
        return self._manager

    def get_worker(self, kv_caches: Any) -> Any:
        raise NotImplementedError("the connector has a worker of its own")


class ConnectorScheduler:
    """The calls of vLLM's scheduler.

    Parameters
    ----------
    opened : the pool.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        vllm, kv_cache, offloading = opened.configs
        block_tokens = [0] * len(kv_cache.kv_cache_groups)
        for group in offloading.groups:
            block_tokens[group.group_id] = group.tokens_per_block
        transfer = vllm.kv_transfer_config
        self.manager = IndexManager(opened, block_tokens, loads=transfer.is_kv_consumer, stores=transfer.is_kv_producer)
        self.inner: Any = OffloadingConnectorScheduler(IndexSpec(offloading, self.manager), vllm, kv_cache)
        self._failures_seen = 0
        # Of loads within a step, which there are with one KV cache group only.
        self._group = offloading.groups[0]
        self._tokens_per_hash = offloading.cache.tokens_per_hash
        self._computed: dict[str, int] = {}
        self._loads_in_step: dict[int, TransferJob] = {}
        self._last_job = 0

    def matched_tokens(self, request: Any, computed: int, limit: int | None) -> tuple[int | None, bool]:
        """How many tokens can be loaded, and whether that is between steps."""
        if self._opened.by_layer:
            # The request runs in this step, and so must have a token to compute.
            rest = request.num_tokens - 1 - computed
            limit = rest if limit is None else min(limit, rest)
            limit -= limit % self._group.tokens_per_block
            self._computed[request.request_id] = computed
        tokens, between_steps = self.inner.get_num_new_matched_tokens(request, computed, max_num_new_tokens=limit)
        return tokens, between_steps and not self._opened.by_layer

    def allocated(self, request: Any, blocks: Any, tokens: int) -> None:
        """The blocks to load into are there."""
        if not self._opened.by_layer:
            self.inner.update_state_after_alloc(request, blocks, tokens)
            return
        if tokens == 0:
            return
        # For vLLM's offloading scheduler a request either loads or stores. This one does both, in one step.
        first = self._computed.pop(request.request_id) // self._group.tokens_per_block
        count = tokens // self._group.tokens_per_block
        numbers = blocks.get_block_ids()[self._group.group_id][first : first + count]
        keys = [self._key(request, number) for number in range(first, first + count)]
        self._last_job -= 1  # vLLM's own numbers are not negative
        self._loads_in_step[self._last_job] = TransferJob(
            request.request_id, Keys(keys), GPULoadStoreSpec(numbers, group_sizes=[count], block_indices=[first])
        )

    def _key(self, request: Any, number: int) -> bytes:
        """Of a request's block."""
        last_hash = (number + 1) * self._group.tokens_per_block // self._tokens_per_hash - 1
        return bytes(make_offload_key(request.block_hashes[last_hash], self._group.group_id))

    def metadata(self, scheduler_output: Any) -> ConnectorMetadata:
        """What the workers are to do in this step."""
        made = self.inner.build_connector_meta(scheduler_output)
        in_step, self._loads_in_step = self._loads_in_step, {}
        return ConnectorMetadata(
            made.load_jobs | in_step,
            made.store_jobs,
            made.jobs_to_flush,
            epoch=self.manager.epoch,
            by_layer=self._opened.by_layer,
            failures_seen=self._failures_seen,
        )

    def update(self, output: Any) -> None:
        """What the workers did."""
        meta = output.kv_connector_worker_meta
        if isinstance(meta, ConnectorWorkerMetadata):
            for key in meta.mended_keys:
                self.manager.failed.discard(key)
            self.manager.failed.add(meta.failed_keys)
            for key in meta.failed_keys:
                self.manager.told.discard(key)
            self.manager.told.not_stored(meta.not_stored_keys)
            self._failures_seen = max(self._failures_seen, meta.failures)
        self.inner.update_connector_output(output)
        for request_id in meta.failed_requests if isinstance(meta, ConnectorWorkerMetadata) else ():
            compat.store_again(self.inner, request_id)

    def finished(self, request: Any) -> None:
        """No more blocks of a request are computed. Those to be stored are before they are reused."""
        self._computed.pop(request.request_id, None)
        self.inner.request_finished(request)

    def shutdown(self) -> None:
        """Close this opening of the pool."""
        self.inner.shutdown()
        self._opened.close(self._opened.config.close_timeout_s)
