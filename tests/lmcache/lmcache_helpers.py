# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What several LMCache test files need: keys, memory objects, waiting on event fds the way LMCache does."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.internal_api import L2AdapterListener
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform import consume_fd

EMPTY_LAYOUT = {0: MemoryLayoutDesc(shapes=[], dtypes=[])}
FLOATS = 16384  # of a memory object, 64 KiB


def object_key(
    number: int, *, salt: str = "", model: str = "test/model", kv_rank: int = 0, group: int = 0
) -> ObjectKey:
    return ObjectKey(number.to_bytes(32, "big"), model, kv_rank, group, salt)


def memory_obj(fill: float = 0.0, floats: int = FLOATS) -> TensorMemoryObj:
    raw = torch.full((floats,), fill, dtype=torch.float32)
    metadata = MemoryObjMetadata(torch.Size([floats]), torch.float32, 0, floats * 4, 1, fmt=MemoryFormat.KV_2LTD)
    return TensorMemoryObj(raw, metadata, parent_allocator=None)


def fill_of(obj: Any) -> float:
    """Return the one value an object is filled with."""
    values = obj.raw_data.view(torch.float32).unique()
    assert values.numel() == 1
    return float(values[0])


def wait_fd(fd: int, timeout_s: float = 10.0) -> bool:
    """Wait for an event fd and consume it, as LMCache's controllers do."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    if not poller.poll(timeout_s * 1000):
        return False
    consume_fd(fd)
    return True


def eventually(condition: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """Wait until ``condition`` is true and return it."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
    return value


def store(adapter: Any, keys: Sequence[ObjectKey], objects: Sequence[Any]) -> Any:
    """Store and return the task's ``L2StoreResult``."""
    task = adapter.submit_store_task(list(keys), list(objects))
    results: dict[int, Any] = {}
    while task not in results:
        assert wait_fd(adapter.get_store_event_fd())
        results.update(adapter.pop_completed_store_tasks())
    return results[task]


def lookup(adapter: Any, keys: Sequence[ObjectKey]) -> list[int]:
    """Look up and lock; return the positions found."""
    task = adapter.submit_lookup_and_lock_task(list(keys), EMPTY_LAYOUT)
    assert wait_fd(adapter.get_lookup_and_lock_event_fd())
    return list(adapter.query_lookup_and_lock_result(task).get_indices_list())


def finish_load(adapter: Any, task: int) -> list[int]:
    """Wait for a load and return the positions loaded."""
    while (bitmap := adapter.query_load_result(task)) is None:
        assert wait_fd(adapter.get_load_event_fd(), 30.0)
    return list(bitmap.get_indices_list())


def load(adapter: Any, keys: Sequence[ObjectKey], objects: Sequence[Any]) -> list[int]:
    return finish_load(adapter, adapter.submit_load_task(list(keys), list(objects)))


def present(adapter: Any, keys: Sequence[ObjectKey]) -> list[int]:
    """Return the positions that are there, leaving no lock."""
    found = lookup(adapter, keys)
    adapter.submit_unlock([keys[i] for i in found])
    return found


class Listener(L2AdapterListener):
    """Records what LMCache is told."""

    def __init__(self) -> None:
        self.stored: dict[ObjectKey, int] = {}
        self.stored_calls = 0
        self.accessed: list[ObjectKey] = []
        self.deleted: list[ObjectKey] = []

    def on_l2_keys_stored(self, keys: list[ObjectKey], sizes: list[int]) -> None:
        self.stored_calls += 1
        self.stored.update(zip(keys, sizes, strict=True))

    def on_l2_keys_accessed(self, keys: list[ObjectKey]) -> None:
        self.accessed += keys

    def on_l2_keys_deleted(self, keys: list[ObjectKey]) -> None:
        self.deleted += keys
        for key in keys:
            self.stored.pop(key, None)
