# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the storage plugin keeps the contract of LMCache's storage backends with memory of its own, on the host and in
a GPU's memory.

Method: LMCache's own launcher, storage manager and allocators; for a GPU memory of the fake one (tests/fakes) in a
tensor that nobody may touch, whose bytes are seen as a kernel sees them. ``bytes_bounced`` and ``bytes_direct``
tell which way they went.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gpu_direct_support import direct_environment, run_direct
from lmcache.utils import start_loop_in_thread_with_exceptions
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend import storage_plugin_launcher
from lmcache_engine import CHUNK, content, key_of, metadata, storage_config
from lmcache_helpers import eventually

from kvstore.errors import ConfigError
from kvstore.lmcache import KVStoreStorageBackend, compat


class Backend:
    """The storage plugin as LMCache makes it, on an event loop."""

    def __init__(self, path: str, gpu: Any, role: str = "worker", **fields: Any) -> None:
        self.gpu = gpu
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=start_loop_in_thread_with_exceptions, args=(self.loop,), daemon=True)
        self._thread.start()
        self.metadata = metadata(role=role)
        made: OrderedDict[str, Any] = OrderedDict()
        device = "cpu" if gpu is None else "cuda:0"
        storage_plugin_launcher(storage_config(path, **fields), self.metadata, self.loop, None, device, made)
        self.made: KVStoreStorageBackend = made["kvstore"]

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(20)

    def bytes_of(self, obj: Any) -> torch.Tensor:
        """The object's bytes, wherever they are."""
        address = obj.data_ptr if self.gpu is None else self.gpu.lib.fake_cuda_view(obj.data_ptr)
        return torch.from_numpy(np.frombuffer((ctypes.c_ubyte * obj.get_size()).from_address(address), dtype=np.uint8))

    def object_of(self, number: int, tokens: int = CHUNK) -> Any:
        """An object with content of its own, as LMCache copies it into this backend's memory."""
        obj = self.made.allocate(
            self.metadata.get_shapes(tokens)[0], self.metadata.get_dtypes()[0], MemoryFormat.KV_2LTD, busy_loop=False
        )
        assert obj is not None
        self.bytes_of(obj).copy_(content(number, obj.get_size()))
        return obj

    def put(self, numbers: list[int]) -> None:
        stored: list[Any] = []
        keys, objects = [key_of(number) for number in numbers], [self.object_of(number) for number in numbers]
        futures = self.made.batched_submit_put_task(keys, objects, on_complete_callback=stored.append)
        for obj in objects:
            obj.ref_count_down()  # as the storage manager does at once
        assert futures is not None
        for future in futures:
            future.result(20)
        assert stored == keys

    def right(self, obj: Any, number: int) -> bool:
        is_right = torch.equal(self.bytes_of(obj), content(number, obj.get_size()))
        obj.ref_count_down()
        return is_right

    def used_bytes(self) -> int:
        return int(self.made.get_memory_allocator().allocator.total_allocated_size)

    def close(self) -> None:
        self.made.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)


def buffers_of(gpu: Any) -> Callable[[int, str], torch.Tensor]:
    """What stands for ``compat.device_buffer``."""

    def buffer(nbytes: int, device: str) -> torch.Tensor:
        assert device == "cuda:0"
        array = gpu.array(np.zeros(nbytes, dtype=np.uint8))
        hidden = (ctypes.c_ubyte * nbytes).from_address(array.pointer)  # a touch of it is the end of the process
        return torch.from_numpy(np.frombuffer(hidden, dtype=np.uint8))

    return buffer


