# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: what happens to files and processes leaves the SQLite engine right, wiped or refusing; never wrong or stuck.

Method: real files, real processes that are killed or forked; a clock of the test's own for leases. What every engine
promises is in ``test_engines.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from test_process import await_ready, finish, in_child

import kvstore
from kvstore.cluster import Compare, Put, open_engine
from kvstore.cluster.bell import Bell, ring
from kvstore.cluster.sqlite import SqliteEngine
from kvstore.cluster.sqlite_file import SqliteFile
from kvstore.errors import EngineError, LeaseEnded, StaleError

# What every child starts with: sys.argv[1] is the path of the file.
PRELUDE = """
import os, sys, time
from kvstore.cluster import Compare, Put
from kvstore.cluster.sqlite import SqliteEngine
engine = SqliteEngine(sys.argv[1])
def ready():
    print("ready", flush=True)
"""


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "engine.db")


@pytest.fixture
def engine(path):
    opened = SqliteEngine(path)
    yield opened
    opened.close()


def put(engine, key, value=b"", lease=0):
    return engine.txn([], [Put(key, value, lease)]).revision


def keys(engine):
    return [item.key for item in engine.range("").items]


def remove(path):
    for end in ("", "-wal", "-shm"):
        Path(path + end).unlink(missing_ok=True)


# ---- what is acknowledged stays ----


def test_what_is_acknowledged_has_been_flushed(engine):
    assert engine.forgets_s == 0
    with engine._file.connected() as sql:
        assert sql.execute("PRAGMA synchronous").fetchone() == (2,)


def test_without_a_log_that_processes_share_it_is_refused(engine):
    with pytest.raises(EngineError, match="journal_mode memory where it must have wal"):
        engine._file._set(sqlite3.connect(":memory:"), "journal_mode", "wal")


def test_a_process_killed_within_a_transaction_leaves_nothing_of_it_and_no_lock(path, engine, python):
    put(engine, "a", b"1")
    child = python(
        PRELUDE
        + """
with engine._file.transaction("IMMEDIATE") as sql:
    engine._apply(sql, [Put("a", b"2"), Put("b", b"")])
    ready()
    sys.stdin.read()
""",
        path,
    )
    await_ready(child)
    child.kill()
    child.wait()
    assert [(item.key, item.value) for item in engine.range("").items] == [("a", b"1")]
    assert engine.txn([Compare("a", b"1")], [Put("a", b"3")]).applied


def test_what_a_killed_process_was_told_stays_and_what_it_was_not_is_all_or_nothing(path, engine, python):
    count = """
for turn in range(int(sys.argv[2]), 1 << 30):
    assert engine.txn([], [Put(name, b"%d" % turn) for name in "abc"]).applied
    print(turn, flush=True)
"""
    chance = random.Random(1)
    last = 0
    for _ in range(8):
        child = python(PRELUDE + count, path, str(last + 1))
        for _ in range(chance.randrange(1, 40)):
            last = int(child.stdout.readline())
        child.kill()
        rest, _ = child.communicate(timeout=30)
        last = max([last, *map(int, rest.split())])
        values = {int(item.value) for item in engine.range("").items}
        assert values in ({last}, {last + 1})
        last = values.pop()


def test_two_processes_that_count_in_one_key_lose_no_count(path, engine, python):
    count = """
for turn in range(150):
    while True:
        items = engine.range("n").items
        seen = items[0].value if items else None
        if engine.txn([Compare("n", seen)], [Put("n", b"%d" % (int(seen or 0) + 1))]).applied:
            break
"""
    children = [python(PRELUDE + count, path) for _ in range(2)]
    assert [finish(child) for child in children] == [(0, "")] * 2
    assert engine.range("n").items[0].value == b"300"


def test_processes_that_make_the_file_at_once_share_one(path, python):
    take = "ready(); sys.stdin.readline(); print(engine.txn([Compare('a')], [Put('a', b'')]).applied, flush=True)"
    children = [python(PRELUDE + take, path) for _ in range(6)]
    for child in children:
        await_ready(child)
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    assert sorted(child.stdout.readline() for child in children) == ["False\n"] * 5 + ["True\n"]
    assert [finish(child) for child in children] == [(0, "")] * 6


def test_a_full_disk_is_an_error_and_the_engine_goes_on_when_there_is_room(engine):
    put(engine, "a", b"1")
    with engine._file.connected() as sql:
        pages = sql.execute("PRAGMA page_count").fetchone()[0]
        sql.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(EngineError, match="full"):
        put(engine, "b", bytes(1 << 20))
    assert keys(engine) == ["a"]
    with engine._file.connected() as sql:
        sql.execute("PRAGMA max_page_count = 1000000")
    put(engine, "b", bytes(1 << 20))
    assert keys(engine) == ["a", "b"]


