# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: what happens to a block between lookup and load costs that block and nothing else, at both doors.

Method: on the first, the middle and the last chunk of a request, the block is corrupted on the device, evicted, delayed
past the time limit, or unreadable, after LMCache was told that it is there. Then: the hit is shorter, every byte of it
is right, no lock, pin or buffer is left, and the next request is served.
"""

from __future__ import annotations

import pytest
import torch
from lmcache_engine import CHUNK, bytes_of, content, engine, key_of
from lmcache_helpers import eventually, fill_of, load, memory_obj, object_key, present, store
from lmcache_manager import adapter_of, assert_nothing_leaks, fetch, manager, put, spec, submit, wait

from kvstore.lmcache.keys import engine_key_bytes

COUNT = 5
WHERE = {"first": 0, "middle": 2, "last": 4}
FAULTS = ["corrupt", "evict", "delay", "eio"]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("fault", FAULTS)
def test_multiprocess_mode(disk, fault, where):
    keys = [object_key(i) for i in range(COUNT)]
    bad = keys[WHERE[where]]
    storage = manager(spec(disk.path, load_timeout_s=0.5))
    try:
        put(storage, keys)
        adapter = adapter_of(storage)
        if fault == "evict":
            evict_after_lookup(adapter, bad)
        else:
            break_block = {"corrupt": disk.corrupt, "eio": disk.refuse, "delay": disk.hold}[fault]
            break_block(adapter._pool, lambda key: key.startswith(bad.chunk_hash))
        hit = fetch(storage, keys)
        assert hit == (0 if fault == "delay" else WHERE[where])
        disk.let_go()
        assert_nothing_leaks(storage)

        # The next request: what is left is served, and the bad block can be stored again.
        rest = [key for key in keys if key != bad or fault in ("delay", "eio")]
        assert fetch(storage, rest) == len(rest)
        if bad not in rest:
            put(storage, [bad])
            assert fetch(storage, keys) == COUNT
        assert_nothing_leaks(storage)
        assert storage.report_status()["is_healthy"]
    finally:
        disk.let_go()
        storage.close()


def evict_after_lookup(adapter, key):
    """Drop a block between the next lookup and its load, as a lease that ends and a reclaim would."""
    submit_load_task = adapter.submit_load_task

    def submit(keys, objects):
        adapter.submit_load_task = submit_load_task
        for batch in adapter._batches.of([key]):
            batch.space.unpin(batch.keys, salts=batch.salts)
            assert batch.space.delete(batch.keys, salts=batch.salts)[0]
        return submit_load_task(keys, objects)

    adapter.submit_load_task = submit


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", ["blocking", "non_blocking"])
def test_in_process_mode(disk, fault, where, call):
    keys = [key_of(i) for i in range(COUNT)]
    position = WHERE[where]
    with engine(disk.path, blocking_timeout_secs=1) as made:
        made.put(keys, [made.object_of(i) for i in range(COUNT)])
        assert made.backend.batched_contains(keys) == COUNT
        if fault == "evict":
            assert made.backend.remove(keys[position])
        else:
            break_block = {"corrupt": disk.corrupt, "eio": disk.refuse, "delay": disk.hold}[fault]
            break_block(made.connector._pool, lambda key: key == engine_key_bytes(keys[position]))

        found = get(made, keys, call)
        bad = set(range(COUNT)) if fault == "delay" else {position}
        if call == "non_blocking":
            bad |= set(range(min(bad), COUNT))
        assert {i for i in range(COUNT) if i not in found} == bad
        for i, obj in found.items():
            assert torch.equal(bytes_of(obj), content(i, obj.get_size()))
            obj.ref_count_down()
        disk.let_go()
        eventually(lambda: made.used_bytes() == 0)

        if fault in ("corrupt", "evict"):
            made.put([keys[position]], [made.object_of(position)])
        again = get(made, keys, call)
        assert len(again) == COUNT
        for i, obj in again.items():
            assert torch.equal(bytes_of(obj), content(i, obj.get_size()))
            obj.ref_count_down()
        assert made.used_bytes() == 0
        assert made.run(made.connector.ping()) == 0


def get(made, keys, call):
    """Return what came, by position."""
    if call == "blocking":
        return {i: obj for i, obj in enumerate(made.backend.batched_get_blocking(keys)) if obj is not None}
    return dict(enumerate(made.run(made.backend.batched_get_non_blocking("lookup", keys))))


def test_a_failed_store_is_never_visible_and_can_be_stored_again(make_adapter, disk):
    adapter = make_adapter(disk.path)
    keys = [object_key(i) for i in range(3)]
    disk.refuse_writes(skip=1, times=1)
    assert not store(adapter, keys, [memory_obj(float(i)) for i in range(3)]).is_successful()
    found = present(adapter, keys)
    assert len(found) == 2
    lost = next(key for i, key in enumerate(keys) if i not in found)
    assert adapter.report_status()["failed_store_block_count"] == 1
    assert store(adapter, [lost], [memory_obj(float(keys.index(lost)))]).is_successful()
    buffers = [memory_obj(-1.0) for _ in keys]
    assert load(adapter, keys, buffers) == [0, 1, 2]
    assert [fill_of(buffer) for buffer in buffers] == [0.0, 1.0, 2.0]


def test_a_block_larger_than_a_region_is_a_failed_store_and_no_more(make_adapter, pool_path):
    adapter = make_adapter(pool_path)
    too_large = memory_obj(1.0, (8 << 20) // 4)
    assert not store(adapter, [object_key(1)], [too_large]).is_successful()
    assert present(adapter, [object_key(1)]) == []
    assert store(adapter, [object_key(2)], [memory_obj(2.0)]).is_successful()


def test_a_request_of_tokens_that_are_no_whole_chunk_is_served_up_to_the_last_one(pool_path):
    with engine(pool_path) as made:
        made.put([key_of(0), key_of(1)], [made.object_of(0), made.object_of(1, CHUNK - 1)])
        found = get(made, [key_of(0), key_of(1)], "blocking")
        assert [obj.get_num_tokens() for obj in found.values()] == [CHUNK, CHUNK - 1]
        for obj in found.values():
            obj.ref_count_down()


def test_abandoned_requests_leave_nothing(pool_path):
    keys = [object_key(i) for i in range(COUNT)]
    storage = manager(spec(pool_path))
    try:
        put(storage, keys)
        for _ in range(20):
            result = wait(storage, submit(storage, keys))
            storage.finish_read_prefetched(keys[: result.l1_hit_count + result.l2_hit_count])
        assert_nothing_leaks(storage)
    finally:
        storage.close()
