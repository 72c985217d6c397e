# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""LMCache's in-process classes on a kvstore connector: a remote backend with its CPU backend and event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lmcache.utils import CacheEngineKey, start_loop_in_thread_with_exceptions
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_allocators.mixed_memory_allocator import MixedMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.remote_backend import RemoteBackend

LAYERS, HEADS, HEAD, CHUNK = 4, 2, 64, 16
CPU_BYTES = 64 << 20


class Groups:
    """Stands in for LMCache's KVLayerGroupsManager, which needs the KV tensors of a serving engine."""

    class Group:
        def __init__(self, layers: int, hidden: int, dtype: torch.dtype, kv_size: int) -> None:
            self.num_layers, self.hidden_dim_size, self.dtype = layers, hidden, dtype
            self.shape_desc = type("Shape", (), {"kv_size": kv_size})()

    def __init__(self, *groups: tuple[int, int, torch.dtype, int]) -> None:
        self.kernel_groups = [self.Group(*group) for group in groups]
        self.num_kernel_groups = len(groups)


GROUPS = {
    1: None,
    2: Groups((3, 128, torch.bfloat16, 2), (1, 64, torch.float32, 2)),
    4: Groups(
        *((1, 64 * (i + 1), [torch.bfloat16, torch.float16, torch.uint8, torch.float32][i], 2) for i in range(4))
    ),
}


def metadata(*, mla: bool = False, groups: int = 1, **fields: Any) -> LMCacheMetadata:
    shape = (LAYERS, 1, CHUNK, 1, 576) if mla else (LAYERS, 2, CHUNK, HEADS, HEAD)
    defaults: dict[str, Any] = {
        "model_name": "test/model",
        "world_size": 1,
        "local_world_size": 1,
        "worker_id": 0,
        "local_worker_id": 0,
        "kv_dtype": torch.bfloat16,
        "kv_shape": shape,
        "use_mla": mla,
        "chunk_size": CHUNK,
        "kv_layer_groups_manager": GROUPS[groups],
    }
    return LMCacheMetadata(**{**defaults, **fields})


def config(path: str, name: str = "kvstore", settings: dict[str, Any] | None = None, **fields: Any) -> Any:
    made = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK,
        local_cpu=False,
        max_local_cpu_size=0.1,
        remote_storage_plugins=[name],
        remote_serde="naive",
        lmcache_instance_id="kvstore-test",
        **fields,
    )
    prefix = f"remote_storage_plugin.{name}."
    made.extra_config = {
        prefix + "module_path": "kvstore.lmcache",
        prefix + "class_name": "KVStoreConnectorAdapter",
        prefix + "path": path,
        **{prefix + key: value for key, value in (settings or {}).items()},
        **(made.extra_config or {}),
    }
    return made


def storage_config(path: str, settings: dict[str, Any] | None = None, **fields: Any) -> Any:
    """With kvstore as a storage plugin."""
    made = LMCacheEngineConfig.from_defaults(
        **{
            "chunk_size": CHUNK,
            "local_cpu": False,
            "max_local_cpu_size": 0.1,
            "storage_plugins": ["kvstore"],
            "lmcache_instance_id": "kvstore-test",
            **fields,
        }
    )
    prefix = "storage_plugin.kvstore."
    made.extra_config = {
        prefix + "module_path": "kvstore.lmcache",
        prefix + "class_name": "KVStoreStorageBackend",
        prefix + "path": path,
        prefix + "buffer_bytes": 8 << 20,
        **{prefix + key: value for key, value in (settings or {}).items()},
    }
    return made


class Engine:
    """A remote backend and what it needs; the tests' view of LMCache's in-process mode."""

    def __init__(self, made: Any, meta: LMCacheMetadata, plugin_name: str | None = "kvstore") -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=start_loop_in_thread_with_exceptions, args=(self.loop,), daemon=True)
        self._thread.start()
        self.metadata = meta
        self.allocator = MixedMemoryAllocator(CPU_BYTES)
        self.cpu = LocalCPUBackend(made, meta, memory_allocator=self.allocator)
        self.backend = RemoteBackend(made, meta, self.loop, self.cpu, "cpu", plugin_name=plugin_name)

    @property
    def connector(self) -> Any:
        return self.backend.connection.getWrappedConnector()

    def run(self, coroutine: Any, timeout_s: float = 20.0) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def object_of(self, number: int, tokens: int = CHUNK) -> Any:
        """Allocate an object as the engine would, with content of its own."""
        layout = MemoryFormat.KV_MLA_FMT if self.metadata.use_mla else MemoryFormat.KV_2LTD
        obj = self.cpu.allocate(self.metadata.get_shapes(tokens), self.metadata.get_dtypes(), layout)
        obj.raw_data[: obj.get_size()].copy_(content(number, obj.get_size()))
        return obj

    def put(self, keys: Sequence[CacheEngineKey], objects: Sequence[Any]) -> None:
        """Store and wait, then drop the references, as LMCache's storage manager does."""
        done = threading.Semaphore(0)
        self.backend.batched_submit_put_task(keys, list(objects), on_complete_callback=lambda key: done.release())
        for _ in keys:
            assert done.acquire(timeout=20)
        for obj in objects:
            obj.ref_count_down()

    def used_bytes(self) -> int:
        return int(self.allocator.pin_allocator.address_manager.total_allocated_size)

    def close(self) -> None:
        self.backend.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.allocator.close()


def content(number: int, nbytes: int) -> torch.Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(number))


def bytes_of(obj: Any) -> torch.Tensor:
    return obj.raw_data[: obj.get_size()].view(torch.uint8)


def key_of(number: int, *, model: str = "test/model", worker: int = 0, world: int = 1, **fields: Any) -> CacheEngineKey:
    return CacheEngineKey(model, world, worker, fields.pop("chunk_hash", -(10**18) + number), torch.bfloat16, **fields)


@contextmanager
def engine(path: str, meta: LMCacheMetadata | None = None, **fields: Any) -> Iterator[Engine]:
    made = Engine(config(path, **fields), meta or metadata(), fields.get("name", "kvstore"))
    try:
        yield made
    finally:
        made.close()