@pytest.fixture(params=["host", "gpu"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "host":
        return None
    gpu = request.getfixturevalue("gpu")
    monkeypatch.setattr(compat, "device_buffer", buffers_of(gpu))
    return gpu


@pytest.fixture
def make(memory: Any) -> Iterator[Callable[..., Backend]]:
    made: list[Backend] = []

    def one(path: str, **fields: Any) -> Backend:
        made.append(Backend(path, memory, **fields))
        return made[-1]

    yield one
    for backend in made:
        backend.close()


def test_objects_come_back_as_they_were_also_after_a_restart(make: Any, pool_path: str, memory: Any) -> None:
    first = make(pool_path)
    first.put([1, 2, 3])
    assert first.used_bytes() == 0
    first.made.close()
    second = make(pool_path)
    keys = [key_of(number) for number in (1, 2, 4, 3)]
    found = second.made.batched_get_blocking(keys)
    assert [obj is None for obj in found] == [False, False, True, False]
    assert [obj.get_shape() for obj in found if obj] == second.metadata.get_shapes(CHUNK) * 3
    nbytes = 3 * found[0].get_size()
    assert all(second.right(obj, number) for obj, number in zip(found, (1, 2, 4, 3), strict=True) if obj)
    assert second.used_bytes() == 0
    assert second.made._store.pool.stats()["bytes_bounced"] == (0 if memory is None else nbytes)


def test_what_cufile_reads_into_the_buffer_is_the_objects(tmp_path: Path, pool_path: str) -> None:
    told = run_direct(
        direct_environment(tmp_path),
        f"""
        import test_storage_backend as cases
        from kvstore.lmcache import compat
        compat.device_buffer = cases.buffers_of(gpu)
        backend = cases.Backend({pool_path!r}, gpu, settings={{"gpu_direct": "on"}})
        backend.put([1, 2])
        found = backend.made.batched_get_blocking([cases.key_of(number) for number in (1, 2)])
        nbytes = sum(obj.get_size() for obj in found)
        right = [backend.right(obj, number) for obj, number in zip(found, (1, 2))]
        stats = backend.made._store.pool.stats()
        backend.close()
        print(json.dumps([right, stats["gpu_direct"], stats["bytes_direct"] / nbytes, stats["bytes_bounced"] / nbytes]))
        """,
        Path(__file__).parent,
    )
    assert told == [[True, True], "GPU 0: direct", 1, 1]


def test_all_ways_to_ask_and_to_get(make: Any, pool_path: str) -> None:
    backend = make(pool_path)
    backend.put([1, 2, 4])
    made, keys = backend.made, [key_of(number) for number in (1, 2, 3, 4)]
    assert [made.contains(key) for key in keys] == [True, True, False, True]
    assert made.batched_contains(keys) == 2
    assert backend.run(made.batched_async_contains("lookup", keys, pin=True)) == 2
    assert made.get_blocking(keys[2]) is None
    assert backend.right(made.get_blocking(keys[3]), 4)
    prefix = backend.run(made.batched_get_non_blocking("lookup", keys))
    assert [backend.right(obj, number) for obj, number in zip(prefix, (1, 2), strict=True)] == [True, True]
    assert backend.used_bytes() == 0


def test_a_pinned_block_stays_until_it_is_let_go(make: Any, pool_path: str) -> None:
    backend = make(pool_path)
    backend.put([1])
    assert backend.made.pin(key_of(1))
    assert not backend.made.remove(key_of(1))
    assert backend.made.unpin(key_of(1))
    assert backend.made.unpin(key_of(2))
    assert backend.made.batched_remove([key_of(1), key_of(2)]) == 1
    assert not backend.made.contains(key_of(1))


def test_a_full_buffer_is_none_and_not_an_error(make: Any, pool_path: str) -> None:
    backend = make(pool_path, settings={"buffer_bytes": 256 << 10})
    backend.put([5])
    held = [backend.made.allocate(torch.Size([64 << 10]), torch.uint8, busy_loop=False) for _ in range(4)]
    assert None not in held
    assert backend.made.allocate(torch.Size([64 << 10]), torch.uint8, busy_loop=False) is None
    assert backend.made.batched_allocate(torch.Size([4096]), torch.uint8, 2, busy_loop=False) is None
    assert backend.made.get_blocking(key_of(5)) is None
    threading.Timer(0.15, held.pop().ref_count_down).start()
    waited = backend.made.allocate(torch.Size([64 << 10]), torch.uint8, busy_loop=True)
    assert waited is not None
    waited.ref_count_down()
    assert backend.right(backend.made.get_blocking(key_of(5)), 5)


def test_a_key_is_stored_once_at_a_time_and_its_object_held_until_then(make: Any, disk: Any) -> None:
    backend = make(disk.path)
    backend.put([1])
    obj = backend.object_of(2)
    disk._disk.fault("stuck", op="write", first_byte=disk._payload_offset, times=1)
    (future,) = backend.made.batched_submit_put_task([key_of(2)], [obj])
    assert backend.made.batched_submit_put_task([key_of(2)], [obj]) is None
    assert backend.made.exists_in_put_tasks(key_of(2))
    obj.ref_count_down()
    assert backend.used_bytes() > 0
    disk.let_go()
    future.result(20)
    assert not backend.made.exists_in_put_tasks(key_of(2))
    assert backend.used_bytes() == 0


def test_an_object_is_held_before_the_event_loop_comes_to_it(make: Any, pool_path: str) -> None:
    backend = make(pool_path)
    obj, goes_on = backend.object_of(1), threading.Event()
    backend.loop.call_soon_threadsafe(goes_on.wait, 20)
    (future,) = backend.made.batched_submit_put_task([key_of(1)], [obj])
    obj.ref_count_down()
    assert backend.used_bytes() > 0
    goes_on.set()
    future.result(20)
    assert backend.used_bytes() == 0
    assert backend.right(backend.made.get_blocking(key_of(1)), 1)


def test_what_cannot_be_read_is_none_and_its_memory_goes_back(make: Any, disk: Any) -> None:
    backend = make(disk.path)
    backend.put([1, 2])
    pool = backend.made._store.pool
    bad = min(block.key for block in pool.blocks()) if pool.flush() is None else b""
    disk.refuse(pool, lambda key: key == bad)
    found = backend.made.batched_get_blocking([key_of(1), key_of(2)])
    assert sorted(obj is None for obj in found) == [False, True]
    for obj in found:
        if obj is not None:
            obj.ref_count_down()
    assert backend.used_bytes() == 0


def test_a_load_that_is_late_is_none_and_its_memory_goes_back_when_the_device_is_done(make: Any, disk: Any) -> None:
    backend = make(disk.path, settings={"load_timeout_s": 0.1})
    backend.put([1])
    disk.hold(backend.made._store.pool)
    assert backend.made.get_blocking(key_of(1)) is None
    assert backend.used_bytes() > 0
    disk.let_go()
    eventually(lambda: backend.used_bytes() == 0)


def test_what_does_not_fit_the_engines_layout_is_not_stored(make: Any, pool_path: str) -> None:
    backend = make(pool_path)
    obj = backend.made.allocate(torch.Size([64]), torch.uint8, MemoryFormat.BINARY)
    stored: list[Any] = []
    (future,) = backend.made.batched_submit_put_task([key_of(1)], [obj], on_complete_callback=stored.append)
    future.result(20)
    obj.ref_count_down()
    assert not stored
    assert not backend.made.contains(key_of(1))
    assert backend.used_bytes() == 0


def test_the_schedulers_part_asks_and_has_no_memory(make: Any, pool_path: str) -> None:
    worker = make(pool_path)
    worker.put([1])
    worker.made.close()
    scheduler = make(pool_path, role="scheduler")
    assert scheduler.made.contains(key_of(1))
    with pytest.raises(ConfigError, match="has no memory"):
        scheduler.made.get_memory_allocator()


def test_after_its_end_everything_is_a_miss(make: Any, pool_path: str) -> None:
    backend = make(pool_path)
    backend.put([1])
    obj = backend.object_of(2)
    backend.made.close()
    assert not backend.made.contains(key_of(1))
    assert backend.made.get_blocking(key_of(1)) is None
    (future,) = backend.made.batched_submit_put_task([key_of(2)], [obj])
    future.result(20)
    obj.ref_count_down()
    assert backend.used_bytes() == 0
    assert not backend.made.unpin(key_of(1))
    assert not backend.made.remove(key_of(1))


def test_the_chunk_budget_is_what_the_buffer_holds(make: Any, pool_path: str) -> None:
    backend = make(pool_path)
    size = backend.object_of(1).get_size()
    assert backend.made.calculate_chunk_budget() == (8 << 20) // (-(-size // 4096) * 4096)


def test_settings_that_cannot_be_are_refused_by_name(pool_path: str) -> None:
    def make(**fields: Any) -> Any:
        made = storage_config(pool_path, **fields)
        return KVStoreStorageBackend(config=made, metadata=metadata(), loop=SimpleNamespace())

    with pytest.raises(ConfigError, match="local_cpu must be false"):
        make(local_cpu=True)
    with pytest.raises(ConfigError, match=r"storage_plugin\.kvstore\.buffer_bytes must be a whole number"):
        make(settings={"buffer_bytes": 1})
    with pytest.raises(ConfigError, match=r"storage_plugin\.kvstore\.nothing: no such setting"):
        make(settings={"nothing": 1})
    made = storage_config(pool_path)
    made.extra_config["storage_plugin.other.class_name"] = "KVStoreStorageBackend"
    with pytest.raises(ConfigError, match="has 2"):
        KVStoreStorageBackend(config=made, metadata=metadata(), loop=SimpleNamespace())