def test_a_transaction_that_sqlite_has_undone_by_itself_tells_why(engine):
    def fail() -> None:
        with engine._file.transaction("IMMEDIATE") as sql:
            sql.execute("ROLLBACK")  # as SQLite does on errors of the disk
            raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(EngineError, match="disk I/O error"):
        fail()
    put(engine, "a")


def test_a_file_that_another_process_is_just_making_is_waited_for(path):
    making = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    making.execute("CREATE TABLE half_made (x)")
    making.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, making.execute, ("COMMIT",))
    timer.start()
    with contextlib.closing(SqliteEngine(path)) as engine:
        put(engine, "a")
        assert keys(engine) == ["a"]
    timer.join()
    making.close()


# ---- a file that was removed ----


def test_a_file_that_was_removed_is_a_wiped_engine(path, engine):
    other = SqliteEngine(path)
    put(engine, "a")
    lease = other.grant(60)
    watch = other.watch("", other.range("").revision)
    assert watch.poll(0) == []
    last = put(engine, "b")
    remove(path)
    assert keys(engine) == []
    with pytest.raises(StaleError, match="removed or replaced"):
        watch.poll(0)
    with pytest.raises(LeaseEnded):
        other.renew(lease)
    assert other.grant(60) != lease
    assert put(other, "c") > last, "a revision that was given out before"
    assert keys(engine) == ["c"]
    other.close()
    assert keys(engine) == ["c"]


@pytest.mark.parametrize("order", [*itertools.permutations(("", "-wal", "-shm"))], ids=lambda order: " ".join(order))
def test_openers_at_work_while_the_files_go_one_by_one_agree_on_the_next(path, engine, python, order):
    work = """
watch = engine.watch('', engine.range('').revision)
ready()
for line in sys.stdin:
    try:
        watch.poll(0)
    except Exception:
        watch = engine.watch('', engine.range('').revision)
    print(engine.txn([Compare(line.strip())], [Put(line.strip(), b'')]).applied, flush=True)
"""

    def all_take(key: str) -> list[bool]:
        """Of each process, whether it was the one that took the key; asked one after another, so none is unsure."""
        taken = [engine.txn([Compare(key)], [Put(key, b"")]).applied]
        for child in children:
            child.stdin.write(f"{key}\n")
            child.stdin.flush()
            taken.append(child.stdout.readline() == "True\n")
        return taken

    watch = engine.watch("", engine.range("").revision)
    children = [python(PRELUDE + work, path) for _ in range(2)]
    for child in children:
        await_ready(child)
    assert all_take("before") == [True, False, False]
    for end in order:
        Path(path + end).unlink(missing_ok=True)
        all_take(f"without {end}")
    assert all_take("after") == [True, False, False]
    assert keys(SqliteEngine(path)) == keys(engine)
    watch.close()
    assert [finish(child) for child in children] == [(0, "")] * 2
    assert "after" in keys(SqliteEngine(path)), "the last of them took it along"


def test_openers_at_work_survive_a_copy_put_in_the_place_of_the_file(path, engine, python):
    work = """
import threading
def watch():
    while True:
        try:
            seen = engine.watch('', engine.range('').revision)
            while True:
                seen.poll(0.01)
        except Exception:  # it was replaced
            pass
threading.Thread(target=watch, daemon=True).start()
ready()
for line in sys.stdin:
    for turn in range(20):
        try:
            engine.txn([], [Put(line.strip(), b'x' * 2000)])
        except Exception:
            pass
    print(flush=True)
os._exit(0)
"""
    children = [python(PRELUDE + work, path) for _ in range(3)]
    for child in children:
        await_ready(child)
    for turn in range(30):
        for child in children:
            child.stdin.write(f"key-{turn}\n")
            child.stdin.flush()
        with contextlib.suppress(FileNotFoundError):  # they have it made anew just now
            copy = Path(path).read_bytes()
            Path(path).unlink()
            Path(path).write_bytes(copy)
        assert [child.stdout.readline() for child in children] == ["\n"] * 3, f"one died in turn {turn}"
    assert [finish(child) for child in children] == [(0, "")] * 3
    put(engine, "after")
    assert "after" in keys(SqliteEngine(path))


