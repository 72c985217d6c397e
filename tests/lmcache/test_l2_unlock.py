# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: LMCache may free a load's buffers the moment ``submit_unlock`` returns, whatever the device does (I11).

Method: loads that are stuck behind a gate, as on a device that does not answer; the memory is watched meanwhile.
"""

from __future__ import annotations

import threading
import time

import pytest
from lmcache_faults import Faults, open_after
from lmcache_helpers import (
    eventually,
    fill_of,
    finish_load,
    lookup,
    memory_obj,
    object_key,
    present,
    store,
    wait_fd,
)

KEYS = [object_key(i) for i in range(4)]


@pytest.fixture
def stored(make_adapter, pool_path):
    """Return a function that makes an adapter with four blocks in it, and its faults."""

    def make(**params):
        adapter = make_adapter(pool_path, **params)
        store(adapter, KEYS, [memory_obj(float(i)) for i in range(4)])
        return adapter, Faults().wrap_adapter(adapter)

    return make


def test_unlock_of_a_load_in_flight_waits_for_the_device(stored):
    adapter, faults = stored()
    faults.gate = threading.Event()
    assert lookup(adapter, KEYS) == [0, 1, 2, 3]
    buffers = [memory_obj(-1.0) for _ in KEYS]
    task = adapter.submit_load_task(KEYS, buffers)
    open_after(faults.gate, 0.5)
    begin = time.monotonic()
    adapter.submit_unlock(KEYS)
    assert time.monotonic() - begin > 0.4
    for buffer in buffers:  # freed and used by somebody else from here on
        buffer.raw_data.fill_(99.0)
    time.sleep(0.1)
    assert [fill_of(buffer) for buffer in buffers] == [99.0] * 4
    assert faults.gated[0].canceled == {0, 1, 2, 3}
    assert adapter.query_load_result(task) is None
    assert adapter.report_status()["loads_given_up"] == 1
    adapter.delete(KEYS)
    assert present(adapter, KEYS) == []


def test_the_normal_unlock_does_not_wait_for_another_load_of_the_same_keys(stored):
    adapter, faults = stored()
    assert lookup(adapter, KEYS) == lookup(adapter, KEYS) == [0, 1, 2, 3]
    assert finish_load(adapter, adapter.submit_load_task(KEYS, [memory_obj() for _ in KEYS])) == [0, 1, 2, 3]
    faults.gate = threading.Event()
    buffers = [memory_obj(-1.0) for _ in KEYS]
    task = adapter.submit_load_task(KEYS, buffers)
    begin = time.monotonic()
    adapter.submit_unlock(KEYS)
    assert time.monotonic() - begin < 0.3
    assert faults.gated[0].canceled == set()
    faults.gate.set()
    assert finish_load(adapter, task) == [0, 1, 2, 3]
    adapter.submit_unlock(KEYS)


def test_an_unlock_in_doubt_waits_and_drops_nothing(stored):
    adapter, faults = stored()
    assert lookup(adapter, KEYS) == lookup(adapter, KEYS) == [0, 1, 2, 3]
    faults.gate = threading.Event()
    task = adapter.submit_load_task(KEYS, [memory_obj(-1.0) for _ in KEYS])
    open_after(faults.gate, 0.3)
    begin = time.monotonic()
    adapter.submit_unlock(KEYS)  # of the other request, or of this one: the keys do not say
    assert time.monotonic() - begin > 0.2
    assert finish_load(adapter, task) == [0, 1, 2, 3]
    adapter.submit_unlock(KEYS)


def test_an_unlock_of_some_keys_spares_a_load_that_other_locks_cover(stored):
    adapter, faults = stored()
    assert lookup(adapter, KEYS) == lookup(adapter, KEYS) == [0, 1, 2, 3]
    faults.gate = threading.Event()
    task = adapter.submit_load_task(KEYS, [memory_obj(-1.0) for _ in KEYS])
    begin = time.monotonic()
    adapter.submit_unlock(KEYS[2:])  # another request whose plan does not need the tail
    assert time.monotonic() - begin < 0.2
    faults.gate.set()
    assert finish_load(adapter, task) == [0, 1, 2, 3]
    adapter.submit_unlock(KEYS)


def test_an_unlock_of_one_key_in_flight_drops_and_waits(stored):
    adapter, faults = stored()
    assert lookup(adapter, KEYS) == [0, 1, 2, 3]
    faults.gate = threading.Event()
    task = adapter.submit_load_task(KEYS, [memory_obj(-1.0) for _ in KEYS])
    open_after(faults.gate, 0.3)
    begin = time.monotonic()
    adapter.submit_unlock([KEYS[1]])
    assert time.monotonic() - begin > 0.2
    assert faults.gated[0].canceled == {1}
    finish_load(adapter, task)
    adapter.submit_unlock(KEYS)


def test_a_load_that_takes_too_long_is_a_miss_and_its_buffers_are_withheld(stored):
    adapter, faults = stored(load_timeout_s=0.3)
    assert lookup(adapter, KEYS) == [0, 1, 2, 3]
    faults.gate = threading.Event()
    buffers = [memory_obj(-1.0) for _ in KEYS]
    task = adapter.submit_load_task(KEYS, buffers)
    assert finish_load(adapter, task) == []
    # LMCache frees the buffers of a failed load, then unlocks: its allocator skips what is not valid.
    assert [buffer.is_valid() for buffer in buffers] == [False] * 4
    adapter.submit_unlock(KEYS)
    status = adapter.report_status()
    assert status["loads_timed_out"] == 1
    assert status["withheld_bytes"] > 0
    faults.gate.set()
    eventually(lambda: adapter.report_status()["withheld_bytes"] == 0)
    faults.gate = None
    assert lookup(adapter, KEYS) == [0, 1, 2, 3]
    assert finish_load(adapter, adapter.submit_load_task(KEYS, [memory_obj() for _ in KEYS])) == [0, 1, 2, 3]
    adapter.submit_unlock(KEYS)


def test_a_late_load_that_ends_before_its_result_is_taken_gives_its_buffers_back(stored):
    adapter, faults = stored(load_timeout_s=0.2)
    lookup(adapter, KEYS)
    faults.gate = threading.Event()
    buffers = [memory_obj(-1.0) for _ in KEYS]
    task = adapter.submit_load_task(KEYS, buffers)
    eventually(lambda: not buffers[0].is_valid())
    faults.gate.set()
    eventually(lambda: buffers[0].is_valid())
    assert finish_load(adapter, task) == []
    adapter.submit_unlock(KEYS)
    assert adapter.report_status()["withheld_bytes"] == 0


def test_an_unlock_that_waits_too_long_withholds_the_buffers(stored):
    adapter, faults = stored(load_timeout_s=0.5)
    lookup(adapter, KEYS)
    faults.gate = threading.Event()
    buffers = [memory_obj(-1.0) for _ in KEYS]
    adapter.submit_load_task(KEYS, buffers)
    begin = time.monotonic()
    adapter.submit_unlock(KEYS)
    assert 0.4 < time.monotonic() - begin < 5
    assert [buffer.is_valid() for buffer in buffers] == [False] * 4
    faults.gate.set()
    eventually(lambda: adapter.report_status()["withheld_bytes"] == 0)


def test_close_gives_up_what_is_stuck_and_keeps_its_buffers(stored):
    from kvstore.lmcache import loads

    adapter, faults = stored(close_timeout_s=0.3)
    lookup(adapter, KEYS)
    faults.gate = threading.Event()
    adapter.submit_load_task(KEYS, [memory_obj(-1.0) for _ in KEYS])
    begin = time.monotonic()
    adapter.close()
    assert time.monotonic() - begin < 5
    assert len(loads._leaked) == 1
    faults.gate.set()
    faults.gated[0].wait(10)  # until here it writes into them
    loads._leaked.clear()


def test_results_nobody_takes_do_not_pile_up_or_spin(stored, monkeypatch):
    monkeypatch.setattr("kvstore.lmcache.loads._READY_MAX", 3)
    monkeypatch.setattr("kvstore.lmcache.loads._READY_SIGNAL_S", 0.2)
    adapter, _ = stored()
    for _ in range(10):
        adapter.submit_load_task(KEYS, [memory_obj() for _ in KEYS])
    eventually(
        lambda: adapter.query_load_result(0) is None and adapter.report_status()["load_inflight_task_count"] == 0
    )
    assert adapter.report_status()["completed_load_task_count"] <= 3
    time.sleep(0.3)
    while wait_fd(adapter.get_load_event_fd(), 0.0):
        adapter.query_load_result(0)
    time.sleep(0.1)
    assert not wait_fd(adapter.get_load_event_fd(), 0.3)
