# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Both halves of KVStoreConnector on vLLM's own classes without an engine: a KV cache in tensors, requests, steps."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import TransferJob
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.kv_offload.base import GPULoadStoreSpec
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from kvstore.vllm import KVStoreConnector
from kvstore.vllm.connector_scheduler import ConnectorMetadata, Keys

BLOCK_TOKENS = 16
BLOCKS = 32
HEADS, HEAD = 2, 64
LAYER_BYTES = BLOCK_TOKENS * HEADS * 2 * HEAD * 2  # keys and values, two bytes each
init_none_hash(sha256)
_SPEC = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=HEADS, head_size=HEAD, dtype=torch.bfloat16)


class Fields(SimpleNamespace):
    """Of a configuration; those that are not given are None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def vllm_config(settings: dict[str, Any], policy: str = "recompute", **parallel: Any) -> Any:
    sizes = dict.fromkeys(
        ("world_size", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "nnodes_within_dp"), 1
    )
    contexts = dict.fromkeys(("prefill_context_parallel_size", "decode_context_parallel_size"), 1)
    ranks = {"rank": 0, "data_parallel_index": 0, "data_parallel_rank_local": None}
    cache = {"cache_dtype": "auto", "kv_cache_layout": "LBHNC", "enable_prefix_caching": True}
    return Fields(
        kv_transfer_config=KVTransferConfig(
            kv_connector="KVStoreConnector",
            kv_connector_module_path="kvstore.vllm",
            kv_role="kv_both",
            engine_id="test",
            kv_load_failure_policy=policy,
            kv_connector_extra_config=settings,
        ),
        parallel_config=Fields(**{**sizes, **contexts, **ranks, "distributed_executor_backend": "uni", **parallel}),
        model_config=Fields(
            model="a/model",
            dtype=torch.bfloat16,
            use_mla=False,
            max_model_len=1024,
            get_total_num_kv_heads=lambda: HEADS,
        ),
        cache_config=Fields(**cache, block_size=BLOCK_TOKENS, prefix_cache_retention_interval=None),
        speculative_config=None,
        kv_events_config=None,
        use_v2_model_runner=False,
    )


def cache_config(groups: int) -> KVCacheConfig:
    """Of that many KV cache groups of two layers each."""
    names = [[f"layer.{2 * group}", f"layer.{2 * group + 1}"] for group in range(groups)]
    return KVCacheConfig(
        num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(one, _SPEC) for one in names]
    )


class FakeTensor:
    """As much of a CUDA tensor as says where a KV cache is; ``seen`` are its bytes as a kernel sees them."""

    def __init__(self, gpu: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> None:
        self.dtype, self.shape = torch.bfloat16, shape
        self.device = SimpleNamespace(type="cuda", index=0)
        like = torch.empty(shape, dtype=self.dtype)
        self._strides = strides or like.stride()
        self._array = gpu.array(like.view(torch.uint8).numpy())
        self.seen = torch.from_numpy(self._array.host_view()).view(self.dtype).view(shape)
        self.seen.zero_()

    def data_ptr(self) -> int:
        return int(self._array.pointer)

    def stride(self, dimension: int) -> int:
        return int(self._strides[dimension])


class Halves:
    """An engine's scheduler half and worker half, on one pool."""

    def __init__(self, path: str, groups: int = 1, gpu: Any = None, **settings: Any) -> None:
        config = vllm_config({"path": path, "revision": "r1", **settings})
        caches = cache_config(groups)
        self.worker: Any = KVStoreConnector(config, KVConnectorRole.WORKER, caches)
        self.scheduler: Any = KVStoreConnector(config, KVConnectorRole.SCHEDULER, caches)
        self.layers = [name for group in caches.kv_cache_groups for name in group.layer_names]
        shape = (BLOCKS, HEADS, BLOCK_TOKENS, 2 * HEAD)
        if gpu is None:
            self.cache: dict[str, Any] = {name: torch.zeros(shape, dtype=torch.bfloat16) for name in self.layers}
            self.worker.register_kv_caches(self.cache)
        else:
            on_gpu = {name: FakeTensor(gpu, shape) for name in self.layers}
            self.cache = {name: tensor.seen for name, tensor in on_gpu.items()}
            self.worker.register_kv_caches(on_gpu)
        self._jobs = itertools.count()

    def close(self) -> None:
        self.worker.shutdown()
        self.scheduler.shutdown()

    def fill(self, number: int) -> None:
        for place, tensor in enumerate(self.cache.values()):
            tensor[number] = number * 8 + place

    def bytes_of(self, number: int) -> list[bytes]:
        return [tensor[number].view(torch.uint8).numpy().tobytes() for tensor in self.cache.values()]

    def job(self, keys: list[bytes], numbers: list[int], *, is_load: bool) -> TransferJob:
        there, here = Keys(keys), GPULoadStoreSpec(numbers, group_sizes=[len(numbers)], block_indices=[0])
        return TransferJob("r", there, here) if is_load else TransferJob("r", here, there)

    def step(
        self,
        loads: tuple[list[bytes], list[int]] | None = None,
        stores: tuple[list[bytes], list[int]] | None = None,
        by_layer: bool = False,
        hooks: bool = True,
        asked_early: bool = False,
    ) -> Any:
        """One step of a worker; what it says at its end."""
        meta = ConnectorMetadata(
            {next(self._jobs): self.job(*loads, is_load=True)} if loads else {},
            {next(self._jobs): self.job(*stores, is_load=False)} if stores else {},
            by_layer=by_layer,
            failures_seen=self.scheduler._scheduler._failures_seen,
        )
        self.worker.handle_preemptions(meta)
        self.worker.bind_connector_metadata(meta)
        self.worker.start_load_kv(None)
        for layer in self.layers if hooks else ():
            self.worker.wait_for_layer_load(layer)
        if not asked_early:
            self.worker.wait_for_save()
            self.worker._worker._transfer.wait(range(1000))
        results = self.worker.get_transfer_results(set())
        output = KVConnectorOutput(
            finished_recving=results.finished_recving,
            failed_recving=results.failed_recving,
            invalid_block_ids=self.worker.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=self.worker.build_connector_worker_meta(),
        )
        if asked_early:
            self.worker.wait_for_save()
        self.worker.clear_connector_metadata()
        return output

    def tell(self, output: Any) -> None:
        """The scheduler hears of a step's failures; of its jobs, which it did not begin, it does not."""
        if output.kv_connector_worker_meta is not None:
            output.kv_connector_worker_meta.completed_jobs = {}
        self.scheduler.update_connector_output(output)


def request(blocks: int, tokens_more: int = 1, name: str = "r") -> Request:
    """Of that many whole blocks, and a few tokens."""
    return Request(
        request_id=name,
        prompt_token_ids=list(range(blocks * BLOCK_TOKENS + tokens_more)),
        sampling_params=SamplingParams(max_tokens=4),
        pooling_params=None,
        block_hasher=get_request_block_hasher(BLOCK_TOKENS, sha256),
    )


def allocated(numbers: list[int]) -> KVCacheBlocks:
    return KVCacheBlocks(([KVCacheBlock(number) for number in numbers],))


def empty_step() -> SchedulerOutput:
    return SchedulerOutput.make_empty()
