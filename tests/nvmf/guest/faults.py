# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""In the guest: what kvstore says while a fault is there, and whether all works again afterwards.

For every fault: blocks with known bytes are put durably; while the fault lasts, they are read and others put, again and
again; then a pool that is opened anew must have the first ones, and take and give back others. Bytes are compared at
every hit. Each call is timed: none may take longer than the time-outs that were set.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fabrics
from fabrics import CONNECTION, NVMET, PORT_IDS, await_state, exchange, linear, sectors, state
from oracle import IDENTITY, content
from support import POOL, drive, keys, open_pool, put, read, run, wait_for

import kvstore

COUNT = 8
REQUEST_S = 10.0  # the store's own: a request older than this is stuck
OUTAGE_S = 12.0
STUCK_MS = 20_000
WAIT_S = 100.0  # of a caller; far longer than whatever may be waited for below it
SLACK_S = 15.0  # an emulated machine that shares its processors
#: The longest that anything below a caller may take: a lost path is noticed within a keep-alive, its requests fail
#: after `fast_io_fail_s`, and the store gives one up that is older than its own time-out.
BOUND_S = CONNECTION["keep_alive_s"] + CONNECTION["fast_io_fail_s"] + REQUEST_S
CLOSE_S = 60.0

Fault = Callable[[str], contextlib.AbstractContextManager[Callable[[], bool]]]


class Load:
    """Reads and puts, one after the other; what they said, and the longest.

    ``wait_s`` is what a caller waits for each: not to have an answer by then is an answer, which is late.
    """

    def __init__(self, pool: kvstore.Pool, prefix: str, before: list[bytes], wait_s: float) -> None:
        self._space, self._prefix, self._before, self._wait_s = pool.space(**IDENTITY), prefix, before, wait_s
        self.gets: Counter[str] = Counter()
        self.puts: Counter[str] = Counter()
        self.longest_s = 0.0
        self.put_keys: list[bytes] = []

    def step(self) -> None:
        """One of each."""
        key = self._before[len(self.put_keys) % len(self._before)]
        self.gets[self._timed(self._get, key)] += 1
        self.put_keys.append(f"{self._prefix}-{len(self.put_keys)}".encode())
        self.puts[self._timed(self._put, self.put_keys[-1])] += 1

    def _get(self, key: bytes) -> Any:
        right = content(key)
        out = bytearray(len(right))
        (result,) = self._space.get_many([key], [out]).wait(self._wait_s)
        assert result.status != "hit" or out == right, f"wrong bytes under {key!r}"
        return result

    def _put(self, key: bytes) -> Any:
        return self._space.put_many([key], [content(key)]).wait(self._wait_s)[0]

    def _timed(self, call: Callable[[bytes], Any], key: bytes) -> str:
        begin = time.monotonic()
        try:
            result = call(key)
            said = result.code if result.status == "error" else result.status
        except kvstore.errors.KvStoreError as error:
            said = "late" if isinstance(error, kvstore.errors.WaitTimeout) else error.code
        self.longest_s = max(self.longest_s, time.monotonic() - begin)
        return said


def endure_alone(transport: str, fault: str, wait_s: float = WAIT_S) -> dict[str, Any]:
    """The same in the guest "alone", in a pool that is made for it."""
    fabrics.prepare()
    kvstore.format(fabrics.connect(transport), force=True, **POOL)
    return endure(transport, fault, wait_s)


def endure(transport: str, fault: str, wait_s: float = WAIT_S) -> dict[str, Any]:
    """What was said while the fault lasted, and how long the longest call took."""
    device = fabrics.connect(transport)
    before, after = keys(f"before {fault}", COUNT), keys(f"after {fault}", COUNT)
    pool = open_pool(device, io_timeout_s=REQUEST_S)
    put(pool, before)
    load = Load(pool, f"during {fault}", before, wait_s)
    with FAULTS[fault](transport) as is_over:
        while not is_over():
            load.step()
    closed = close(pool)
    with open_pool(again(transport), wait_s=60) as pool:
        assert read(pool, before) == ["hit"] * COUNT
        assert set(read(pool, load.put_keys[:100])) <= {"hit", "miss"}
        put(pool, after)
        assert read(pool, after) == ["hit"] * COUNT
    return {
        "gets": load.gets,
        "puts": load.puts,
        "longest_s": round(load.longest_s, 1),
        "allowed_s": min(wait_s, BOUND_S) + SLACK_S,
        "closed": closed,
    }


def close(pool: kvstore.Pool) -> str:
    """It may say that something was lost; it has to end."""
    begin = time.monotonic()
    try:
        pool.close(timeout_s=CLOSE_S)
        said = "closed"
    except kvstore.errors.KvStoreError as error:
        said = error.code
    assert time.monotonic() - begin < CLOSE_S + SLACK_S
    return said


def again(transport: str) -> str:
    """The device when all is well again; nvmf-setup connects what the kernel has given up."""
    wait_for("the connection is settled", lambda: state(transport) in ("live", "gone"), 120)
    return fabrics.connect(transport)


# ---- the faults: each heals when its context ends, and says when it has been seen for long enough ----


def after(seconds: float) -> Callable[[], bool]:
    """Counted from when it is asked first, so that at least one step is done."""
    deadline: list[float] = []

    def is_over() -> bool:
        if not deadline:
            deadline.append(time.monotonic() + seconds)
            return False
        return time.monotonic() > deadline[0]

    return is_over


