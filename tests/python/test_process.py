# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that fork, exit, are terminated or killed with a pool open, and second openers.

Method: real child processes; the parent looks at their exit status, their stderr, and what is on the device afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
from python_support import IDENTITY, random_bytes, wait_until

import kvstore
from kvstore import errors

# The kernel holds the device until the last request of a killed process is done; on a disk that others keep busy that
# was seen to take more than the 10 s that open() waits by itself.
PATIENCE_S = 60

# What every child starts with: sys.argv[1] is the path of the pool.
PRELUDE = """
import os, signal, sys, threading, time
import kvstore
pool = kvstore.open(sys.argv[1])
space = pool.space(engine="test", model="none", dtype="uint8", tp_size=1)
def ready():
    print("ready", flush=True)
"""


def await_ready(child: subprocess.Popen[str]) -> None:
    line = child.stdout.readline()
    assert line == "ready\n", f"{line!r}: {child.stderr.read()}"


def finish(child: subprocess.Popen[str], timeout_s: float = 30) -> tuple[int, str]:
    """Exit status and stderr. One that does not end is killed: it would go on putting for ever."""
    try:
        _, stderr = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        raise
    return child.returncode, stderr


def is_clean(path: str) -> bool:
    with kvstore.open(path, read_only=True) as pool:
        return all(superblock["clean"] for superblock in pool.superblocks())


# ---- exit ----


def test_exit_with_jobs_in_flight_and_no_close_keeps_what_was_put(pool_path, python):
    child = python(
        PRELUDE
        + """
value = bytes(range(256)) * 4096
space.put_many([b"%d" % i for i in range(40)], [value] * 40)
space.get_many([b"%d" % i for i in range(40)], [bytearray(1 << 20) for i in range(40)])
""",
        pool_path,
    )
    assert finish(child) == (0, "")
    assert is_clean(pool_path)
    with kvstore.open(pool_path) as pool:
        out = bytearray(1 << 20)
        for i in range(40):
            assert pool.space(**IDENTITY).get(b"%d" % i, out) == 1 << 20
            assert out == bytes(range(256)) * 4096


def test_exit_by_an_exception_or_sys_exit_closes_too(pool_path, python):
    for source, status in (("sys.exit(3)", 3), ("raise RuntimeError('on purpose')", 1)):
        child = python(PRELUDE + "space.put_many([b'key'], [b'abc'])\n" + source, pool_path)
        code, stderr = finish(child)
        assert code == status
        assert "Fatal" not in stderr
        assert is_clean(pool_path)


# Threads that end with the pool, and threads that go on calling until the process is gone.
@pytest.mark.parametrize("after_close", ["return", "pass"])
def test_exit_with_threads_that_wait_and_work_does_not_crash(pool_path, python, after_close):
    child = python(
        PRELUDE
        + """
class Tensor:
    nbytes = 1 << 16
    def __init__(self):
        import ctypes
        self.memory = (ctypes.c_char * self.nbytes)()
        self.pointer = ctypes.addressof(self.memory)
    def is_contiguous(self):
        return sum(range(20)) > 0
    def data_ptr(self):
        return self.pointer
def work(number):
    out = Tensor()
    for i in range(1 << 30):
        try:
            space.put(b"%d-%d" % (number, i), b"x" * 65536)
            space.get(b"%d-%d" % (number, i), out)
            space.get_many([b"%d-%d" % (number, i)], [out]).wait()
        except kvstore.ClosedError:
            AFTER_CLOSE
for number in range(4):
    threading.Thread(target=work, args=(number,), daemon=True).start()
while not space.contains(b"3-5"):
    time.sleep(0.001)
""".replace("AFTER_CLOSE", after_close),
        pool_path,
    )
    assert finish(child) == (0, "")
    assert is_clean(pool_path)


def test_exit_with_a_read_stuck_ends_in_bounded_time(python):
    child = python(
        """
import threading, time
import kvstore, kvstore.pool
from kvstore.testing import SimDisk
kvstore.pool._EXIT_TIMEOUT_S = 0.3
disk = SimDisk("128MiB")
kvstore.format(disk.path, region_bytes="4MiB")
pool = kvstore.open(disk.path)
space = pool.space(a=1)
space.put(b"key", b"x" * 5000, durable=True)
block = space.describe([b"key"])[0]
disk.fault("stuck", op="read", first_byte=block.offset_bytes, last_byte=block.offset_bytes + 1)
job = space.get_many([b"key"], [bytearray(5000)])
threading.Thread(target=job.wait, daemon=True).start()
while not disk.stuck_count:
    time.sleep(0.001)
""",
    )
    code, stderr = finish(child)
    assert code == 0, stderr
    assert "outstanding" in stderr
    assert "Fatal" not in stderr


