# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: an etcd that stops, comes back, or is reached by another way costs time and nothing else.

Method: a real etcd that is killed and started again on its data, and sockets that listen and never answer. What every
engine promises is in ``test_engines.py``.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import time

import pytest
from etcd_server import Certificates, EtcdServer, free_port, missing
from python_support import patiently
from test_process import in_child

from kvstore.cluster import Compare, Put, open_engine
from kvstore.errors import ConfigError, EngineError, StaleError

WAIT_S_MAX = 20


@pytest.fixture
def server(tmp_path):
    if reason := missing():
        pytest.skip(reason)
    with EtcdServer(tmp_path) as started:
        yield started


@pytest.fixture
def connect(server):
    with contextlib.ExitStack() as engines:

        def make(endpoints: str = server.endpoint, timeout_s: float = 10):
            return engines.enter_context(contextlib.closing(open_engine(f"etcd://{endpoints}", timeout_s=timeout_s)))

        yield make


@pytest.fixture
def mute():
    """Return ``host:port`` of one who takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def put(engine, key, value=b""):
    return engine.txn([], [Put(key, value)]).revision


def test_a_watch_survives_a_server_that_is_killed_and_started_again_without_a_gap(server, connect):
    engine = connect()
    watch = engine.watch("", put(engine, "before"))
    put(engine, "1")
    seen = watch.poll(WAIT_S_MAX)
    put(engine, "2")
    server.kill()
    with pytest.raises(EngineError, match="does not answer"):
        put(engine, "lost")
    server.start()
    patiently(lambda: put(engine, "3"), WAIT_S_MAX)
    while seen[-1].item.key != "3":
        seen += patiently(lambda: watch.poll(WAIT_S_MAX), WAIT_S_MAX)
    assert [change.item.key for change in seen] == ["1", "2", "3"]
    watch.close()


def test_a_watch_of_an_engine_that_forgets_does_not_go_on_after_a_break(server, connect):
    engine = connect(f"{server.endpoint}?forgets_s=1")
    watch = engine.watch("", put(engine, "a"))
    server.kill()
    with pytest.raises(EngineError):
        watch.poll(WAIT_S_MAX)
    server.start()
    with pytest.raises(StaleError, match="forgets_s"):
        watch.poll(WAIT_S_MAX)


def test_tls_with_certificates_on_both_sides(tmp_path):
    if reason := missing():
        pytest.skip(reason)
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    pki = Certificates(tmp_path)
    with EtcdServer(tmp_path, pki) as server:
        place = f"etcds://{server.endpoint}?ca={pki.ca}"
        engine = open_engine(f"{place}&cert={pki.cert}&key={pki.key}")
        watch = engine.watch("", put(engine, "a"))
        put(engine, "b")
        assert [change.item.key for change in watch.poll(WAIT_S_MAX)] == ["b"]
        watch.close()
        engine.close()
        for stranger in (place, f"etcds://{server.endpoint}?cert={pki.cert}&key={pki.key}"):
            with pytest.raises(EngineError, match="SSL"):
                open_engine(stranger)


@pytest.mark.parametrize(("options", "text"), [("ca=not/there", "no file not/there"), ("cert=a", "go together")])
def test_tls_files_that_do_not_do_are_refused(options, text):
    pytest.importorskip("etcd3gw", reason="etcd3gw is not installed")
    with pytest.raises(ConfigError, match=text):
        open_engine(f"etcds://127.0.0.1:1?{options}")


def test_what_was_acknowledged_survives_the_kill_of_the_server(server, connect):
    engine = connect()
    lease = engine.grant(60)
    for turn in range(20):
        engine.txn([], [Put(f"{turn}", b"x", lease)])
    server.kill()
    server.start()
    assert len(patiently(lambda: engine.range(""), WAIT_S_MAX).items) == 20
    engine.renew(lease)


def test_a_poll_tells_that_the_server_is_gone_and_does_not_wait_for_it(server, connect):
    engine = connect()
    watch = engine.watch("", put(engine, "a"))
    server.kill()
    begin = time.monotonic()
    for _ in range(2):
        with pytest.raises(EngineError):
            watch.poll(WAIT_S_MAX)
    assert time.monotonic() - begin < WAIT_S_MAX / 2
    watch.close()


def test_of_several_endpoints_one_that_lives_is_enough(server, connect):
    engine = connect(f"127.0.0.1:{free_port()},{server.endpoint},127.0.0.1:{free_port()}")
    assert engine.txn([Compare("a")], [Put("a", b"")]).applied
    before = engine.requests
    assert engine.txn([Compare("b")], [Put("b", b"")]).applied
    assert engine.requests == before + 1, "who failed is asked last"


def test_a_change_that_one_endpoint_may_have_got_is_not_sent_to_another(server, connect, mute):
    engine = connect(f"{server.endpoint},{mute}", timeout_s=1.5)
    engine._ask_last(engine._clients[0])
    with pytest.raises(EngineError, match="does not answer"):
        engine.txn([Compare("a")], [Put("a", b"")])
    assert engine.range("").items == (), "and the one that does not answer is asked last from then on"


@pytest.mark.parametrize("call", [lambda engine: engine.range(""), lambda engine: engine.watch("", 1)])
def test_a_call_ends_within_its_time_limit(server, connect, mute, call):
    engine = connect(f"{server.endpoint},{mute}", timeout_s=1.5)
    engine._ask_last(engine._clients[0])
    begin = time.monotonic()
    with pytest.raises(EngineError):
        call(engine)
    assert 1 < time.monotonic() - begin < 9


def test_a_watch_that_comes_back_to_one_who_does_not_answer_says_so_in_time(server, connect):
    engine = connect(timeout_s=1.5)
    watch = engine.watch("", put(engine, "a"))
    server.kill()
    host, port = server.endpoint.split(":")
    with socket.create_server((host, int(port))):
        with pytest.raises(EngineError, match="next poll"):
            watch.poll(WAIT_S_MAX)
        begin = time.monotonic()
        with pytest.raises(EngineError, match="does not answer"):
            watch.poll(WAIT_S_MAX)
        assert 1 < time.monotonic() - begin < 9
    server.start()
    put(engine, "b")
    assert [change.item.key for change in patiently(lambda: watch.poll(WAIT_S_MAX), WAIT_S_MAX)] == ["b"]
    watch.close()


def test_a_watch_may_be_silent_for_longer_than_any_answer_may_take(connect):
    engine = connect(timeout_s=0.5)
    watch = engine.watch("", put(engine, "a"))
    stream = watch._stream
    assert watch.poll(1.5) == []
    put(engine, "b")
    assert [change.item.key for change in watch.poll(WAIT_S_MAX)] == ["b"]
    assert watch._stream is stream, "it was not opened anew"
    watch.close()


def test_a_watch_that_nobody_polls_ends_with_its_thread(connect):
    engine = connect()
    before = set(threading.enumerate())
    watches = [engine.watch("", put(engine, "a")) for _ in range(5)]
    threads = set(threading.enumerate()) - before
    assert [thread.name for thread in threads] == ["kvs-etcd-watch"] * 5
    for watch in watches:
        watch.close()
    for thread in threads:
        thread.join(WAIT_S_MAX)
        assert not thread.is_alive()


def test_a_message_that_is_none_of_etcds_ends_the_watch_and_not_its_news(connect, monkeypatch):
    engine = connect()
    watch = engine.watch("", put(engine, "a"))
    parse = watch._stream._parse
    monkeypatch.setattr(watch._stream, "_parse", lambda line: parse(b'{"result": {"events": [{"type": "PUT"}]}}'))
    put(engine, "b")
    with pytest.raises(EngineError, match="KeyError"):
        watch.poll(WAIT_S_MAX)
    assert [change.item.key for change in watch.poll(WAIT_S_MAX)] == ["b"]
    watch.close()


def test_proxies_of_the_environment_are_not_used(server, connect, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    assert connect().range("").items == ()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_refused_and_leaves_the_parents_connections_alone(connect):
    engine = connect()
    watch = engine.watch("", put(engine, "a"))

    def use() -> None:
        for call in (lambda: engine.range(""), lambda: watch.poll(0)):
            with pytest.raises(EngineError, match="after fork"):
                call()
        watch.close()

    assert in_child(use) == 0
    put(engine, "b")
    assert [change.item.key for change in watch.poll(WAIT_S_MAX)] == ["b"]
    watch.close()


@pytest.mark.parametrize("endpoints", ["", "host", "host:", ":1", "host:1,", "host:port"])
def test_an_endpoint_that_is_none_is_refused(endpoints):
    pytest.importorskip("etcd3gw", reason="etcd3gw is not installed")
    with pytest.raises(ConfigError, match="host:port"):
        open_engine(f"etcd://{endpoints}")
