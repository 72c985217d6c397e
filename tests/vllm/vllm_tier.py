# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A tier on vLLM's own classes without an engine: the memory of a CPU tier, requests with positions, and jobs."""

from __future__ import annotations

import itertools
import mmap
from types import SimpleNamespace
from typing import Any

import numpy as np
from vllm.v1.kv_offload.base import OffloadKey, ReqContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob

from kvstore.vllm import KVStoreTier

ROW_BYTES = 64 << 10
ROWS = 32
CHUNK_TOKENS = 64


def offloading_config(**changed: Any) -> OffloadingConfig:
    """Of one engine; ``changed`` are fields of it or of its parts, by name."""
    model = {"name": "a/model", "dtype": "bfloat16"}
    cache = {"tokens_per_hash": 16, "blocks_per_chunk": 4}
    parallel = {
        "rank": 0,
        "world_size": 1,
        "tp_size": 1,
        "pp_size": 1,
        "pcp_size": 1,
        "dcp_size": 1,
        "data_parallel_index": 0,
        "data_parallel_size": 1,
        "data_parallel_rank_local": None,
        "is_parallelism_agnostic": False,
    }
    for part in (model, cache, parallel):
        part.update({name: changed.pop(name) for name in list(changed) if name in part})
    whole = {
        "groups": (OffloadingGroupConfig(16, ("layer.0", "layer.1"), 0),),
        "worker_kv_bytes_per_block": ROW_BYTES // 4,
        "enable_kv_cache_events": True,
        "extra_config": {},
        "engine_id": "test",
        "kv_cache_layout": "LBHNC",
        **changed,
    }
    return OffloadingConfig(
        model=OffloadingModelConfig(**model),
        cache=OffloadingCacheConfig(**cache),
        parallel=OffloadingParallelConfig(**parallel),
        **whole,
    )


def offloading_spec(config: OffloadingConfig) -> Any:
    return SimpleNamespace(
        config=config,
        blocks_per_chunk=config.cache.blocks_per_chunk,
        tokens_per_block=tuple(group.tokens_per_block for group in config.groups),
        kv_events_config=SimpleNamespace(enable_kv_cache_events=config.enable_kv_cache_events),
    )


def key(number: int, group: int = 0) -> OffloadKey:
    return make_offload_key(number.to_bytes(32, "big"), group)


def request(keys: list[OffloadKey], req_id: str = "r") -> ReqContext:
    """A request whose chunks have these keys, in order."""
    context = ReqContext(req_id)
    for number, one in enumerate(keys, start=1):
        context.set_offload_key_position(one, number * CHUNK_TOKENS)
    return context


class Tier:
    """A KVStoreTier with the rows it moves."""

    def __init__(
        self, path: str, config: OffloadingConfig | None = None, row_bytes: int = ROW_BYTES, **settings: Any
    ) -> None:
        self._memory = mmap.mmap(-1, ROWS * row_bytes)
        self.rows = np.frombuffer(self._memory, dtype=np.uint8).reshape(ROWS, row_bytes)
        self.view = memoryview(self.rows)
        self._job_ids = itertools.count()
        spec = offloading_spec(config or offloading_config())
        self.tier = KVStoreTier(spec, self.view, "KVStoreTier", path=path, **{"revision": "r1", **settings})

    def fill(self, row: int, seed: int) -> bytes:
        self.rows[row] = np.random.default_rng(seed).integers(0, 256, ROW_BYTES, dtype=np.uint8)
        return self.rows[row].tobytes()

    def job(self, keys: list[OffloadKey], rows: list[int], context: ReqContext, *, is_load: bool) -> TransferJob:
        return TransferJob(next(self._job_ids), keys, np.array(rows, dtype=np.int32), is_load, context)

    def store(self, keys: list[OffloadKey], rows: list[int], context: ReqContext | None = None) -> JobResult:
        self.tier.submit_store(self.job(keys, rows, context or request(keys), is_load=False))
        return self.finish()

    def load(self, keys: list[OffloadKey], rows: list[int]) -> JobResult:
        self.tier.submit_load(self.job(keys, rows, request(keys), is_load=True))
        return self.finish()

    def finish(self) -> JobResult:
        """The result of the only job there is."""
        self.tier.drain_jobs()
        (result,) = self.tier.get_finished_jobs()
        return result
