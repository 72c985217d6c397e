# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: metadata engines are linearizable and their watches tell all, also with lost answers and killed servers.

Method: ``engine_history`` with several clients from a seed: threads of this process, each with a connection of its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter

import pytest
from engine_history import Client, check
from etcd_server import EtcdServer, missing
from python_support import patiently

from kvstore import _core
from kvstore.cluster import open_engine
from kvstore.cluster.memory import MemoryEngine
from kvstore.cluster.native import NativeEngine

CLIENTS = 4
SEEDS = 100
PREFIX = "history/"
WAIT_S_MAX = 60


def run_clients(engines, reader, turns, during=lambda: None, seed=0):
    """Counts of what ``turns`` calls of each engine came to, all explained by the reader's watch."""
    first = reader.range(PREFIX).revision
    watch = reader.watch(PREFIX, first)
    clients = [Client(engine, PREFIX, CLIENTS * seed + number, turns) for number, engine in enumerate(engines)]
    for client in clients:
        client.start()
    during()
    changes = []
    while any(client.is_alive() for client in clients):
        changes += patiently(lambda: watch.poll(0.01), WAIT_S_MAX)
    last = patiently(lambda: reader.range(PREFIX), WAIT_S_MAX)
    while True:
        more = patiently(lambda: watch.poll(0.3), WAIT_S_MAX)
        if not more:
            break
        changes += more
    watch.close()
    state = {change.item.key: change.item.value for change in changes}
    for change in changes:
        state[change.item.key] = None if change.erased else change.item.value
    assert {item.key: item.value for item in last.items} == {key: value for key, value in state.items() if value}
    return check([call for client in clients for call in client.calls], first, changes)


def test_the_check_finds_a_compare_that_was_not_kept():
    class Careless(MemoryEngine):
        def txn(self, compares, operations):
            return super().txn(compares[1:], operations)

    cluster = _core.MemoryCluster(0)
    with pytest.raises(AssertionError):
        run_clients([Careless(cluster) for _ in range(CLIENTS)], MemoryEngine(cluster), turns=400)


def test_the_check_finds_a_watch_with_a_gap(monkeypatch):
    cluster = _core.MemoryCluster(0)
    reader = MemoryEngine(cluster)
    watch = reader.watch

    def forgetful(prefix, after):
        watched = watch(prefix, after)
        poll = watched.poll
        watched.poll = lambda timeout_s: poll(timeout_s)[:-1]
        return watched

    monkeypatch.setattr(reader, "watch", forgetful)
    with pytest.raises(AssertionError):
        run_clients([MemoryEngine(cluster) for _ in range(CLIENTS)], reader, turns=100)


def memory_history(seed):
    cluster = _core.MemoryCluster(0)
    seeds = range(CLIENTS * seed, CLIENTS * (seed + 1))
    engines = [MemoryEngine(cluster, seed=seed, request_lost=0.1, reply_lost=0.1) for seed in seeds]
    return run_clients(engines, MemoryEngine(cluster), turns=300, seed=seed)


def sqlite_history(folder, seed, bridged):
    with contextlib.ExitStack() as stack:
        engines = [
            stack.enter_context(contextlib.closing(open_engine(f"sqlite:{folder}/{seed}.db")))
            for _ in range(CLIENTS + 1)
        ]
        seen = [NativeEngine(_core.CoreEngine.bridged(engine)) for engine in engines] if bridged else engines
        return run_clients(seen[1:], seen[0], turns=60, seed=seed)


def test_answers_that_are_lost_leave_a_history_that_one_order_explains():
    counts = memory_history(1)
    assert min(counts.values()) > 20, counts


@pytest.mark.parametrize("bridged", [False, True])
def test_sqlite_has_a_history_that_one_order_explains(tmp_path, bridged):
    counts = sqlite_history(tmp_path, 1, bridged)
    assert counts["unknown"] == counts["unknown but done"] == 0
    assert min(counts["applied"], counts["refused"], counts["ranges"]) > 0, counts


@pytest.mark.slow
def test_many_histories_have_one_order_that_explains_each(tmp_path):
    first = int(os.environ.get("KVS_FIRST_SEED", "2"))
    counts = Counter()
    for seed in range(first, first + SEEDS):
        print(f"KVS_FIRST_SEED={seed}")  # the last one printed is the one that failed
        counts.update(memory_history(seed))
        if seed % 4 == 0:
            counts.update(sqlite_history(tmp_path, seed, bridged=seed % 8 == 0))
    print(dict(counts))


@pytest.mark.parametrize("kills", [0, 2])
def test_etcd_has_a_history_that_one_order_explains_also_when_it_is_killed(tmp_path, kills):
    if reason := missing():
        pytest.skip(reason)
    with EtcdServer(tmp_path) as server, contextlib.ExitStack() as stack:
        engines = [
            stack.enter_context(contextlib.closing(open_engine(f"etcd://{server.endpoint}", timeout_s=10)))
            for _ in range(CLIENTS + 1)
        ]

        def kill() -> None:
            for _ in range(kills):
                time.sleep(0.1)  # in the midst of the clients' calls
                server.kill()
                server.start()

        counts = run_clients(engines[1:], engines[0], turns=100 if kills == 0 else 600, during=kill)
    assert min(counts["applied"], counts["refused"], counts["ranges"]) > 0, counts
    assert (counts["unknown"] > 0) == (kills > 0), counts
