# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: KVStoreL2Adapter keeps the contract of LMCache's L2AdapterInterface.

Method: the adapter alone, driven through its public methods and event fds as LMCache's two controllers drive it.
"""

from __future__ import annotations

import threading

import pytest
import torch
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache_helpers import (
    FLOATS,
    Listener,
    eventually,
    fill_of,
    finish_load,
    load,
    lookup,
    memory_obj,
    object_key,
    present,
    store,
    wait_fd,
)

NBYTES = FLOATS * 4


def test_is_an_l2_adapter_with_three_distinct_event_fds(adapter):
    fds = [adapter.get_store_event_fd(), adapter.get_lookup_and_lock_event_fd(), adapter.get_load_event_fd()]
    assert isinstance(adapter, L2AdapterInterface)
    assert len(set(fds)) == 3
    assert min(fds) >= 0


def test_store_lookup_load_gives_back_the_bytes(adapter):
    keys = [object_key(i) for i in range(3)]
    result = store(adapter, [keys[0], keys[2]], [memory_obj(1.0), memory_obj(3.0)])
    assert result.is_successful()
    assert result.bytes_transferred() == 2 * NBYTES
    assert lookup(adapter, keys) == [0, 2]
    buffers = [memory_obj(-1.0) for _ in keys]
    assert load(adapter, keys, buffers) == [0, 2]
    assert [fill_of(buffer) for buffer in buffers] == [1.0, -1.0, 3.0]
    adapter.submit_unlock(keys)


def test_results_are_given_once(adapter):
    key = object_key(1)
    task = adapter.submit_store_task([key], [memory_obj(1.0)])
    assert wait_fd(adapter.get_store_event_fd())
    assert list(adapter.pop_completed_store_tasks()) == [task]
    assert adapter.pop_completed_store_tasks() == {}
    lookup_task = adapter.submit_lookup_and_lock_task([key], {})
    assert adapter.query_lookup_and_lock_result(lookup_task) is not None
    assert adapter.query_lookup_and_lock_result(lookup_task) is None
    load_task = adapter.submit_load_task([key], [memory_obj()])
    assert finish_load(adapter, load_task) == [0]
    assert adapter.query_load_result(load_task) is None


def test_unknown_tasks_have_no_result(adapter):
    assert adapter.query_lookup_and_lock_result(12345) is None
    assert adapter.query_load_result(12345) is None


def test_task_ids_are_unique(adapter):
    tasks = [adapter.submit_store_task([object_key(i)], [memory_obj(float(i))]) for i in range(5)]
    tasks += [adapter.submit_lookup_and_lock_task([object_key(i)], {}) for i in range(5)]
    tasks += [adapter.submit_load_task([object_key(i)], [memory_obj()]) for i in range(5)]
    assert len(set(tasks)) == 15


def test_results_of_several_loads_all_wake_the_waiter(adapter):
    keys = [object_key(i) for i in range(8)]
    store(adapter, keys, [memory_obj(float(i)) for i in range(8)])
    buffers = [memory_obj(-1.0) for _ in keys]
    pending = {
        adapter.submit_load_task([key], [buffer]): i for i, (key, buffer) in enumerate(zip(keys, buffers, strict=True))
    }
    # As LMCache's prefetch loop: consume the fd, then ask for every task. None may be left without a wake-up.
    while pending:
        assert wait_fd(adapter.get_load_event_fd())
        for task in list(pending):
            if adapter.query_load_result(task) is not None:
                del pending[task]
    assert [fill_of(buffer) for buffer in buffers] == [float(i) for i in range(8)]


def test_asking_for_one_task_keeps_the_wake_up_of_another(adapter):
    keys = [object_key(i) for i in range(2)]
    store(adapter, keys, [memory_obj(1.0), memory_obj(2.0)])
    first = adapter.submit_load_task([keys[0]], [memory_obj()])
    second = adapter.submit_load_task([keys[1]], [memory_obj()])
    assert finish_load(adapter, first) == [0]
    assert finish_load(adapter, second) == [0]


@pytest.mark.parametrize("call", ["submit_store_task", "submit_load_task"])
def test_empty_or_unequal_lists_are_refused(adapter, call):
    with pytest.raises(ValueError, match="at least one"):
        getattr(adapter, call)([], [])
    with pytest.raises(ValueError, match="got 2 and 1"):
        getattr(adapter, call)([object_key(1), object_key(2)], [memory_obj()])


def test_a_key_already_there_is_success_and_not_told_again(adapter):
    listener = Listener()
    adapter.register_listener(listener)
    store(adapter, [object_key(1)], [memory_obj(1.0)])
    assert store(adapter, [object_key(1), object_key(2)], [memory_obj(1.0), memory_obj(2.0)]).is_successful()
    assert listener.stored == {object_key(1): NBYTES, object_key(2): NBYTES}
    assert adapter.get_usage().total_bytes_used == 2 * NBYTES


@pytest.mark.parametrize("floats", [FLOATS // 2, FLOATS * 2])
def test_a_block_of_another_length_is_a_miss(adapter, floats):
    store(adapter, [object_key(1), object_key(2)], [memory_obj(1.0), memory_obj(2.0, floats)])
    buffers = [memory_obj(), memory_obj()]
    assert load(adapter, [object_key(1), object_key(2)], buffers) == [0]
    assert fill_of(buffers[0]) == 1.0


@pytest.mark.parametrize(
    "other",
    [
        object_key(1, model="other/model"),
        object_key(1, kv_rank=1),
        object_key(1, group=1),
        object_key(1, salt="alice"),
        object_key(2),
    ],
    ids=["model", "rank", "group", "salt", "hash"],
)
def test_a_change_of_any_part_of_the_key_is_a_miss(adapter, other):
    store(adapter, [object_key(1)], [memory_obj(1.0)])
    assert present(adapter, [object_key(1), other]) == [0]


def test_a_change_of_the_identity_is_a_miss(make_adapter, pool_path):
    adapter = make_adapter(pool_path, identity={"revision": "a", "dtype": "bfloat16"})
    store(adapter, [object_key(1)], [memory_obj(1.0)])
    adapter.close()
    for identity in ({}, {"revision": "b", "dtype": "bfloat16"}, {"revision": "a", "dtype": "float16"}):
        other = make_adapter(pool_path, identity=identity)
        assert present(other, [object_key(1)]) == []
        assert other.get_usage().total_bytes_used == 0
        assert other.list_l2_keys().entries == ()
        other.close()
    assert present(make_adapter(pool_path, identity={"dtype": "bfloat16", "revision": "a"}), [object_key(1)]) == [0]


def test_delete_skips_locked_keys(adapter):
    key = object_key(1)
    store(adapter, [key], [memory_obj(1.0)])
    assert lookup(adapter, [key]) == [0]
    adapter.delete([key])
    assert lookup(adapter, [key]) == [0]
    adapter.submit_unlock([key, key])
    adapter.delete([key])
    assert present(adapter, [key]) == []


def test_unlock_of_keys_that_are_not_locked_does_nothing(adapter):
    key = object_key(1)
    store(adapter, [key], [memory_obj(1.0)])
    adapter.submit_unlock([key, object_key(2)])
    assert lookup(adapter, [key]) == [0]
    adapter.submit_unlock([object_key(2)])
    adapter.delete([key])  # still locked once
    assert present(adapter, [key]) == [0]
    adapter.submit_unlock([key, key, key])
    adapter.delete([key])
    assert present(adapter, [key]) == []


def test_delete_tells_listeners_and_counts_bytes(adapter):
    listener = Listener()
    adapter.register_listener(listener)
    keys = [object_key(1, salt="alice"), object_key(2, salt="bob")]
    store(adapter, keys, [memory_obj(1.0), memory_obj(2.0)])
    adapter.delete([keys[0], object_key(9)])
    assert listener.deleted == [keys[0]]
    assert dict(adapter.get_usage().bytes_by_cache_salt) == {"bob": NBYTES}
    adapter.delete([keys[0]])
    assert listener.deleted == [keys[0]]
    assert adapter.get_usage().total_bytes_used == NBYTES


def test_a_load_tells_what_was_accessed(adapter):
    listener = Listener()
    adapter.register_listener(listener)
    store(adapter, [object_key(1)], [memory_obj(1.0)])
    load(adapter, [object_key(1), object_key(2)], [memory_obj(), memory_obj()])
    assert listener.accessed == [object_key(1)]


def test_a_failing_listener_hurts_nobody_else(adapter):
    class Failing(Listener):
        def on_l2_keys_stored(self, keys, sizes):
            raise RuntimeError("listener")

        on_l2_keys_accessed = on_l2_keys_deleted = lambda self, keys: 1 / 0

    adapter.register_listener(Failing())
    assert store(adapter, [object_key(1)], [memory_obj(1.0)]).is_successful()
    assert load(adapter, [object_key(1)], [memory_obj()]) == [0]
    adapter.delete([object_key(1)])
    assert adapter.report_status()["is_healthy"]


def test_a_hash_too_long_to_list_is_a_miss_and_a_failed_store(adapter):
    from lmcache.v1.distributed.api import ObjectKey

    key = ObjectKey(b"x" * 43, "m", 0)
    assert not store(adapter, [key], [memory_obj(1.0)]).is_successful()
    assert lookup(adapter, [key]) == []
    assert load(adapter, [key], [memory_obj()]) == []
    assert adapter.report_status()["refused_key_count"] == 3


def test_capacity_is_reported_so_that_a_watermark_works(make_adapter, pool_path):
    adapter = make_adapter(pool_path)
    assert adapter.supports_global_eviction
    capacity = adapter.get_usage().total_capacity_bytes
    assert 0 < capacity <= 256 << 20
    store(adapter, [object_key(1)], [memory_obj(1.0)])
    assert adapter.get_usage().usage_fraction == NBYTES / capacity
    adapter.close()
    assert make_adapter(pool_path, max_capacity_bytes=1 << 20).get_usage().total_capacity_bytes == 1 << 20


def test_listing_is_paged_and_filtered(adapter):
    keys = [object_key(i, salt=f"user{i % 3}", kv_rank=i, group=i % 2) for i in range(10)]
    store(adapter, keys, [memory_obj(float(i)) for i in range(10)])
    store(adapter, [object_key(1, model="b")], [memory_obj(1.0)])
    found, cursor, pages = [], None, 0
    while True:
        page = adapter.list_l2_keys(model_name="test/model", page_size=4, cursor=cursor)
        found += [entry.key.to_object_key() for entry in page.entries]
        assert all(entry.size_bytes == NBYTES for entry in page.entries)
        pages += 1
        cursor = page.next_page_token
        if cursor is None:
            break
    assert pages == 3
    assert sorted(found, key=lambda key: key.chunk_hash) == keys
    assert len(adapter.list_l2_keys().entries) == 11
    for bad in ("", "x", "1-2-3", "-1-0"):
        with pytest.raises(ValueError, match="cursor"):
            adapter.list_l2_keys(cursor=bad)
    with pytest.raises(ValueError, match="page_size"):
        adapter.list_l2_keys(page_size=0)


def test_a_cursor_of_a_forgotten_listing_goes_on_where_it_stopped(adapter):
    keys = [object_key(i) for i in range(6)]
    store(adapter, keys, [memory_obj(float(i)) for i in range(6)])
    first = adapter.list_l2_keys(page_size=2)
    for _ in range(20):
        adapter.list_l2_keys(page_size=1)
    rest = adapter.list_l2_keys(page_size=10, cursor=first.next_page_token)
    assert {entry.key.to_object_key() for entry in (*first.entries, *rest.entries)} == set(keys)
    assert rest.next_page_token is None


def test_a_restart_brings_back_keys_usage_and_listeners(make_adapter, pool_path):
    adapter = make_adapter(pool_path)
    keys = [object_key(i, salt=f"user{i % 2}", kv_rank=i) for i in range(10)]
    store(adapter, keys, [memory_obj(float(i)) for i in range(10)])
    adapter.close()
    adapter = make_adapter(pool_path)
    assert dict(adapter.get_usage().bytes_by_cache_salt) == {"user0": 5 * NBYTES, "user1": 5 * NBYTES}
    for listener in (Listener(), Listener()):
        adapter.register_listener(listener)
        assert listener.stored == dict.fromkeys(keys, NBYTES)
    buffers = [memory_obj() for _ in keys]
    assert load(adapter, keys, buffers) == list(range(10))
    assert [fill_of(buffer) for buffer in buffers] == [float(i) for i in range(10)]
    adapter.delete(keys[:9])
    assert adapter.get_usage().total_bytes_used == NBYTES


def test_recovered_keys_are_replayed_in_batches(make_adapter, pool_path, monkeypatch):
    monkeypatch.setattr("kvstore.lmcache.l2_adapter._REPLAY_KEYS", 4)
    adapter = make_adapter(pool_path)
    store(adapter, [object_key(i) for i in range(10)], [memory_obj(float(i)) for i in range(10)])
    listener = Listener()
    adapter.register_listener(listener)
    assert listener.stored_calls == 3
    assert len(listener.stored) == 10


def test_chain_positions_are_learnt_from_lookups(adapter):
    keys = [object_key(i, kv_rank=rank) for rank in (0, 1) for i in range(4)]
    assert present(adapter, keys) == []
    store(adapter, [keys[6], keys[4], keys[1]], [memory_obj(1.0) for _ in range(3)])
    adapter._pool.flush()
    depths = {(block.key[31], block.key[35]): block.depth for block in adapter._pool.blocks()}
    assert depths == {(2, 1): 2, (0, 1): 0, (1, 0): 1}


def test_a_lookup_whose_result_nobody_takes_does_not_lock_for_ever(adapter, monkeypatch):
    monkeypatch.setattr("kvstore.lmcache.l2_adapter._LOOKUPS_MAX", 2)
    keys = [object_key(i) for i in range(3)]
    store(adapter, keys, [memory_obj(1.0) for _ in keys])
    for key in keys:
        adapter.submit_lookup_and_lock_task([key], {})
    assert adapter.report_status()["locked_key_count"] == 2
    adapter.delete(keys)
    assert present(adapter, keys) == [1, 2]


def test_status_names_both_figures_and_the_path(adapter):
    store(adapter, [object_key(1)], [memory_obj(1.0)])
    status = adapter.report_status()
    assert status["is_healthy"]
    assert status["live_bytes"] == NBYTES
    assert status["occupied_bytes"] >= NBYTES
    assert status["l1_memory"] == "unregistered"
    assert set(status["byte_path"]) == {"device_kind", "zero_copy_bytes", "staged_bytes", "registered_requests"}
    assert status["byte_path"]["zero_copy_bytes"] + status["byte_path"]["staged_bytes"] >= NBYTES
    assert status["write_refusal"] == ""
    assert status["store_inflight_task_count"] == status["load_inflight_task_count"] == 0


def test_after_close_nothing_is_accepted_and_nothing_breaks(adapter):
    store(adapter, [object_key(1)], [memory_obj(1.0)])
    adapter.close()
    adapter.close()
    for call in (adapter.submit_store_task, adapter.submit_load_task):
        with pytest.raises(RuntimeError, match="closed"):
            call([object_key(1)], [memory_obj()])
    with pytest.raises(RuntimeError, match="closed"):
        adapter.submit_lookup_and_lock_task([object_key(1)], {})
    adapter.delete([object_key(1)])
    adapter.submit_unlock([object_key(1)])
    assert adapter.get_store_event_fd() == -1
    assert not adapter.report_status()["is_healthy"]


def test_close_with_stores_in_flight_completes_them(make_adapter, pool_path):
    adapter = make_adapter(pool_path)
    keys = [object_key(i) for i in range(64)]
    adapter.submit_store_task(keys, [memory_obj(float(i)) for i in range(64)])
    adapter.close()
    assert present(make_adapter(pool_path), keys) == list(range(64))


def test_many_threads_at_once(adapter):
    errors = []

    def work(number: int) -> None:
        try:
            for i in range(20):
                key = object_key(i, salt=f"t{number}")
                adapter.submit_store_task([key], [memory_obj(float(i))])
                eventually(lambda key=key: present(adapter_view, [key]) == [0])
        except (AssertionError, RuntimeError) as error:
            errors.append(error)

    class View:
        """Looks up without the shared fd, which another thread may consume."""

        def submit_lookup_and_lock_task(self, *arguments):
            return adapter.submit_lookup_and_lock_task(*arguments)

        def __getattr__(self, name):
            return getattr(adapter, name)

    adapter_view = View()

    def present(view, keys):
        task = view.submit_lookup_and_lock_task(keys, {})
        found = view.query_lookup_and_lock_result(task).get_indices_list()
        view.submit_unlock([keys[i] for i in found])
        return found

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    eventually(
        lambda: adapter.pop_completed_store_tasks() is not None and adapter.get_usage().total_bytes_used == 80 * NBYTES
    )


def test_l1_arena_is_registered_and_objects_in_it_work(make_adapter, pool_path):
    from lmcache.v1.distributed.internal_api import L1MemoryDesc
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

    backing = torch.zeros((8 << 20) + 4096, dtype=torch.uint8)
    start = -backing.data_ptr() % 4096
    arena = backing[start : start + (8 << 20)]
    desc = L1MemoryDesc(arena.data_ptr(), 8 << 20, 4096, stable_registration_size=4 << 20)
    adapter = make_adapter(pool_path, l1_memory_desc=desc)
    assert "of 8388608 bytes" in adapter.report_status()["l1_memory"] or "not" in adapter.report_status()["l1_memory"]

    def in_arena(offset: int) -> TensorMemoryObj:
        metadata = MemoryObjMetadata(torch.Size([1 << 20]), torch.uint8, 0, 1 << 20, 1, fmt=MemoryFormat.KV_2LTD)
        return TensorMemoryObj(arena[offset : offset + (1 << 20)], metadata, None)

    second = make_adapter(pool_path, l1_memory_desc=desc)
    assert "registered already" in second.report_status()["l1_memory"]
    second.close()

    source, target = in_arena(0), in_arena(6 << 20)  # inside and outside the registered part
    source.raw_data.copy_(torch.arange(1 << 20, dtype=torch.int64).to(torch.uint8))
    assert store(adapter, [object_key(1)], [source]).is_successful()
    assert load(adapter, [object_key(1)], [target]) == [0]
    assert torch.equal(source.raw_data, target.raw_data)


@pytest.mark.parametrize("size", [None, 0])
def test_an_arena_that_cannot_be_registered_still_works(make_adapter, pool_path, size):
    from lmcache.v1.distributed.internal_api import L1MemoryDesc

    adapter = make_adapter(pool_path, l1_memory_desc=L1MemoryDesc(4096, 1 << 20, 4096, stable_registration_size=size))
    assert adapter.report_status()["l1_memory"] == "unregistered"
    assert store(adapter, [object_key(1)], [memory_obj(1.0)]).is_successful()