def _port(transport: str) -> Path:
    """By which the target listens."""
    return NVMET / "ports" / str(PORT_IDS[transport]) / "subsystems" / fabrics.nqn(transport)


def _listen(transport: str) -> None:
    with contextlib.suppress(FileExistsError):
        _port(transport).symlink_to(NVMET / "subsystems" / fabrics.nqn(transport))


@contextlib.contextmanager
def no_port(transport: str) -> Iterator[Callable[[], bool]]:
    """The target stops listening for 12 s, longer than requests wait for a path."""
    _port(transport).unlink()
    try:
        await_state(transport, "connecting")
        yield after(OUTAGE_S)
    finally:
        _listen(transport)
    await_state(transport, "live")


@contextlib.contextmanager
def short_outage(transport: str) -> Iterator[Callable[[], bool]]:
    """Back before requests are given up: they wait, and complete."""
    _port(transport).unlink()
    await_state(transport, "connecting")
    timer = threading.Timer(1.0, _listen, [transport])
    timer.start()
    try:
        yield lambda: state(transport) == "live"
    finally:
        timer.join()


@contextlib.contextmanager
def reset(transport: str) -> Iterator[Callable[[], bool]]:
    (controller,) = fabrics.controllers(transport)
    steps = iter(range(30))

    def again_and_again() -> bool:
        step = next(steps, None)
        if step is not None and step % 10 == 0:
            with contextlib.suppress(OSError):  # it is being reset
                (controller / "reset_controller").write_text("1")
        return step is None

    yield again_and_again
    await_state(transport, "live")


@contextlib.contextmanager
def no_namespace(transport: str) -> Iterator[Callable[[], bool]]:
    enable = NVMET / "subsystems" / fabrics.nqn(transport) / "namespaces/1/enable"
    enable.write_text("0")
    try:
        yield after(3)
    finally:
        enable.write_text("1")


@contextlib.contextmanager
def _table(transport: str, table: str, is_over: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
    name = f"under-{transport}"
    exchange(name, table)
    try:
        yield is_over
    finally:
        exchange(name, linear(name.upper()))


def bad_drive(transport: str) -> contextlib.AbstractContextManager[Callable[[], bool]]:
    """EIO to everything."""
    return _table(transport, f"0 {sectors(f'UNDER-{transport.upper()}')} error", after(3))


def bad_writes(transport: str) -> contextlib.AbstractContextManager[Callable[[], bool]]:
    """EIO to writes; reads work."""
    serial = f"UNDER-{transport.upper()}"
    return _table(transport, f"0 {sectors(serial)} flakey {drive(serial)} 0 0 600 1 error_writes", after(3))


def slow_drive(transport: str) -> contextlib.AbstractContextManager[Callable[[], bool]]:
    """A fifth of a second for everything: slow, and no fault to anybody.

    Half a second would be one: the owner's claim, four reads, would be older than puts may rely on.
    """
    serial = f"UNDER-{transport.upper()}"
    return _table(transport, f"0 {sectors(serial)} delay {drive(serial)} 0 200", after(3))


def stuck_drive(transport: str) -> contextlib.AbstractContextManager[Callable[[], bool]]:
    """Longer than the store and its caller wait for a request."""
    serial = f"UNDER-{transport.upper()}"
    return _table(transport, f"0 {sectors(serial)} delay {drive(serial)} 0 {STUCK_MS}", after(1))


@contextlib.contextmanager
def gone(transport: str) -> Iterator[Callable[[], bool]]:
    """The target stays away until the kernel removes the device, whose time nvmf-setup has changed while connected."""
    short = fabrics.write_file(fabrics.FILE.with_name("short.yaml"), connection=CONNECTION | {"controller_loss_s": 8})
    done = fabrics.do("host", "connect", str(short), "--host", fabrics.host_name(transport))["done"]
    assert any("ctrl_loss_tmo set to 8" in one for one in done), done
    _port(transport).unlink()
    try:
        yield lambda: state(transport) == "gone"
    finally:
        _listen(transport)


@contextlib.contextmanager
def _loss(percent: int, is_over: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
    """Of the packets that this guest sends. Not by taking the link down, which Soft-RoCE does not survive."""
    words = ["dev", fabrics.interface(fabrics.LINKS[os.uname().nodename]), "root"]
    run("tc", "qdisc", "add", *words, "netem", "loss", f"{percent}%")
    try:
        yield is_over
        dropped = re.search(r"dropped (\d+)", run("tc", "-s", "qdisc", "show", *words[:2]))
        assert dropped is not None
        assert int(dropped[1]) > 0, "no packet was lost"
    finally:
        run("tc", "qdisc", "del", *words)


def lossy_network(transport: str) -> contextlib.AbstractContextManager[Callable[[], bool]]:
    return _loss(1, after(5))


@contextlib.contextmanager
def no_network(transport: str) -> Iterator[Callable[[], bool]]:
    with _loss(100, after(OUTAGE_S)) as is_over:
        yield is_over
    await_state(transport, "live")


FAULTS: dict[str, Fault] = {
    name: globals()[name]
    for name in (
        "no_port",
        "short_outage",
        "reset",
        "no_namespace",
        "bad_drive",
        "bad_writes",
        "slow_drive",
        "stuck_drive",
        "gone",
        "lossy_network",
        "no_network",
    )
}
