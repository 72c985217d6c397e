# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: LMCache's real storage manager works on the L2 adapter, over restarts, evictions, and its own shutdown.

Method: the manager with its controllers and a CPU L1, configured through the text of ``--l2-adapter``; L1 is emptied
by the ``skip_l1`` store policy, so that every fetch reads L2.
"""

from __future__ import annotations

import json
import os
import time

import pytest
import torch
from lmcache_helpers import Listener, eventually, object_key
from lmcache_manager import (
    LAYOUT,
    NBYTES,
    adapter_of,
    assert_nothing_leaks,
    fetch,
    l2_config,
    l2_keys,
    manager,
    pattern,
    put,
    spec,
    submit,
    wait,
)

KEYS = [object_key(i) for i in range(12)]


@pytest.fixture
def make_storage():
    """Return a function that makes storage managers; all are closed at the end."""
    made = []

    def make(*specs, **options):
        made.append(manager(*specs, **options))
        return made[-1]

    yield make
    for storage in made:
        if not getattr(storage, "closed_by_test", False):
            storage.close()


def close(storage):
    storage.close()
    storage.closed_by_test = True


def test_what_was_stored_is_fetched_after_a_restart(make_storage, pool_path):
    storage = make_storage(spec(pool_path))
    put(storage, KEYS)
    assert fetch(storage, KEYS) == 12
    close(storage)
    storage = make_storage(spec(pool_path))
    assert [usage.total_bytes_used for usage in storage.get_l2_usages_by_type()["plugin"]] == [12 * NBYTES]
    assert l2_keys(storage) == set(KEYS)
    assert fetch(storage, KEYS) == 12
    assert fetch(storage, [*KEYS[:5], object_key(99), *KEYS[5:]]) == 5
    assert_nothing_leaks(storage)


def test_ranks_groups_and_salts_are_kept_apart(make_storage, pool_path):
    storage = make_storage(spec(pool_path))
    keys = [object_key(i, kv_rank=rank, salt=salt) for i in range(2) for rank in (0, 1) for salt in ("", "alice")]
    put(storage, keys)
    assert l2_keys(storage) == set(keys)
    for key in keys:
        assert fetch(storage, [key]) == 1
    assert fetch(storage, [object_key(0, salt="bob")]) == 0
    assert storage.get_usage_bytes_by_cache_salt() == {"": 4 * NBYTES, "alice": 4 * NBYTES}
    assert_nothing_leaks(storage)


def test_many_requests_at_once_over_the_same_keys(make_storage, pool_path):
    storage = make_storage(spec(pool_path))
    put(storage, KEYS)
    handles = [submit(storage, KEYS[: 3 + n % 9]) for n in range(24)]
    for n, handle in enumerate(handles):
        result = wait(storage, handle)
        hit = result.l1_hit_count + result.l2_hit_count
        storage.finish_read_prefetched(KEYS[:hit])
        assert hit <= 3 + n % 9
    assert_nothing_leaks(storage)
    assert fetch(storage, KEYS) == 12


def test_adapters_are_added_and_deleted_at_run_time(make_storage, make_pool):
    storage = make_storage()
    path = make_pool()
    number = storage.add_l2_adapter(l2_config(spec(path)).adapters[0])
    put(storage, KEYS)
    storage.delete_l2_adapter(number)
    assert fetch(storage, KEYS) == 0
    storage.add_l2_adapter(l2_config(spec(path)).adapters[0])
    assert fetch(storage, KEYS) == 12
    assert_nothing_leaks(storage)


def test_lmcaches_own_serializer_in_front_of_it(make_storage, pool_path):
    with_serde = {**json.loads(spec(pool_path)), "serde": {"type": "fp8"}}
    storage = make_storage(json.dumps(with_serde))
    objects = storage.reserve_write(KEYS, LAYOUT)
    for obj in objects.values():
        obj.tensor.fill_(1.5)
    storage.finish_write(list(objects))
    eventually(lambda: storage.get_l1_usage()[0] == 0)
    result = wait(storage, submit(storage, KEYS))
    assert result.l2_hit_count == len(KEYS)
    with storage.read_prefetched_results(KEYS) as found:
        assert all(bool((obj.tensor == 1.5).all()) for obj in found)
    storage.finish_read_prefetched(KEYS)
    assert adapter_of(storage).inner_adapter.get_usage().total_bytes_used < len(KEYS) * NBYTES


def test_a_listener_registered_late_hears_of_everything(make_storage, pool_path):
    storage = make_storage(spec(pool_path))
    put(storage, KEYS)
    listener = Listener()
    storage.register_l2_listener(listener)
    assert listener.stored == dict.fromkeys(KEYS, NBYTES)


def test_the_stores_own_eviction_is_told_to_lmcache(make_storage, make_pool):
    storage = make_storage(spec(make_pool(size=80 << 20, region_bytes=1 << 20)))
    listener = Listener()
    storage.register_l2_listener(listener)
    capacity = adapter_of(storage).get_usage().total_capacity_bytes
    count = 2 * capacity // NBYTES
    for first in range(0, count, 32):
        put_some(storage, [object_key(i) for i in range(first, min(first + 32, count))])
    # What LMCache believes to be there is exactly what is there, and so are its byte counts.
    eventually(lambda: set(listener.stored) == l2_keys(storage), 20)
    assert len(listener.deleted) > count // 4
    used = adapter_of(storage).get_usage().total_bytes_used
    assert used == sum(listener.stored.values())
    assert 0.3 * capacity < used <= capacity
    assert fetch(storage, [object_key(count - 1)]) == 1
    assert_nothing_leaks(storage)


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_lmcaches_own_eviction_works_through_delete(make_storage, make_pool, restart):
    path = make_pool()
    eviction = {"eviction_policy": "LRU", "trigger_watermark": 0.5, "eviction_ratio": 0.5}
    if restart:
        storage = make_storage(spec(path))
        put(storage, KEYS)
        close(storage)
    storage = make_storage(spec(path, eviction, max_capacity_bytes=16 * NBYTES))
    if not restart:
        put_some(storage, KEYS)
    # 12 of 16 is over the watermark; LMCache's controller looks once a second.
    eventually(lambda: adapter_of(storage).get_usage().total_bytes_used <= 8 * NBYTES, 15)
    assert adapter_of(storage).get_usage().total_bytes_used == len(l2_keys(storage)) * NBYTES
    assert_nothing_leaks(storage)


def test_quotas_by_salt_evict_only_that_salt(make_storage, make_pool):
    eviction = {"eviction_policy": "IsolatedLRU", "trigger_watermark": 0.9, "eviction_ratio": 0.5}
    storage = make_storage(spec(make_pool(), eviction))
    storage.quota_manager.set_quota("alice", 6 * NBYTES)
    storage.quota_manager.set_quota("bob", 1 << 30)
    put_some(storage, [object_key(i, salt=salt) for i in range(8) for salt in ("alice", "bob")])
    eventually(lambda: adapter_of(storage).get_usage().bytes_by_cache_salt.get("alice", 0) <= 4 * NBYTES, 15)
    assert adapter_of(storage).get_usage().bytes_by_cache_salt["bob"] == 8 * NBYTES


def test_a_request_that_lmcache_aborts_frees_its_buffers_only_when_the_device_is_done(make_storage, disk):
    storage = make_storage(spec(disk.path))
    put(storage, KEYS)
    adapter = adapter_of(storage)
    disk.hold(adapter._pool)
    handle = submit(storage, KEYS)
    disk.wait_for_held()
    controller = storage._prefetch_controller
    poll_load_results, controller._poll_load_results = controller._poll_load_results, lambda *_: 1 / 0
    os.eventfd_write(adapter.get_load_event_fd(), 1)  # LMCache asks for results, fails, and gives the request up
    disk.let_go_after(2.0)
    begin = time.monotonic()
    assert wait(storage, handle).l2_hit_count == 0
    assert time.monotonic() - begin > 1.5
    arena = refill_l1(storage)
    time.sleep(0.2)
    assert bool((arena == 0xA5).all())
    assert adapter.report_status()["loads_given_up"] == 1
    controller._poll_load_results = poll_load_results
    storage.clear(force=True)
    assert fetch(storage, KEYS) == 12


def test_shutdown_waits_for_a_stuck_load_and_no_byte_of_l1_changes_after(make_storage, disk):
    storage = make_storage(spec(disk.path))
    put(storage, KEYS)
    disk.hold(adapter_of(storage)._pool)
    submit(storage, KEYS)
    disk.wait_for_held()
    disk.let_go_after(5.0)
    begin = time.monotonic()
    storage._prefetch_controller.stop()  # unlocks, then frees the buffers of the load in flight
    assert time.monotonic() - begin > 4.0
    arena = refill_l1(storage)
    time.sleep(0.3)
    assert not disk.holds
    assert bool((arena == 0xA5).all())
    storage._prefetch_controller.stop = lambda: None


def test_shutdown_with_a_load_stuck_for_longer_withholds_its_buffers(make_storage, disk):
    storage = make_storage(spec(disk.path, load_timeout_s=1.0, close_timeout_s=1.0))
    put(storage, KEYS)
    disk.hold(adapter_of(storage)._pool)
    submit(storage, KEYS)
    disk.wait_for_held()
    storage._prefetch_controller.stop()
    assert adapter_of(storage).report_status()["withheld_bytes"] == 12 * NBYTES
    free = refill_l1(storage)
    assert free.numel() == (32 << 20) - 12 * NBYTES
    disk.let_go()
    time.sleep(0.3)
    assert bool((free == 0xA5).all())
    eventually(lambda: adapter_of(storage).report_status()["withheld_bytes"] == 0)
    assert storage.memcheck()
    storage._prefetch_controller.stop = lambda: None


def put_some(storage, keys):
    """Store what L1 has room for, without waiting for what may be evicted at once."""
    objects = storage.reserve_write(list(keys), LAYOUT)
    for key, obj in objects.items():
        obj.raw_data[:NBYTES].copy_(pattern(key))
    storage.finish_write(list(objects))
    eventually(lambda: storage.get_l1_usage()[0] == 0)


def refill_l1(storage):
    """Allocate all that LMCache's allocator thinks is free, fill it, and return a view of it."""
    free = (32 << 20) - storage.get_l1_usage()[0]
    whole = storage.reserve_write([object_key(10_000)], _flat(free))
    if whole:
        view = next(iter(whole.values())).raw_data
        view.fill_(0xA5)
        return view
    views = []
    while objects := storage.reserve_write([object_key(10_000 + len(views))], _flat(NBYTES)):
        views.append(next(iter(objects.values())).raw_data)
        views[-1].fill_(0xA5)
    assert sum(view.numel() for view in views) == free
    return _Views(views)


def _flat(nbytes):
    from lmcache.v1.distributed.api import MemoryLayoutDesc

    return MemoryLayoutDesc(shapes=[torch.Size([nbytes])], dtypes=[torch.uint8])


class _Views:
    """Several tensors that compare like one."""

    def __init__(self, views):
        self._views = views

    def numel(self):
        return sum(view.numel() for view in self._views)

    def __eq__(self, value):
        return torch.cat([view == value for view in self._views])

    __hash__ = None