def test_who_gives_a_file_up_leaves_nothing_of_it_beside_the_next_one(path, engine, python, monkeypatch):
    """A copy put in its place just then would be opened with the others' -shm, and truncate it under them."""
    child = python(PRELUDE + "engine.txn([], [Put('a', b'')]); ready(); sys.stdin.readline()", path)
    await_ready(child)
    keys(engine)
    connect, beside = SqliteFile._connect, []

    def connect_after_a_copy_came(file):
        beside.extend(Path(path + end).exists() for end in ("-wal", "-shm"))
        return connect(file)

    monkeypatch.setattr(SqliteFile, "_connect", connect_after_a_copy_came)
    Path(path).unlink()
    assert keys(engine) == []
    assert beside == [False, False]
    assert finish(child) == (0, "")


def test_a_log_that_a_lost_file_left_is_none_of_the_next_file(path, python):
    child = python(PRELUDE + "engine.txn([], [Put('a', b'')]); ready(); sys.stdin.readline()", path)
    await_ready(child)
    child.kill()
    child.wait()
    with open(path + "-wal") as log, open(path + "-shm") as index:  # which keeps their inodes from being given again
        Path(path).unlink()
        engine = SqliteEngine(path)
        assert keys(engine) == []
        assert not os.path.samestat(Path(path + "-wal").stat(), os.fstat(log.fileno()))
        assert not os.path.samestat(Path(path + "-shm").stat(), os.fstat(index.fileno()))


def test_a_file_that_is_replaced_within_a_transaction_leaves_its_outcome_unknown(path, engine):
    put(engine, "a")

    def put_while_it_is_removed() -> None:
        with engine._file.transaction("IMMEDIATE") as sql:
            engine._apply(sql, [Put("b", b"")])
            remove(path)

    with pytest.raises(EngineError, match="removed or replaced"):
        put_while_it_is_removed()
    assert keys(engine) == []


def test_a_removed_file_that_cannot_be_made_anew_at_once_can_be_later(path, engine, monkeypatch):
    def broken(*unused):
        raise sqlite3.OperationalError("disk I/O error")

    put(engine, "a")
    remove(path)
    with monkeypatch.context() as patched:
        patched.setattr("kvstore.cluster.sqlite_file.SqliteFile._begin_wal", broken)
        for _ in range(2):
            with pytest.raises(EngineError, match="disk I/O error"):
                put(engine, "b")
    put(engine, "c")
    assert keys(engine) == ["c"]


def test_processes_that_meet_a_removed_file_agree_on_the_next_one(path, engine, python):
    take = """
ready()
sys.stdin.readline()
print(engine.txn([Compare('a')], [Put('a', b'')]).applied, flush=True)
sys.stdin.readline()
"""
    put(engine, "a")
    children = [python(PRELUDE + take, path) for _ in range(4)]
    for child in children:
        await_ready(child)
    remove(path)
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    assert sorted(child.stdout.readline() for child in children) == ["False\n"] * 3 + ["True\n"]
    assert keys(engine) == ["a"]
    assert [finish(child) for child in children] == [(0, "")] * 4
    put(engine, "b")
    assert keys(SqliteEngine(path)) == ["a", "b"], "the last of them took the file with it"


# ---- a place that does not do ----


def test_the_file_is_for_its_user_only(path, engine):
    put(engine, "a")
    for end in ("", "-wal", "-shm"):
        assert stat.S_IMODE(Path(path + end).stat().st_mode) == 0o600


def test_a_folder_that_is_not_there_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(EngineError, match=r"no/engine\.db: No such file"):
        open_engine(f"sqlite:{tmp_path}/no/engine.db")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_folder_that_cannot_be_written_is_an_error_that_names_the_file():
    with tempfile.TemporaryDirectory() as folder:  # not below the folders of the test run, which are root's alone
        Path(folder).chmod(0o555)

        def use() -> None:
            if os.geteuid() == 0:
                os.setuid(65534)
            with pytest.raises(EngineError, match=r"engine\.db: Permission denied"):
                open_engine(f"sqlite:{folder}/engine.db")

        assert in_child(use) == 0


def test_a_file_that_is_no_database_is_an_error_that_names_it(path):
    Path(path).write_bytes(b"no database at all" * 1000)
    with pytest.raises(EngineError, match=r"engine\.db: file is not a database: remove it"):
        open_engine(f"sqlite:{path}")


def test_a_python_without_sqlite_says_so(path, python):
    child = python(
        """
import sys
sys.modules["sqlite3"] = None
import kvstore.cluster
try:
    kvstore.cluster.open_engine("sqlite:" + sys.argv[1])
except kvstore.ConfigError as error:
    assert "built without SQLite" in str(error)
    print("refused")
""",
        path,
    )
    assert child.stdout.readline() == "refused\n"
    assert finish(child) == (0, "")


