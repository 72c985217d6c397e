# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: every metadata engine keeps what kvstore/cluster/engine.py promises.

Method: one suite, run on the memory, SQLite and etcd engines, and on the bridge by which the core calls one in Python;
two clients of one service where it takes two.
"""

from __future__ import annotations

import threading
import time

import pytest
from etcd_server import EtcdServer, free_port, missing

from kvstore import _core
from kvstore.cluster import Compare, Erase, KeyValue, MetadataEngine, Put, open_engine
from kvstore.cluster.engine import TXN_MAX
from kvstore.cluster.native import NativeEngine
from kvstore.errors import ConfigError, EngineError, LeaseEnded, StaleError, StoreFailed

ENDS_S_MAX = 8


@pytest.fixture(scope="session")
def etcd(tmp_path_factory):
    if reason := missing():
        pytest.skip(reason)
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server.endpoint


@pytest.fixture(params=["memory", "sqlite", "etcd", "bridged"])
def kind(request):
    return request.param


@pytest.fixture
def ttl_s(kind):
    # etcd makes a lease of less than its election time-out, about a second and a half, last that long.
    return 2 if kind == "etcd" else 1


@pytest.fixture
def url(request, tmp_path, kind):
    if kind == "etcd":
        return f"etcd://{request.getfixturevalue('etcd')}"
    return f"memory:{tmp_path}" if kind == "memory" else f"sqlite:{tmp_path / 'engine.db'}"


@pytest.fixture
def connect(url, kind):
    """Make clients of one service."""
    engines = []

    def make() -> MetadataEngine:
        engines.append(open_engine(url))
        return NativeEngine(_core.CoreEngine.bridged(engines[-1])) if kind == "bridged" else engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(connect):
    return connect()


@pytest.fixture
def prefix(request, tmp_path):
    """Keys of one test: the etcd server is shared by all."""
    return f"{tmp_path.name}/{request.node.name}/"


def put(engine, key, value=b"", lease=0):
    return engine.txn([], [Put(key, value, lease)]).revision


def changes_until(watch, wanted, timeout_s=ENDS_S_MAX):
    """Every change up to the first that ``wanted`` accepts."""
    deadline = time.monotonic() + timeout_s
    seen = []
    while not any(map(wanted, seen)):
        assert time.monotonic() < deadline, f"only {seen}"
        seen += watch.poll(0.2)
    return seen


# ---- transactions ----


def test_what_a_transaction_wrote_is_read_by_everyone(connect, prefix):
    first, second = connect(), connect()
    revision = first.txn([], [Put(prefix + "b", b"\x00\xff"), Put(prefix + "a", b"")]).revision
    snapshot = second.range(prefix)
    assert snapshot.items == (
        KeyValue(prefix + "a", b"", revision),
        KeyValue(prefix + "b", b"\x00\xff", revision),
    )
    assert snapshot.revision >= revision


def test_a_compare_that_does_not_hold_changes_nothing(engine, prefix):
    revision = put(engine, prefix + "a", b"1")
    for compares in (
        [Compare(prefix + "a", None)],
        [Compare(prefix + "a", b"")],
        [Compare(prefix + "a", b"10")],
        [Compare(prefix + "b", b"")],
        [Compare(prefix + "a", b"1"), Compare(prefix + "b", b"1")],
    ):
        outcome = engine.txn(compares, [Put(prefix + "a", b"2"), Put(prefix + "c", b"3")])
        assert not outcome.applied, compares
    assert engine.range(prefix).items == (KeyValue(prefix + "a", b"1", revision),)


def test_compares_that_hold_let_it_through(engine, prefix):
    revision = put(engine, prefix + "a", b"\x001\xff")
    put(engine, prefix + "empty", b"")
    compares = [Compare(prefix + "a", b"\x001\xff"), Compare(prefix + "empty", b""), Compare(prefix + "b")]
    outcome = engine.txn(compares, [Put(prefix + "b", b"2")])
    assert outcome.applied
    assert outcome.revision > revision


def test_a_value_that_came_back_compares_as_it_did(engine, prefix):
    """Not the revision is compared: values carry a stamp where they must not be mistaken for each other (S1)."""
    for value in (b"1", b"2", b"1"):
        put(engine, prefix + "a", value)
    assert engine.txn([Compare(prefix + "a", b"1")], [Erase(prefix + "a")]).applied


def test_each_change_has_a_higher_revision_and_reads_have_none(engine, prefix):
    first = put(engine, prefix + "a")
    second = put(engine, prefix + "a")
    assert second > first
    assert engine.txn([], [Erase(prefix + "not there")]).revision == second
    assert engine.range(prefix).revision == second


def test_an_erased_key_compares_as_absent(engine, prefix):
    put(engine, prefix + "a")
    engine.txn([], [Erase(prefix + "a")])
    assert engine.range(prefix).items == ()
    assert engine.txn([Compare(prefix + "a")], [Put(prefix + "a", b"again")]).applied


def test_a_transaction_may_be_as_large_as_etcd_takes_it_and_no_larger(engine, prefix, kind):
    names = [f"{prefix}{number:03}" for number in range(TXN_MAX + 1)]
    most = names[:-1]
    assert engine.txn([Compare(name) for name in most], [Put(name, b"1" * 500) for name in most]).applied
    refusal = StoreFailed if kind == "bridged" else ConfigError
    for compares, operations in ((names, names[:1]), (names[:1], names)):
        with pytest.raises(refusal, match="allowed"):
            engine.txn([Compare(name, b"1" * 500) for name in compares], [Erase(name) for name in operations])
    assert len(engine.range(prefix).items) == TXN_MAX


def test_a_prefix_is_a_prefix_and_no_pattern(engine, prefix):
    for name in ("x%", "x_", "xy", "x", "y", "x\u00e9"):
        put(engine, prefix + name)
    assert [item.key for item in engine.range(prefix + "x%").items] == [prefix + "x%"]
    assert len(engine.range(prefix + "x").items) == 5


def test_of_many_who_take_one_key_one_wins(connect, prefix):
    engines = [connect() for _ in range(8)]
    won = []

    def take(number):
        if engines[number].txn([Compare(prefix + "a")], [Put(prefix + "a", b"%d" % number)]).applied:
            won.append(b"%d" % number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [item.value for item in engines[0].range(prefix).items] == won


def test_increments_by_compare_and_put_lose_none(connect, prefix):
    engines = [connect() for _ in range(4)]

    def add(engine):
        for _ in range(25):
            while True:
                items = engine.range(prefix).items
                seen = items[0].value if items else None
                value = b"%d" % (int(seen or 0) + 1)
                if engine.txn([Compare(prefix + "n", seen)], [Put(prefix + "n", value)]).applied:
                    break

    threads = [threading.Thread(target=add, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engines[0].range(prefix).items[0].value == b"100"


# ---- watches ----


def test_a_watch_tells_every_change_once_and_in_order(connect, prefix):
    writer, reader = connect(), connect()
    before = put(writer, prefix + "a", b"0")
    put(writer, prefix + "a", b"1")
    watch = reader.watch(prefix, before)
    writer.txn([], [Erase(prefix + "a"), Put(prefix + "b", b"2")])
    put(writer, prefix[:-1] + "elsewhere")
    put(writer, prefix + "last")
    seen = changes_until(watch, lambda change: change.item.key.endswith("last"))
    assert [(c.item.key.removeprefix(prefix), c.item.value, c.erased) for c in seen] == [
        ("a", b"1", False),
        ("a", b"", True),
        ("b", b"2", False),
        ("last", b"", False),
    ]
    assert watch.poll(0) == []
    watch.close()


def test_a_watch_waits_no_longer_than_it_is_told(engine, prefix):
    watch = engine.watch(prefix, engine.range(prefix).revision)
    begin = time.monotonic()
    assert watch.poll(0.2) == []
    assert 0.15 < time.monotonic() - begin < 2
    watch.close()


def test_a_watch_wakes_for_a_change_made_meanwhile(connect, prefix):
    writer, reader = connect(), connect()
    watch = reader.watch(prefix, reader.range(prefix).revision)
    timer = threading.Timer(0.3, put, (writer, prefix + "a"))
    timer.start()
    assert [change.item.key for change in watch.poll(ENDS_S_MAX)] == [prefix + "a"]
    timer.join()
    watch.close()


def test_a_watch_of_changes_that_are_not_kept_says_so(engine, prefix, url, monkeypatch):
    first = put(engine, prefix + "a")
    if url.startswith("sqlite"):
        monkeypatch.setattr("kvstore.cluster.sqlite.CHANGES_MAX", 10)
    for _ in range(20 if not url.startswith("memory") else 10_010):
        last = put(engine, prefix + "a")
    if url.startswith("etcd"):
        engine._post("/kv/compaction", {"revision": str(last - 5), "physical": True})
    watch = engine.watch(prefix, first)
    with pytest.raises(StaleError, match="make a range and a watch anew"):
        changes_until(watch, lambda change: False)
    watch.close()
    fresh = engine.watch(prefix, engine.range(prefix).revision)
    put(engine, prefix + "b")
    assert changes_until(fresh, lambda change: True)[0].item.key == prefix + "b"
    fresh.close()


# ---- leases ----


def test_keys_of_a_lease_go_when_it_ends_and_watches_hear_of_it(connect, prefix, ttl_s):
    owner, other = connect(), connect()
    begin = time.monotonic()
    lease = owner.grant(ttl_s)
    put(owner, prefix + "stays")
    revision = owner.txn([], [Put(prefix + "a", b"1", lease), Put(prefix + "b", b"2", lease)]).revision
    assert {item.lease for item in other.range(prefix).items} == {lease, 0}
    watch = other.watch(prefix, revision)
    seen = changes_until(watch, lambda change: change.item.key == prefix + "b")
    watch.close()
    assert time.monotonic() - begin >= ttl_s
    assert [(change.item.key, change.erased) for change in seen] == [(prefix + "a", True), (prefix + "b", True)]
    assert [item.key for item in other.range(prefix).items] == [prefix + "stays"]
    with pytest.raises(LeaseEnded, match="has ended"):
        owner.renew(lease)


def test_a_renewed_lease_lives_on(engine, prefix, ttl_s):
    lease = engine.grant(ttl_s)
    put(engine, prefix + "a", b"", lease)
    end = time.monotonic() + 2 * ttl_s
    while time.monotonic() < end:
        engine.renew(lease)
        time.sleep(ttl_s / 4)
    assert len(engine.range(prefix).items) == 1
    engine.revoke(lease)


def test_a_revoked_lease_takes_its_keys_at_once(engine, prefix):
    lease = engine.grant(60)
    put(engine, prefix + "a", b"", lease)
    engine.revoke(lease)
    assert engine.range(prefix).items == ()
    engine.revoke(lease)  # of one that has ended: nothing


def test_a_put_with_an_ended_lease_does_nothing_at_all(engine, prefix):
    lease = engine.grant(60)
    engine.revoke(lease)
    with pytest.raises(LeaseEnded):
        engine.txn([], [Put(prefix + "a", b""), Put(prefix + "b", b"", lease)])
    assert engine.range(prefix).items == ()


def test_a_key_written_without_its_lease_leaves_it(engine, prefix):
    lease = engine.grant(60)
    put(engine, prefix + "a", b"", lease)
    put(engine, prefix + "a", b"mine")
    engine.revoke(lease)
    assert [item.value for item in engine.range(prefix).items] == [b"mine"]


def test_leases_of_a_client_outlive_its_connection(connect, prefix):
    owner, other = connect(), connect()
    lease = owner.grant(60)
    put(owner, prefix + "a", b"", lease)
    owner.close()
    assert len(other.range(prefix).items) == 1
    other.revoke(lease)


# ---- what it costs ----


def test_requests_are_counted_and_a_watch_that_waits_is_none(connect, prefix):
    engine, other = connect(), connect()
    before = engine.requests
    lease = engine.grant(60)
    revision = put(engine, prefix + "a", b"", lease)
    engine.renew(lease)
    engine.range(prefix)
    assert engine.requests == before + 4
    watch = engine.watch(prefix, revision)
    before = engine.requests
    for _ in range(20):
        assert watch.poll(0.001) == []
    put(other, prefix + "b")
    changes_until(watch, lambda change: True)
    assert engine.requests == before
    watch.close()
    other.revoke(lease)


# ---- what may be forgotten ----


def test_what_an_engine_forgets_is_what_its_url_says(etcd):
    assert open_engine("memory:forgetful?forgets_s=1.5").forgets_s == 1.5
    for url, forgets_s in ((f"etcd://{etcd}", 0), (f"etcd://{etcd}?forgets_s=2", 2)):
        engine = open_engine(url)
        assert engine.forgets_s == forgets_s
        engine.close()


@pytest.mark.parametrize("options", ["forgets_s=", "forgets_s=-1", "forgets_s=nan", "forgets_s=1e9", "forget=1"])
def test_an_option_of_no_sense_is_refused(options):
    with pytest.raises(ConfigError, match="forgets_s"):
        open_engine(f"etcd://127.0.0.1:1?{options}")


# ---- what is refused ----


@pytest.mark.parametrize("url", ["", "redis://x", "etcd:host:1", "memory:", "etcd://host"])
def test_a_url_of_no_engine_is_refused_with_the_forms_there_are(url):
    with pytest.raises(ConfigError, match="etcd"):
        open_engine(url)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("", "is not host:port"), (":", "is not host:port"), ("host", "is not host:port"),
        ("host:abc", "is not host:port"), ("host:\u00b2", "is not host:port"), ("host:1/x", "is not host:port"),
        ("host:1,", "'' is not host:port"), ("fd00::1:2379", r"such as .* \[fd00::1\]:2379"),
        ("[h]:1", "is not host:port"), ("host:0", "a port is from 1 to 65,535"), ("host:99999", "a port is from 1 to"),
        (f"host:{'9' * 5000}", "a port is from 1 to"), ("u:p@h:1", "user names and passwords are not supported"),
    ],
)  # fmt: skip
def test_an_etcd_endpoint_that_is_none_is_refused_with_what_one_is(place, told):
    with pytest.raises(ConfigError, match=f"etcd endpoint .*{told}"):
        open_engine(f"etcd://{place}")


def test_an_etcd_that_is_not_there_is_an_engine_error():
    pytest.importorskip("etcd3gw", reason="etcd3gw is not installed")
    with pytest.raises(EngineError, match="does not answer"):
        open_engine(f"etcd://127.0.0.1:{free_port()}", timeout_s=1)
