# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: what LMCache is told to be stored and gone adds up to what is there, in whatever order it happens.

Method: the adapter with a feed too small for its evictions; two adapters on one pool; and the table of stores alone,
with jobs that end when the test says so.
"""

from __future__ import annotations

import os

import pytest
from lmcache_helpers import FLOATS, Listener, eventually, memory_obj, object_key, present, store

from kvstore.lmcache.l2_batches import L2Batch
from kvstore.lmcache.stores import StoreTable

NBYTES = FLOATS * 4


def test_more_evictions_than_the_feed_holds_are_counted_again(make_adapter, pool_path, monkeypatch):
    monkeypatch.setattr("kvstore.lmcache.l2_adapter._EVICTIONS_MAX", 4)
    adapter = make_adapter(pool_path)
    listener = Listener()
    adapter.register_listener(listener)
    keys = [object_key(i, salt=f"u{i % 2}") for i in range(12)]
    store(adapter, keys, [memory_obj(float(i)) for i in range(12)])
    with adapter._notice_lock:  # so that housekeeping does not empty the feed in between
        adapter.delete(keys[:10])
    assert adapter.report_status()["eviction_resync_count"] == 1
    assert dict(adapter.get_usage().bytes_by_cache_salt) == {"u0": NBYTES, "u1": NBYTES}
    # LMCache's policy still lists what the feed had no room for. Its next eviction asks for those, and they go.
    assert len(listener.stored) == 8
    adapter.delete(list(listener.stored)[:6])
    assert set(listener.stored) == set(keys[10:])
    assert adapter.get_usage().total_bytes_used == 2 * NBYTES


def test_two_adapters_on_one_pool_see_each_others_blocks(make_adapter, pool_path):
    first, second = make_adapter(pool_path), make_adapter(pool_path)
    listener = Listener()
    first.register_listener(listener)
    store(first, [object_key(1), object_key(2)], [memory_obj(1.0), memory_obj(2.0)])
    assert present(second, [object_key(1)]) == [0]
    second.delete([object_key(1)])
    eventually(lambda: listener.deleted == [object_key(1)])
    second.close()
    assert present(first, [object_key(1), object_key(2)]) == [1]


class Queue:
    """Jobs in the order the test ends them."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.ended = []

    def fileno(self):
        return self.fd

    def drain(self):
        ended, self.ended = self.ended, []
        return ended


class Job:
    def __init__(self, number, queue):
        self.id, self.queue, self.results = number, queue, []

    def end(self, *statuses):
        self.results = [Outcome(status) for status in statuses]
        self.queue.ended.append(self)


class Outcome:
    def __init__(self, status):
        self.status, self.nbytes, self.error = status, NBYTES, None

    def __bool__(self):
        return self.status in ("stored", "present")


class Space:
    def __init__(self):
        self.jobs = []

    def put_many(self, keys, values, *, queue, **keywords):
        self.jobs.append(Job(len(self.jobs) + 1, queue))
        return self.jobs[-1]


class Batches:
    def __init__(self, space):
        self.space = space

    def of(self, keys):
        return [L2Batch(self.space, list(range(len(keys))), [b"k"] * len(keys), [b""] * len(keys))]

    def places(self, batch, keys):
        return [None] * len(keys), [0] * len(keys)


@pytest.fixture
def table():
    queue = Queue()
    yield StoreTable(queue, durable=False)
    os.close(queue.fd)


@pytest.fixture
def space():
    return Space()


def submit(table, space, task, *keys):
    table.submit(task, list(keys), [memory_obj() for _ in keys], Batches(space))
    return space.jobs[-1]


KEY = object_key(1)


def test_a_block_evicted_before_its_store_is_told_is_never_told(table, space):
    job = submit(table, space, 1, KEY, object_key(2))
    assert table.cancel_notice(KEY, NBYTES)
    job.end("stored", "stored")
    notices = table.harvest()
    assert notices.stored == [(object_key(2), NBYTES)]
    assert notices.gone == []
    assert table.take_results()[1].is_successful()
    assert not table.cancel_notice(KEY, NBYTES)


def test_a_block_evicted_and_stored_again_stays_told(table, space):
    # LMCache knows the key from before; its eviction is drained while the second store is in flight.
    job = submit(table, space, 1, KEY)
    assert table.cancel_notice(KEY, NBYTES)
    job.end("stored")
    assert table.harvest() == ([], [])


def test_a_store_that_finds_the_block_present_tells_of_an_older_eviction(table, space):
    job = submit(table, space, 1, KEY)
    assert table.cancel_notice(KEY, NBYTES)
    job.end("present")
    assert table.harvest() == ([], [(KEY, NBYTES)])


def test_a_failed_store_tells_of_an_older_eviction_and_fails_its_task(table, space):
    job = submit(table, space, 1, KEY)
    assert table.cancel_notice(KEY, NBYTES)
    job.end("error")
    assert table.harvest() == ([], [(KEY, NBYTES)])
    assert not table.take_results()[1].is_successful()


def test_of_two_stores_of_one_key_the_last_to_end_settles_the_account(table, space):
    first, second = submit(table, space, 1, KEY), submit(table, space, 2, KEY)
    assert table.cancel_notice(KEY, NBYTES)
    second.end("present")
    assert table.harvest() == ([], [])
    first.end("stored")
    assert table.harvest() == ([], [])
    assert not table.cancel_notice(KEY, NBYTES)


def test_bytes_moved_are_those_of_new_blocks(table, space):
    submit(table, space, 7, KEY, object_key(2)).end("present", "stored")
    table.harvest()
    assert table.take_results()[7].bytes_transferred() == NBYTES
