# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the core may call a metadata engine in Python from its own threads, whatever that does, and whenever.

Method: ``_core.CoreEngine.bridged`` makes each call on a thread that is not Python's. Engines that raise, lie, wait,
and outlive the interpreter. That a bridged engine keeps every promise of one is in ``test_engines.py``.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref

import pytest
from test_process import finish, in_child

from kvstore import _core, errors
from kvstore.cluster import KeyValue, Put, Snapshot
from kvstore.cluster.memory import MemoryEngine


class Scripted:
    """Does the same whatever it is asked for."""

    forgets_s = 0.25

    def __init__(self, answer):
        self.txn = self.range = self.watch = self.grant = self.renew = self.revoke = answer


def raising(error):
    def raise_it(*unused):
        raise error

    return _core.CoreEngine.bridged(Scripted(raise_it))


def calls_of(engine):
    return [
        lambda: engine.txn([("a", None)], [("a", b"", 0, False)]),
        lambda: engine.range("a"),
        lambda: engine.watch("a", 0),
        lambda: engine.grant(1),
        lambda: engine.renew(1),
        lambda: engine.revoke(1),
    ]


@pytest.mark.parametrize(
    ("raised", "seen", "code", "text"),
    [
        (errors.EngineError("no answer"), errors.WaitTimeout, "timeout", "no answer"),
        (errors.LeaseEnded("lease 7 has ended"), errors.FormatError, "not_found", "lease 7 has ended"),
        (errors.StaleError("compacted"), errors.StaleError, "stale", "compacted"),
        (ValueError("a bug"), errors.StoreFailed, "failed", "ValueError in the metadata engine: a bug"),
        (SystemExit(3), errors.StoreFailed, "failed", "SystemExit in the metadata engine: 3"),
    ],
)
def test_what_an_engine_raises_becomes_a_status(raised, seen, code, text):
    for call in calls_of(raising(raised)):
        with pytest.raises(seen) as caught:
            call()
        assert (caught.value.code, str(caught.value)) == (code, text)


def test_an_engine_that_fails_at_once_is_not_asked_without_pause():
    asked = []

    def fail(*unused):
        asked.append(None)
        raise errors.EngineError("connection refused")

    engine = _core.CoreEngine.bridged(Scripted(fail))
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        with pytest.raises(errors.WaitTimeout):
            engine.range("")
    assert 1 <= len(asked) <= 11


@pytest.mark.parametrize("answer", [None, 7, "text", (), Snapshot((1,), 2), Snapshot((KeyValue("a", "text", 1),), 2)])
def test_an_engine_that_answers_nonsense_fails_and_crashes_nothing(answer):
    engine = _core.CoreEngine.bridged(Scripted(lambda *unused: answer))
    for call in calls_of(engine)[:2]:
        with pytest.raises(errors.StoreFailed, match="metadata engine"):
            call()


def test_a_poll_that_waits_leaves_the_interpreter_to_others():
    woken, waiting = threading.Event(), threading.Event()

    class Waiting:
        closed = False

        def poll(self, timeout_s):
            waiting.set()
            assert woken.wait(timeout_s)
            return []

        def close(self):
            self.closed = True

    given = Waiting()
    watch = _core.CoreEngine.bridged(Scripted(lambda *unused: given)).watch("a", 0)
    polling = threading.Thread(target=watch.poll, args=(60_000_000_000,))
    polling.start()
    assert waiting.wait(20)
    woken.set()
    polling.join(20)
    assert not polling.is_alive()
    watch.close()
    assert given.closed


def test_threads_that_call_at_once_get_their_own_answers():
    engine = _core.CoreEngine.bridged(MemoryEngine(_core.MemoryCluster(0)))
    failures = []

    def work(number):
        for turn in range(100):
            engine.txn([], [(f"{number}/a", b"%d" % turn, 0, False)])
            ((_, value, _, _),), _ = engine.range(f"{number}/")
            if value != b"%d" % turn:
                failures.append((number, turn, value))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert failures == []


def test_the_engine_is_let_go_with_the_last_of_its_watches():
    scripted = Scripted(lambda *unused: MemoryEngine(_core.MemoryCluster(0)).watch("", 0))
    gone = weakref.ref(scripted)
    engine = _core.CoreEngine.bridged(scripted)
    assert engine.forgets_ns == 250_000_000
    watch = engine.watch("", 0)
    del scripted, engine
    assert watch.poll(0) == []
    assert gone() is not None
    del watch
    gc.collect()
    assert gone() is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_in_a_forked_child_calls_are_refused_and_nothing_is_let_go():
    scripted = MemoryEngine(_core.MemoryCluster(0))
    scripted.txn([], [Put("a", b"")])
    held = [_core.CoreEngine.bridged(scripted)]
    held.append(held[0].watch("", 0))
    engine = weakref.ref(scripted)
    del scripted

    def use() -> None:
        for call in (*calls_of(held[0]), lambda: held[1].poll(0)):
            with pytest.raises(errors.ClosedError, match="after fork"):
                call()
        held.clear()
        gc.collect()
        assert engine() is not None

    assert in_child(use) == 0
    assert len(held[1].poll(0)) == 1


# The engine's call comes back from its wait while the interpreter is torn down, or goes on calling until it is gone.
@pytest.mark.parametrize("held", [True, False])
def test_exit_with_a_call_under_way_does_not_crash(python, held):
    child = python(
        """
import os, sys, threading, time
from kvstore import _core
readable, writable = os.pipe()
entered = threading.Event()
class Engine:
    forgets_s = 0
    def range(self, prefix):
        entered.set()
        if HELD:
            os.read(readable, 1)
        raise ValueError("back")
class Late:
    def __del__(self):
        os.write(writable, b"x")
        time.sleep(0.3)
engine = _core.CoreEngine.bridged(Engine())
def call():
    while True:
        try:
            engine.range("")
        except Exception:
            pass
for _ in range(2):
    threading.Thread(target=call, daemon=True).start()
entered.wait()
sys.modules["late"] = Late()
""".replace("HELD", str(held)),
    )
    assert finish(child) == (0, "")


def test_a_watch_that_is_closed_polls_no_more():
    watch = _core.CoreEngine.memory(_core.MemoryCluster(0), 0, 0, 0).watch("", 0)
    watch.close()
    with pytest.raises(errors.ClosedError):
        watch.poll(0)