def test_objects_that_live_to_the_very_end_do_not_crash(pool_path, python):
    child = python(
        PRELUDE
        + """
class Late:
    def __del__(self):
        for call in (lambda: space.get(b"key", bytearray(3)), pool.stats, pool.close, queue.drain, lambda: job.done):
            try:
                call()
            except Exception:
                pass
queue, feed, buffer = pool.queue(), pool.evictions(), pool.alloc(8192)
job = space.put_many([b"key"], [buffer], queue=queue)
view = memoryview(buffer)
sys.modules["late"] = Late()
late = Late()
""",
        pool_path,
    )
    assert finish(child) == (0, "")
    assert is_clean(pool_path)


# ---- signals ----

UNDER_LOAD = (
    PRELUDE
    + """
%s
def work(number):
    out = bytearray(1 << 20)
    for i in range(1 << 30):
        try:
            space.put(b"%%d-%%d" %% (number, i), out)
            space.get(b"%%d-%%d" %% (number, i), out)
        except kvstore.ClosedError:
            return
for number in range(3):
    threading.Thread(target=work, args=(number,), daemon=True).start()
while not space.contains(b"2-3"):
    time.sleep(0.001)
ready()
i = 0
while True:
    keys = [b"main-%%d-%%d" %% (i, n) for n in range(16)]
    space.put_many(keys, [bytes(1 << 20)] * 16).wait()
    i += 1
"""
)


def test_sigterm_under_load_with_a_handler_closes_within_ten_seconds(pool_path, python):
    child = python(UNDER_LOAD % "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))", pool_path)
    await_ready(child)
    started = time.monotonic()
    child.send_signal(signal.SIGTERM)
    code, stderr = finish(child)
    assert time.monotonic() - started < 10
    assert (code, stderr) == (0, "")
    assert is_clean(pool_path)


def test_sigterm_without_a_handler_ends_at_once_and_the_store_opens(pool_path, python):
    child = python(UNDER_LOAD % "", pool_path)
    await_ready(child)
    started = time.monotonic()
    child.send_signal(signal.SIGTERM)
    assert finish(child)[0] == -signal.SIGTERM
    assert time.monotonic() - started < 10
    with kvstore.open(pool_path, wait_s=PATIENCE_S) as pool:
        assert pool.space(**IDENTITY).put(b"after", b"abc")


def test_what_was_durable_survives_sigkill_and_nothing_is_wrong(pool_path, python):
    child = python(
        PRELUDE
        + """
import random
for i in range(1 << 30):
    value = random.Random(i).randbytes(100_000 + i)
    space.put(b"%d" % i, value, durable=True)
    print(i, flush=True)
""",
        pool_path,
    )
    last = -1
    while last < 30:
        last = int(child.stdout.readline())
    child.kill()
    rest, _ = child.communicate(timeout=30)
    last = max([last, *map(int, rest.split())]) if rest.endswith("\n") else last
    with kvstore.open(pool_path, wait_s=PATIENCE_S) as pool:
        out = bytearray(200_000)
        for i in range(last + 1):
            assert pool.space(**IDENTITY).get(b"%d" % i, out) == 100_000 + i
            assert out[: 100_000 + i] == random_bytes(100_000 + i, i)


# ---- second openers ----


def test_a_second_process_is_refused_and_told_who_holds_it(pool_path, python):
    holder = python(PRELUDE + "ready(); sys.stdin.read()", pool_path)
    await_ready(holder)
    with pytest.raises(errors.BusyError, match=f"{holder.pid}"):
        kvstore.open(pool_path)
    with kvstore.open(pool_path, read_only=True) as pool:
        assert list(pool.blocks()) == []
    assert finish(holder) == (0, "")
    kvstore.open(pool_path).close()


def test_wait_s_waits_for_a_living_holder(pool_path, python):
    holder = python(PRELUDE + "ready(); sys.stdin.read(); pool.close()", pool_path)
    await_ready(holder)
    started = time.monotonic()
    with pytest.raises(errors.BusyError, match=f"{holder.pid}"):
        kvstore.open(pool_path, wait_s=0.2)
    assert 0.2 <= time.monotonic() - started < 5
    waiter = python(PRELUDE.replace("(sys.argv[1])", "(sys.argv[1], wait_s=20)") + "ready()", pool_path)
    time.sleep(0.3)  # lets the waiter begin to wait; either order must do
    holder.stdin.close()
    holder.stdin = None
    await_ready(waiter)
    assert finish(waiter) == (0, "")
    assert finish(holder) == (0, "")


