# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the thread of a shared pool that asks its metadata engine, in Python, never blocks or crashes the process.

Method: pools on files with a SQLite engine, or one that is slow or dead on purpose; real child processes that exit and
fork; a thread that keeps the GIL.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import signal
import sqlite3
import threading
import time

import pytest
from python_support import IDENTITY, POOL, wait_until
from test_process import finish, in_child

import kvstore
from kvstore import _core, errors
from kvstore.cluster.memory import MemoryEngine

LEASE_S = 2
PRELUDE = """
import os, sys, threading, time
import kvstore
pool = kvstore.open(sys.argv[1], mode="shared")
space = pool.space(engine="test", model="none", dtype="uint8", tp_size=1)
"""


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "pool.img")
    kvstore.format(path, **POOL)
    return path


@pytest.fixture
def pool(path):
    with kvstore.open(path, mode="shared", lease_s=LEASE_S) as opened:
        yield opened


class Troubled(MemoryEngine):
    """Takes ``pause_s`` for every call."""

    pause_s = 0.0

    def __init__(self):
        super().__init__(_core.MemoryCluster(0))

    def _request(self):
        time.sleep(self.pause_s)
        return super()._request()


def put_until_stored(space, key):
    def stored() -> bool:
        try:
            return space.put(key, b"value").status in ("stored", "present")
        except errors.BusyError:
            return False

    wait_until(stored, "a put is taken", 20)


def test_puts_are_refused_in_time_by_an_engine_that_renews_leases_and_does_nothing_else(path):
    with (
        kvstore.open(path, mode="shared", lease_s=LEASE_S) as pool,
        contextlib.closing(sqlite3.connect(f"{path}.sqlite", isolation_level=None)) as database,
    ):
        space = pool.space(**IDENTITY)
        put_until_stored(space, b"before")
        database.execute("CREATE TRIGGER full BEFORE INSERT ON change BEGIN SELECT RAISE(ABORT, 'no space'); END")

        def refused() -> bool:
            try:
                space.put(b"%d" % next(numbers), bytes(65536))  # until the regions that are ready are full
            except errors.BusyError as refusal:
                return "no space" in str(refusal)
            return False

        numbers = itertools.count()
        wait_until(refused, "a put is refused", 20)
        assert "no space" in pool.stats()["write_refusal"]
        assert space.get(b"before", bytearray(5)) == 5
        database.execute("DROP TRIGGER full")
        put_until_stored(space, b"after")


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(0)", "pool.close()"])
def test_a_process_that_ends_leaves_the_pool_and_what_it_put(path, python, end):
    child = python(PRELUDE + "space.put(b'key', b'value', durable=True)\n" + end, path)
    assert finish(child) == (0, "")
    with kvstore.open(path, mode="shared", lease_s=LEASE_S) as pool:
        assert pool.stats()["openers"] == 1, "it did not say that it left"
        assert pool.space(**IDENTITY).get(b"key", bytearray(5)) == 5


def test_exit_while_threads_put_and_the_engine_is_asked_does_not_crash(path, python):
    child = python(
        PRELUDE
        + """
def work(number):
    for i in range(1 << 30):
        try:
            space.put(b"%d-%d" % (number, i), b"x" * 65536)
        except kvstore.BusyError:
            pass
        except kvstore.ClosedError:
            pass
for number in range(4):
    threading.Thread(target=work, args=(number,), daemon=True).start()
while pool.stats()["puts_stored"] < 100:
    time.sleep(0.001)
""",
        path,
    )
    assert finish(child) == (0, "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_ends_and_its_parent_goes_on_with_its_lease(pool):
    space = pool.space(**IDENTITY)
    space.put(b"key", b"value")

    def use() -> None:
        with pytest.raises(errors.ClosedError):
            space.put(b"other", b"v")
        with pytest.raises(errors.ClosedError):
            pool.close()

    for _ in range(3):
        assert in_child(use) == 0
    renewals = pool.stats()["engine_requests"]
    wait_until(lambda: pool.stats()["engine_requests"] > renewals, "the lease is renewed", 10)
    assert space.put(b"after", b"value").status == "stored"
    assert pool.stats()["rejoins"] == 0


def test_close_waits_for_a_slow_engine_no_longer_than_its_calls_take(path):
    engine = Troubled()
    pool = kvstore.open(path, mode="shared", engine=engine, lease_s=LEASE_S)
    pool.space(**IDENTITY).put(b"key", b"value")
    engine.pause_s = 0.5
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < 10


def test_a_refresh_whose_round_takes_longer_than_signals_wait_ends_all_the_same(path):
    engine = Troubled()
    with kvstore.open(path, mode="shared", engine=engine, lease_s=LEASE_S) as pool:
        engine.pause_s = 0.1  # of three calls
        pool.refresh(20)


def test_a_signal_handler_that_raises_ends_a_refresh(path):
    engine = Troubled()
    with kvstore.open(path, mode="shared", engine=engine, lease_s=LEASE_S) as pool:
        engine.pause_s = 0.5
        threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            pool.refresh(60)
        assert time.monotonic() - begin < 10
        engine.pause_s = 0
        pool.refresh(20)


def test_a_thread_that_keeps_the_gil_for_longer_than_a_lease_costs_time_and_no_block(pool):
    space = pool.space(**IDENTITY)
    for i in range(20):
        space.put(b"%d" % i, b"value")
    ctypes.PyDLL(None).usleep(int(1.5 * LEASE_S * 1e6))
    assert all(space.get(b"%d" % i, bytearray(5)) == 5 for i in range(20))
    put_until_stored(space, b"after")
    assert all(space.get(b"%d" % i, bytearray(5)) == 5 for i in range(20))


def test_many_threads_of_a_pool_and_its_engine_get_on_with_one_gil(pool):
    space = pool.space(**IDENTITY)
    problems = []

    def work(number):
        for i in range(60):
            key = b"%d-%d" % (number, i)
            try:
                space.put(key, b"v" * 5000)
            except errors.BusyError:
                continue
            if space.get(key, bytearray(5000)) != 5000:
                problems.append(key)
            space.match_prefix([key] * 80)
            pool.stats()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert problems == []