# ---- forks ----


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_refused_and_leaves_the_parents_locks_alone(path, python):
    engine = SqliteEngine(path)
    watch = engine.watch("", put(engine, "a"))

    def use() -> None:
        for call in (lambda: engine.range(""), lambda: watch.poll(0), lambda: SqliteEngine(path)):
            with pytest.raises(EngineError, match=r"after fork|was forked"):
                call()
        watch.close()
        engine.close()

    with engine._file.transaction("IMMEDIATE") as sql:
        assert in_child(use) == 0
        engine._apply(sql, [Put("b", b"")])
        writer = python(
            PRELUDE.replace("argv[1])", "argv[1], timeout_s=0.1)") + "engine.txn([], [Put('c', b'')])", path
        )
        assert "database is locked" in finish(writer)[1]
    assert keys(engine) == ["a", "b"]
    engine.close()


# ---- watches ----


def test_a_change_wakes_a_watch_of_another_process_at_once(path, engine, python):
    child = python(
        PRELUDE
        + """
sys.stdin.readline()
done_ns = []
for i in range(50):
    time.sleep(0.01)
    engine.txn([], [Put("t", b"%d" % i)])
    done_ns.append(time.monotonic_ns())
print(*done_ns)
""",
        path,
    )
    watch = engine.watch("", put(engine, "a"))
    child.stdin.write("go\n")
    child.stdin.flush()
    seen_ns = []
    while len(seen_ns) < 50:
        changes = watch.poll(10)
        seen_ns += [time.monotonic_ns()] * len(changes)
    done_ns = map(int, child.stdout.readline().split())
    late_ns = sorted(seen - done for seen, done in zip(seen_ns, done_ns, strict=True))
    # Without the bell half of them are seen later than 25 ms after the transaction.
    assert late_ns[25] < 12_000_000
    assert finish(child) == (0, "")
    watch.close()


@pytest.mark.parametrize("why", ["no inotify", "lost"])
def test_a_watch_that_no_bell_wakes_looks_for_itself(engine, monkeypatch, why):
    watch = engine.watch("", put(engine, "a"))
    if why == "lost":
        monkeypatch.setattr("kvstore.cluster.sqlite.ring", lambda path: None)
    else:
        watch._bell.close()
    timer = threading.Timer(0.1, put, (engine, "b"))
    timer.start()
    begin = time.monotonic()
    assert [change.item.key for change in watch.poll(20)] == ["b"]
    assert time.monotonic() - begin < 5
    timer.join()
    watch.close()


def test_a_bell_that_was_rung_before_the_wait_is_heard_once(tmp_path):
    (tmp_path / "file").touch()
    bell = Bell(str(tmp_path / "file"))
    ring(str(tmp_path / "file"))
    assert bell.wait(10)
    assert not bell.wait(0.001)
    bell.close()
    ring(str(tmp_path / "is not there"))


# ---- leases ----


def test_a_lease_lasts_its_time_and_no_longer(path):
    now_ns = [10**9]
    engine = SqliteEngine(path, now_ns=lambda: now_ns[0])
    lease = engine.grant(2.0)
    watch = engine.watch("", put(engine, "a", b"", lease))
    now_ns[0] += 1_999_999_999
    assert keys(engine) == ["a"]
    assert watch.poll(0) == []
    engine.renew(lease)
    now_ns[0] += 1_999_999_999
    assert watch.poll(0) == []
    engine.renew(lease)
    now_ns[0] += 2_000_000_000
    assert [(change.item.key, change.erased) for change in watch.poll(0)] == [("a", True)]
    with pytest.raises(LeaseEnded):
        engine.renew(lease)
    assert keys(engine) == []
    engine.close()


def test_a_container_with_a_clock_of_its_own_counts_leases_as_the_host_does(path, engine):
    unshare = ["unshare", "--time", "--boottime", "1000000", "--fork"]
    tried = subprocess.run([*unshare, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"no time namespace can be made here: {tried.stderr.strip()}")
    lease = engine.grant(60)
    put(engine, "a", b"", lease)
    renew = PRELUDE + "engine.renew(int(sys.argv[2])); print(len(engine.range('').items))"
    command = [*unshare, sys.executable, "-c", renew, path, str(lease)]
    package_root = Path(kvstore.__file__).parent.parent
    done = subprocess.run(command, cwd=package_root, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    with engine._file.connected() as sql:
        ends_ns = sql.execute("SELECT ends_ns FROM lease").fetchone()[0]
    assert ends_ns <= time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 60 * 10**9


def test_leases_of_an_earlier_boot_have_ended(path, engine):
    lease = engine.grant(3600)
    revision = put(engine, "a", b"", lease)
    engine._boot = "another"  # as the processes of the next boot see it
    watch = engine.watch("", revision)
    assert [(change.item.key, change.erased) for change in watch.poll(0)] == [("a", True)]
    with pytest.raises(LeaseEnded):
        engine.renew(lease)
