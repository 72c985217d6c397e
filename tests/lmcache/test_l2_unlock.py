# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: LMCache may free a load's buffers the moment ``submit_unlock`` returns, whatever the device does (I11).

Method: the real store on a disk that does not answer reads of one block; the memory is watched meanwhile.
"""

from __future__ import annotations

import time

import pytest
from lmcache_helpers import (
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

KEYS = [object_key(i) for i in range(4)]
ALL = [0, 1, 2, 3]


@pytest.fixture
def stored(make_adapter, disk):
    """Return a function that makes an adapter with four blocks in it, all of them locked."""

    def make(locks=1, **params):
        adapter = make_adapter(disk.path, **params)
        store(adapter, KEYS, [memory_obj(float(i)) for i in ALL])
        for _ in range(locks):
            assert lookup(adapter, KEYS) == ALL
        return adapter

    return make


@pytest.fixture
def begin_held_load(disk):
    """Return a function that starts a load whose first read is held by the disk."""

    def begin(adapter):
        disk.hold(adapter._pool)
        buffers = [memory_obj(-1.0) for _ in KEYS]
        task = adapter.submit_load_task(KEYS, buffers)
        disk.wait_for_held()
        return task, buffers

    return begin


def seconds(call, *arguments):
    begin = time.monotonic()
    call(*arguments)
    return time.monotonic() - begin


def test_unlock_of_a_load_in_flight_waits_for_the_device(stored, begin_held_load, disk):
    adapter = stored()
    task, buffers = begin_held_load(adapter)
    disk.let_go_after(0.5)
    assert seconds(adapter.submit_unlock, KEYS) > 0.4
    for buffer in buffers:  # freed and used by somebody else from here on
        buffer.raw_data.fill_(99.0)
    time.sleep(0.1)
    assert [fill_of(buffer) for buffer in buffers] == [99.0] * 4
    assert not disk.holds
    assert adapter.query_load_result(task) is None
    assert adapter.report_status()["loads_given_up"] == 1
    adapter.delete(KEYS)
    assert present(adapter, KEYS) == []


def test_an_unlock_after_one_of_two_equal_loads_waits_for_the_other_and_drops_nothing(stored, begin_held_load, disk):
    adapter = stored(locks=2)
    assert load(adapter, KEYS, [memory_obj() for _ in KEYS]) == ALL
    task, _ = begin_held_load(adapter)
    disk.let_go_after(0.3)
    # The keys do not say whether LMCache frees the buffers of the load that ended or of the one in flight (I11).
    assert seconds(adapter.submit_unlock, KEYS) > 0.2
    assert finish_load(adapter, task) == ALL
    adapter.submit_unlock(KEYS)


def test_an_unlock_in_doubt_waits_and_drops_nothing(stored, begin_held_load, disk):
    adapter = stored(locks=2)
    task, _ = begin_held_load(adapter)
    disk.let_go_after(0.3)
    # Of the request that is loading, or of one that looked the same keys up: the keys do not say.
    assert seconds(adapter.submit_unlock, KEYS) > 0.2
    assert finish_load(adapter, task) == ALL
    adapter.submit_unlock(KEYS)


def test_an_unlock_of_some_keys_spares_a_load_that_other_locks_cover(stored, begin_held_load, disk):
    adapter = stored(locks=2)
    task, _ = begin_held_load(adapter)
    assert seconds(adapter.submit_unlock, KEYS[2:]) < 0.3  # another request whose plan does not need the tail
    disk.let_go()
    assert finish_load(adapter, task) == ALL
    adapter.submit_unlock(KEYS)


def test_an_unlock_of_one_key_in_flight_waits_for_it(stored, begin_held_load, disk):
    adapter = stored()
    task, buffers = begin_held_load(adapter)
    disk.let_go_after(0.3)
    assert seconds(adapter.submit_unlock, KEYS[:1]) > 0.2
    buffers[0].raw_data.fill_(99.0)
    time.sleep(0.1)
    assert fill_of(buffers[0]) == 99.0
    assert set(finish_load(adapter, task)) >= {1, 2, 3}
    adapter.submit_unlock(KEYS)


def test_a_load_that_takes_too_long_is_a_miss_and_its_buffers_are_withheld(stored, begin_held_load, disk):
    adapter = stored(load_timeout_s=0.3)
    task, buffers = begin_held_load(adapter)
    assert finish_load(adapter, task) == []
    # LMCache frees the buffers of a failed load, then unlocks: its allocator skips what is not valid.
    assert [buffer.is_valid() for buffer in buffers] == [False] * 4
    adapter.submit_unlock(KEYS)
    status = adapter.report_status()
    assert status["loads_timed_out"] == 1
    assert status["withheld_bytes"] > 0
    disk.let_go()
    eventually(lambda: adapter.report_status()["withheld_bytes"] == 0)
    assert lookup(adapter, KEYS) == ALL
    assert load(adapter, KEYS, [memory_obj() for _ in KEYS]) == ALL
    adapter.submit_unlock(KEYS)


def test_a_late_load_that_ends_before_its_result_is_taken_gives_its_buffers_back(stored, begin_held_load, disk):
    adapter = stored(load_timeout_s=0.2)
    task, buffers = begin_held_load(adapter)
    eventually(lambda: not buffers[0].is_valid())
    disk.let_go()
    eventually(lambda: buffers[0].is_valid())
    assert finish_load(adapter, task) == []
    adapter.submit_unlock(KEYS)
    assert adapter.report_status()["withheld_bytes"] == 0


def test_an_unlock_that_waits_too_long_withholds_the_buffers(stored, begin_held_load, disk):
    adapter = stored(load_timeout_s=0.5)
    _, buffers = begin_held_load(adapter)
    assert 0.4 < seconds(adapter.submit_unlock, KEYS) < 5
    assert [buffer.is_valid() for buffer in buffers] == [False] * 4
    disk.let_go()
    eventually(lambda: adapter.report_status()["withheld_bytes"] == 0)


def test_close_gives_up_what_is_stuck_and_keeps_its_buffers(stored, begin_held_load, disk):
    from kvstore.lmcache import loads

    adapter = stored(close_timeout_s=0.3)
    begin_held_load(adapter)
    assert seconds(adapter.close) < 5
    assert len(loads._leaked) == 1
    disk.let_go()
    time.sleep(0.2)  # until here the disk may write into them
    loads._leaked.clear()


def test_results_nobody_takes_do_not_pile_up_or_spin(stored, monkeypatch):
    monkeypatch.setattr("kvstore.lmcache.loads._READY_MAX", 3)
    monkeypatch.setattr("kvstore.lmcache.loads._READY_SIGNAL_S", 0.2)
    adapter = stored()
    for _ in range(10):
        adapter.submit_load_task(KEYS, [memory_obj() for _ in KEYS])

    def idle():
        adapter.query_load_result(0)
        return adapter.report_status()["load_inflight_task_count"] == 0

    eventually(idle)
    assert adapter.report_status()["completed_load_task_count"] <= 3
    time.sleep(0.3)
    while wait_fd(adapter.get_load_event_fd(), 0.0):
        adapter.query_load_result(0)
    assert not wait_fd(adapter.get_load_event_fd(), 0.3)
