# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""KVStoreConnector: a kvstore pool straight behind the engine's KV cache, without a tier in between.

vLLM builds it once for its scheduler and once for each worker; this class passes on the calls of each to its half.

Guarantees: no call raises into the engine after the start; what is wrong at the start is one sentence at ERROR level,
and the engine does not start, rather than serve without a cache; what is reported as loaded is what was stored.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import get_offloading_group_ids
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvstore.errors import KvStoreError
from kvstore.vllm import compat, metrics
from kvstore.vllm.connector_scheduler import ConnectorScheduler
from kvstore.vllm.connector_worker import ConnectorWorker
from kvstore.vllm.opened import Configs, Opened

logger = compat.logger()


class KVStoreConnector(KVConnectorBase_V1, SupportsHMA):
    """vLLM's connector that keeps the blocks of the KV cache in a kvstore pool.

    Parameters
    ----------
    vllm_config, role, kv_cache_config : vLLM's. The settings are in ``kv_connector_extra_config``, see
        :class:`kvstore.vllm.config.ConnectorConfig`.

    Raises
    ------
    ConfigError : a bad setting, or an engine that this cannot serve; the message names it.
    KvStoreError : the pool cannot be opened; the message says why and, for a pool in use, by whom.
    """

    _cache_hit_source = CacheHitSource.DISK

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._scheduler: Any = None
        self._worker: Any = None
        try:
            opened = Opened(Configs.of(vllm_config, kv_cache_config))
            if role == KVConnectorRole.SCHEDULER:
                self._scheduler = ConnectorScheduler(opened)
            else:
                self._worker = ConnectorWorker(opened)
        except KvStoreError as error:
            logger.error("kvstore: KVStoreConnector cannot start: %s", error)
            raise

    @property
    def requires_kv_delivery(self) -> bool:
        """No: a block that is not stored is a miss some day."""
        return False

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Each block of each layer in one piece; of those layouts the one all of vLLM's backends for GPUs have."""
        return "LBHNC"

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Whether a forward pass must come by :meth:`wait_for_layer_load`, which a whole CUDA graph does not."""
        return str(extra_config.get("layerwise", False)).lower() == "true"

    # ---- scheduler ----

    def on_new_request(self, request: Any) -> None:
        self._scheduler.inner.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        limit = self._limit(request, num_computed_tokens)
        matched: tuple[int | None, bool] = self._scheduler.matched_tokens(request, num_computed_tokens, limit)
        return matched

    @cached_property
    def _groups_left_out(self) -> tuple[int, ...]:
        kept = set(get_offloading_group_ids(self._kv_cache_config))
        groups = self._kv_cache_config.kv_cache_groups
        return tuple(
            number for number, group in enumerate(groups) if group.kv_cache_spec.prefix_cacheable and number not in kept
        )

    def _limit(self, request: Any, computed: int) -> int | None:
        """How many tokens may be loaded: no more than groups that are not stored have, whose blocks nobody fills."""
        if not self._groups_left_out or self._kv_cache_manager is None:
            return None
        coordinator: Any = self._kv_cache_manager.coordinator
        _, hits = coordinator.find_longest_cache_hit_per_group(request.block_hashes, request.num_tokens - 1)
        deepest = min(int(hits[number]) for number in self._groups_left_out)
        return max(0, deepest - computed)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[CacheHitSource, int]:
        return dict(self._scheduler.inner.get_external_cache_hit_sources(request, num_external_tokens))

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return self._scheduler.metadata(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        self._scheduler.update(connector_output)

    def has_pending_push_work(self) -> bool:
        return bool(self._scheduler.inner.has_pending_push_work())

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.finished(request)
        return False, None

    def reset_cache(self) -> bool | None:
        """From now on nothing of before is found by this engine. The pool keeps it for others."""
        self._scheduler.inner.reset_cache()
        return True

    # ---- worker ----

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        try:
            self._worker.register(kv_caches)
        except KvStoreError as error:
            logger.error("kvstore: KVStoreConnector cannot start: %s", error)
            raise

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        self._worker.before_blocks_are_reused(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._worker.start_loads(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        self._worker.wait_for_layer(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: a block is stored with all its layers, once they are computed."""

    def wait_for_save(self) -> None:
        self._worker.after_forward(self._get_connector_metadata())

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        return self._worker.take_results()

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set(self._worker.take_invalid())

    def build_connector_worker_meta(self) -> Any:
        return self._worker.take_meta()

    # ---- both ----

    def get_kv_connector_stats(self) -> Any:
        if self._scheduler is not None:
            return self._scheduler.inner.get_stats()
        return self._worker.counts.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        return OffloadingConnectorStats(data=data) if data is not None else OffloadingConnectorStats()

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> Any:
        return metrics.ConnectorPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def report_status(self) -> dict[str, Any]:
        """Return the counts of this role since its start, its trouble by kind, and the store's own numbers."""
        half = self._scheduler.manager if self._scheduler is not None else self._worker
        return dict(half.status())

    def shutdown(self) -> None:
        half = self._scheduler if self._scheduler is not None else self._worker
        if half is not None:
            half.shutdown()
