# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""LMCache's real multiprocess storage manager, with its store and prefetch controllers, on a kvstore L2."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import torch
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.l2_adapters.config import add_l2_adapters_args, parse_args_to_l2_adapters_config
from lmcache.v1.distributed.storage_manager import StorageManager
from lmcache_helpers import eventually

LAYOUT = MemoryLayoutDesc(shapes=[torch.Size([2, 4, 16, 512])], dtypes=[torch.bfloat16])  # 128 KiB
NBYTES = 128 << 10


def spec(path: str, eviction: dict[str, Any] | None = None, **params: Any) -> str:
    """Return what a user gives ``--l2-adapter``."""
    fields: dict[str, Any] = {
        "type": "plugin",
        "module_path": "kvstore.lmcache",
        "class_name": "KVStoreL2Adapter",
        "adapter_params": {"path": path, **params},
    }
    if eviction:
        fields["eviction"] = eviction
    return json.dumps(fields)


def l2_config(*specs: str) -> Any:
    """Parse specs the way ``lmcache server`` does."""
    parser = add_l2_adapters_args(argparse.ArgumentParser())
    return parse_args_to_l2_adapters_config(
        parser.parse_args([word for text in specs for word in ("--l2-adapter", text)])
    )


def manager(*specs: str, l1_bytes: int = 32 << 20) -> StorageManager:
    return StorageManager(
        StorageManagerConfig(
            l1_manager_config=L1ManagerConfig(
                memory_config=L1MemoryManagerConfig(
                    size_in_bytes=l1_bytes, use_lazy=False, align_bytes=4096, shm_name=""
                )
            ),
            eviction_config=EvictionConfig(eviction_policy="noop"),
            l2_adapter_config=l2_config(*specs),
            store_policy="skip_l1",
        )
    )


def adapter_of(storage: StorageManager) -> Any:
    return storage.l2_adapters()[0][1]


def pattern(key: ObjectKey) -> torch.Tensor:
    """Return the content every test gives the object of ``key``."""
    generator = torch.Generator().manual_seed(int.from_bytes(key.chunk_hash[-6:], "big") + key.kv_rank)
    return torch.randint(0, 256, (NBYTES,), dtype=torch.uint8, generator=generator)


def put(storage: StorageManager, keys: Sequence[ObjectKey]) -> None:
    """Store objects through L1 and wait until they are in L2 and out of L1."""
    objects = storage.reserve_write(list(keys), LAYOUT)
    for key, obj in objects.items():
        obj.raw_data[:NBYTES].copy_(pattern(key))
    storage.finish_write(list(objects))
    listed: set[ObjectKey] = set()

    def stored() -> bool:
        listed.update(key for key in keys if key not in listed and key in l2_keys(storage))
        return len(listed) == len(keys) and storage.get_l1_usage()[0] == 0

    eventually(stored)


def l2_keys(storage: StorageManager) -> set[ObjectKey]:
    """List all keys of the L2, page by page."""
    keys: set[ObjectKey] = set()
    cursor = None
    while True:
        page = adapter_of(storage).list_l2_keys(cursor=cursor)
        keys |= {entry.key.to_object_key() for entry in page.entries}
        cursor = page.next_page_token
        if cursor is None:
            return keys


def submit(storage: StorageManager, keys: Sequence[ObjectKey]) -> Any:
    group = GroupedObjectKeys(keys=list(keys), object_group_id=0, layout_desc=LAYOUT)
    return storage.submit_prefetch_task(PrefetchTaskSpec(key_groups=[group]))


def wait(storage: StorageManager, handle: Any, timeout_s: float = 20.0) -> Any:
    return eventually(lambda: storage.query_prefetch_status(handle), timeout_s)


def fetch(storage: StorageManager, keys: Sequence[ObjectKey]) -> int:
    """Prefetch, compare every byte that is a hit, give everything back; return the length of the hit."""
    result = wait(storage, submit(storage, keys))
    hit = result.l1_hit_count + result.l2_hit_count
    if hit:
        with storage.read_prefetched_results(list(keys[:hit])) as objects:
            assert objects is not None
            for key, obj in zip(keys, objects, strict=False):
                assert torch.equal(obj.raw_data[:NBYTES], pattern(key))
        storage.finish_read_prefetched(list(keys[:hit]))
    return int(hit)


def assert_nothing_leaks(storage: StorageManager) -> None:
    """No lock, pin, buffer or unfinished task is left, and the adapter says it is well."""
    adapter = adapter_of(storage)
    eventually(lambda: adapter.report_status()["withheld_bytes"] == 0)
    status = eventually(
        lambda: (
            (status := adapter.report_status())
            and status["load_inflight_task_count"] == status["store_inflight_task_count"] == 0
            and status
        )
    )
    assert status["is_healthy"]
    assert status["locked_key_count"] == 0
    assert status["completed_load_task_count"] == 0
    eventually(lambda: storage.get_l1_usage()[0] == 0)
    assert storage.memcheck()
    assert storage.report_status()["prefetch_controller"]["in_flight_request_count"] == 0
