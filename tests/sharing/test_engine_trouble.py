# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The metadata engine is lost, locked, or wiped: reads go on, puts are refused in time and go on after (S3, S7).

Method: the SQLite file is in a folder of its own, which is moved away, or the file is locked by another process, or
removed under two openers at work.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from sharing_support import LEASE_S, LEASES_MAX_S, ask_all, wait_until

KEYS = [f"before-{i}" for i in range(12)]


@pytest.fixture
def engine_file(tmp_path):
    (tmp_path / "engine").mkdir()
    return tmp_path / "engine" / "pool.sqlite"


@contextlib.contextmanager
def moved_away(file: Path):
    aside = file.parent.with_name("aside")
    file.parent.rename(aside)
    yield
    aside.rename(file.parent)


@contextlib.contextmanager
def locked(file: Path):
    connection = sqlite3.connect(file, isolation_level=None, timeout=60)
    connection.execute("BEGIN EXCLUSIVE")
    yield
    connection.execute("ROLLBACK")
    connection.close()


@pytest.mark.parametrize("lose", [moved_away, locked])
def test_while_the_engine_is_lost_reads_go_on_and_puts_are_refused_within_a_lease(
    make_pool, start_all, engine_file, lose
):
    openers = start_all(2, make_pool(), engine=f"sqlite:{engine_file}")
    assert openers[0].ask("put", KEYS) == ["stored"] * len(KEYS)
    ask_all(openers, "refresh")
    with lose(engine_file):
        for opener in openers:
            opener.tell("put_until_refused", opener.name, LEASES_MAX_S)
        refusals = [opener.answer() for opener in openers]
        assert [code for _, code, _ in refusals] == ["busy", "busy"]
        # A lease after the last renewal that was confirmed, and the time of one call of the engine that hangs.
        assert all(seconds < 2 * LEASE_S + 2 for *_, seconds in refusals), refusals
        assert ask_all(openers, "get", KEYS) == [["hit"] * len(KEYS)] * 2
    stored = [key for keys, *_ in refusals for key in keys]
    took = [opener.ask("put_until_stored", f"{opener.name}-after", LEASES_MAX_S) for opener in openers]
    print(f"refused after {[round(seconds, 2) for *_, seconds in refusals]} s, puts went on {took} s after")
    ask_all(openers, "refresh")
    everything = [*KEYS, *stored, *[f"{opener.name}-after" for opener in openers]]
    assert ask_all(openers, "get", everything) == [["hit"] * len(everything)] * 2


def rebuilds(openers):
    return sum(stats["engine_rebuilds"] for stats in ask_all(openers, "stats"))


@contextlib.contextmanager
def rejoining(openers):
    """What is done within makes them join anew; ends when all have, and know of each other."""
    earlier = [stats["epoch"] for stats in ask_all(openers, "stats")]
    yield
    for opener in openers:
        wait_until(
            opener,
            lambda stats: stats["epoch"] > max(earlier) and stats["openers"] == len(openers),
            "an opener of the rebuilt state",
        )


def test_a_removed_engine_file_is_rebuilt_from_the_device(make_pool, start, start_all, engine_file):
    path, engine = make_pool(), f"sqlite:{engine_file}"
    openers = start_all(2, path, engine=engine)
    for opener in openers:
        assert opener.ask("put", [f"{opener.name}-{i}" for i in range(8)]) == ["stored"] * 8
    everything = [f"{opener.name}-{i}" for opener in openers for i in range(8)]
    ask_all(openers, "refresh")
    before = rebuilds(openers)
    with rejoining(openers):
        engine_file.parent.rename(engine_file.parent.with_name("gone"))  # file and log at once
        engine_file.parent.mkdir()
    assert rebuilds(openers) == before + 1
    for opener in openers:
        opener.ask("put_until_stored", f"{opener.name}-after", LEASES_MAX_S)
        everything.append(f"{opener.name}-after")
    ask_all(openers, "refresh")
    assert ask_all(openers, "get", everything) == [["hit"] * len(everything)] * 2
    late = start("late", path, engine=engine)
    assert late.ask("get", everything) == ["hit"] * len(everything)


def test_engine_files_that_go_one_by_one_under_openers_at_work_leave_one_state(make_pool, start_all, engine_file):
    openers = start_all(2, make_pool(), engine=f"sqlite:{engine_file}")
    assert openers[0].ask("put", KEYS) == ["stored"] * len(KEYS)
    for suffix in ("", "-shm", "-wal"):
        with rejoining(openers):
            Path(f"{engine_file}{suffix}").unlink()
    after = [f"{opener.name}-after" for opener in openers]
    for opener, key in zip(openers, after, strict=True):
        opener.ask("put_until_stored", key, LEASES_MAX_S)
    ask_all(openers, "refresh")
    assert ask_all(openers, "get", [*KEYS, *after]) == [["hit"] * (len(KEYS) + 2)] * 2


def test_an_engine_file_that_went_while_nobody_had_the_pool_open_is_rebuilt(make_pool, start, engine_file):
    path, engine = make_pool(), f"sqlite:{engine_file}"
    first = start("first", path, engine=engine)
    assert first.ask("put", KEYS) == ["stored"] * len(KEYS)
    first.end()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{engine_file}{suffix}").unlink(missing_ok=True)
    second = start("second", path, engine=engine)
    assert second.ask("get", KEYS) == ["hit"] * len(KEYS)
    assert second.ask("put", ["after"]) == ["stored"]