def test_a_killed_holder_does_not_keep_the_next_one_out(pool_path, python):
    holder = python(PRELUDE + "space.put_many([b'k'] , [bytes(1 << 20)]); ready(); sys.stdin.read()", pool_path)
    await_ready(holder)
    holder.kill()
    holder.wait()
    kvstore.open(pool_path, wait_s=PATIENCE_S).close()
    finish(holder)


# ---- fork ----


def in_child(work) -> int:
    """Run ``work`` in a forked child; its exit status: 0 when it returned, 1 when it raised."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    done, status = 0, 0

    def reaped() -> bool:
        nonlocal done, status
        done, status = os.waitpid(child, os.WNOHANG)
        return done == child

    try:
        wait_until(reaped, "the child ends", 20)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return os.waitstatus_to_exitcode(status)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_call_in_a_forked_child_is_an_error_and_none_hangs(pool_path):
    pool = kvstore.open(pool_path)
    space, queue, feed, buffer = pool.space(**IDENTITY), pool.queue(), pool.evictions(), pool.alloc(4096)
    space.put(b"key", b"abc")
    job = space.get_many([b"key"], [buffer], queue=queue)

    def use() -> None:
        for call in (
            lambda: space.put(b"other", b"v"),
            lambda: space.get(b"key", bytearray(8)),
            lambda: space.put_many([b"other"], [b"v"]),
            lambda: space.get_many([b"key"], [bytearray(8)]),
            lambda: space.prefetch([b"key"]),
            lambda: space.contains(b"key"),
            lambda: space.match_prefix([b"key"]),
            lambda: space.delete([b"key"]),
            lambda: list(space.keys()),
            lambda: pool.alloc(1),
            lambda: pool.space(a=1),
            lambda: pool.queue() and queue.drain(),
            queue.fileno,
            feed.drain,
            feed.fileno,
            job.wait,
            job.cancel,
            lambda: job.done,
            lambda: job.results,
            pool.flush,
            pool.stats,
            pool.close,
        ):
            with pytest.raises(errors.ClosedError, match="forked child"):
                call()

    assert in_child(use) == 0
    job.wait()
    assert space.get(b"key", bytearray(3)) == 3
    assert queue.drain() is not None
    pool.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_that_drops_everything_and_exits_disturbs_nothing(pool_path, python):
    child = python(
        PRELUDE
        + """
import gc, warnings
warnings.simplefilter("ignore")
job = space.put_many([b"%d" % i for i in range(30)], [bytes(1 << 20)] * 30)
buffer = pool.alloc(4096)
pid = os.fork()
if pid == 0:
    del pool, space, job, buffer
    gc.collect()
    sys.exit(0)  # runs the child's atexit handlers
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert all(job.wait())
""",
        pool_path,
    )
    assert finish(child) == (0, "")
    assert is_clean(pool_path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_that_leaves_the_with_of_its_parent_keeps_its_exit_status(pool_path, python):
    child = python(
        """
import os, sys, kvstore
with kvstore.open(sys.argv[1]) as pool:
    pool.space(model="m").put(b"key", b"abc")
    pid = os.fork()
    if pid == 0:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert pool.space(model="m").contains(b"key")
""",
        pool_path,
    )
    assert finish(child) == (0, "")
    assert is_clean(pool_path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_that_lives_on_does_not_keep_the_lock(pool_path):
    pool = kvstore.open(pool_path)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writes)
        os.read(reads, 1)
        os._exit(0)
    try:
        pool.close()
        with kvstore.open(pool_path) as again:
            assert again is not pool
    finally:
        os.write(writes, b"x")
        os.waitpid(child, 0)
        os.close(reads)
        os.close(writes)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_may_open_a_pool_of_its_own(pool_path, tmp_path):
    other = str(tmp_path / "other.img")
    kvstore.format(other, size="128MiB", region_bytes="4MiB")

    def use() -> None:
        with pytest.raises(errors.BusyError):
            kvstore.open(pool_path)
        with kvstore.open(other) as pool:
            assert pool.space(**IDENTITY).put(b"key", b"abc")

    with kvstore.open(pool_path):
        assert in_child(use) == 0
    with kvstore.open(other) as pool:
        assert pool.space(**IDENTITY).contains(b"key")


def test_subprocesses_do_not_inherit_the_device(pool_path):
    pool = kvstore.open(pool_path)
    sleeper = subprocess.Popen(["sleep", "30"], close_fds=False)
    try:
        pool.close()
        kvstore.open(pool_path).close()
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_subinterpreter_is_refused_by_name(python):
    child = python(
        """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import kvstore
source = '''
try:
    import kvstore._core
except ImportError as error:
    print("refused:", error)
'''
interpreters.run_string(interpreters.create(), source)
""",
    )
    stdout, stderr = child.communicate(timeout=30)
    assert child.returncode == 0, stderr
    assert "interpreter" in stdout
