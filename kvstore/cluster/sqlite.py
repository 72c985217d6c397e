# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""SqliteEngine: the embedded engine, for the processes of one host. A file beside the pool; no server.

Every transaction takes SQLite's write lock first, so they are linearizable. Leases are counted in the host's
CLOCK_BOOTTIME, which all its processes share; those of an earlier boot have ended. They are ended by whoever comes
next, so a watch, which looks all the time, tells in time. A file that was removed is made anew: to all who have it open
it is wiped (S7).
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kvstore.cluster.bell import Bell, ring
from kvstore.cluster.engine import (
    Change,
    Compare,
    Erase,
    KeyValue,
    MetadataEngine,
    Operation,
    Put,
    Snapshot,
    Txn,
    Watch,
    demand_txn_fits,
)
from kvstore.cluster.sqlite_file import SqliteFile
from kvstore.errors import LeaseEnded, StaleError

# Kept for watches that are behind; more than a pool of 100,000 regions changes in a minute at 100 GB/s.
CHANGES_MAX = 100_000
# A watch looks by itself that often, in case a writer died before it could ring.
_LOOK_S = 0.05

# Revisions begin with the time, and leases are random, so that a file that was wiped gives none of them out again.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS item (key TEXT PRIMARY KEY, value BLOB NOT NULL, modified INTEGER NOT NULL,
                                 lease INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS item_lease ON item (lease) WHERE lease != 0;
CREATE TABLE IF NOT EXISTS change (revision INTEGER NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
                                   lease INTEGER NOT NULL, erased INTEGER NOT NULL,
                                   PRIMARY KEY (revision, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lease (id INTEGER PRIMARY KEY, ttl_ns INTEGER NOT NULL,
                                  ends_ns INTEGER NOT NULL, boot TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS state (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL,
                                  changes_after INTEGER NOT NULL);
INSERT OR IGNORE INTO state SELECT 1, now_us, now_us
  FROM (SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 AS now_us);
"""


def _namespace_ahead_ns() -> int:
    """How far this process's CLOCK_BOOTTIME is ahead of the host's: containers may have a clock of their own."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except FileNotFoundError:  # a kernel without time namespaces
        return 0
    for name, seconds, nanoseconds in map(str.split, lines):
        if name in ("boottime", str(time.CLOCK_BOOTTIME)):
            return int(seconds) * 10**9 + int(nanoseconds)
    return 0


_AHEAD_NS = _namespace_ahead_ns()


def _boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - _AHEAD_NS


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class SqliteEngine(MetadataEngine):
    """One process's connection to the file.

    Parameters
    ----------
    path : of the file; made if absent. Not on a network file system, whose locks SQLite cannot trust.
    timeout_s : longest wait for the write lock.
    now_ns : the clock of leases; every process of the file must use the same.
    """

    def __init__(self, path: str, *, timeout_s: float = 5.0, now_ns: Callable[[], int] = _boottime_ns) -> None:
        self._file = SqliteFile(path, _SCHEMA, timeout_s)
        self._timeout_s = timeout_s
        self._now_ns = now_ns
        self._boot = _boot_id()

    # ---- MetadataEngine ----

    @property
    def forgets_s(self) -> float:
        # synchronous = FULL: a transaction is flushed to the disk before it is acknowledged, so neither a killed
        # process nor a power cut takes it back. A file that was lost or restored is a wiped engine (S7).
        return 0

    @property
    def requests(self) -> int:
        return self._file.transactions

    def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> Txn:
        demand_txn_fits(compares, operations)
        with self._writing() as sql:
            for operation in operations:
                if isinstance(operation, Put) and operation.lease:
                    self._demand_lease(sql, operation.lease)
            if not all(self._value(sql, compare.key) == compare.value for compare in compares):
                return Txn(applied=False, revision=self._revision(sql))
            return Txn(applied=True, revision=self._apply(sql, operations))

    def range(self, prefix: str) -> Snapshot:
        with self._reading() as sql:
            rows = sql.execute(
                "SELECT key, value, modified, lease FROM item WHERE key >= ? AND substr(key, 1, ?) = ? ORDER BY key",
                (prefix, len(prefix), prefix),
            )
            return Snapshot(tuple(KeyValue(*row) for row in rows), self._revision(sql))

    def watch(self, prefix: str, after: int) -> Watch:
        return _SqliteWatch(self, SqliteFile(self._file.path, _SCHEMA, self._timeout_s), prefix, after)

    def grant(self, ttl_s: float) -> int:
        ttl_ns = int(ttl_s * 1e9)
        with self._writing() as sql:
            lease = secrets.randbits(62) + 1
            sql.execute("INSERT INTO lease VALUES (?, ?, ?, ?)", (lease, ttl_ns, self._now_ns() + ttl_ns, self._boot))
            return lease

    def renew(self, lease: int) -> None:
        with self._writing() as sql:
            self._demand_lease(sql, lease)
            sql.execute("UPDATE lease SET ends_ns = ? + ttl_ns WHERE id = ?", (self._now_ns(), lease))

    def revoke(self, lease: int) -> None:
        with self._writing() as sql:
            self._end_leases(sql, [lease])

    def close(self) -> None:
        self._file.close()

    # ---- for watches ----

    def next_end_ns(self, sql: sqlite3.Connection) -> int:
        """When the next lease is over; 0 for those of an earlier boot."""
        ends = sql.execute("SELECT min(CASE boot WHEN ? THEN ends_ns ELSE 0 END) FROM lease", (self._boot,))
        found = ends.fetchone()[0]
        return sys.maxsize if found is None else int(found)

    def end_leases(self) -> None:
        """End those that are over."""
        with self._writing():
            pass

    def is_over(self, ends_ns: int) -> bool:
        return ends_ns <= self._now_ns()

    # ---- within a transaction ----

    def _apply(self, sql: sqlite3.Connection, operations: Sequence[Operation]) -> int:
        changing = [op for op in operations if isinstance(op, Put) or self._value(sql, op.key) is not None]
        if not changing:
            return self._revision(sql)
        revision = self._revision(sql) + 1
        for operation in changing:
            if isinstance(operation, Erase):
                sql.execute("DELETE FROM item WHERE key = ?", (operation.key,))
                sql.execute("INSERT INTO change VALUES (?, ?, x'', 0, 1)", (revision, operation.key))
                continue
            row = (operation.key, bytes(operation.value), revision, operation.lease)
            sql.execute("INSERT OR REPLACE INTO item VALUES (?, ?, ?, ?)", row)
            sql.execute("INSERT INTO change SELECT modified, key, value, lease, 0 FROM item WHERE key = ?", row[:1])
        kept_after = revision - CHANGES_MAX
        sql.execute("DELETE FROM change WHERE revision <= ?", (kept_after,))
        sql.execute("UPDATE state SET revision = ?, changes_after = max(changes_after, ?)", (revision, kept_after))
        return revision

    def _revision(self, sql: sqlite3.Connection) -> int:
        return int(sql.execute("SELECT revision FROM state").fetchone()[0])

    def _value(self, sql: sqlite3.Connection, key: str) -> bytes | None:
        row = sql.execute("SELECT value FROM item WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def _demand_lease(self, sql: sqlite3.Connection, lease: int) -> None:
        if sql.execute("SELECT 1 FROM lease WHERE id = ?", (lease,)).fetchone() is None:
            raise LeaseEnded(f"lease {lease} in {self._file.path} has ended, with its keys; take a new one")

    def _ended_leases(self, sql: sqlite3.Connection) -> list[int]:
        rows = sql.execute("SELECT id FROM lease WHERE ends_ns <= ? OR boot != ?", (self._now_ns(), self._boot))
        return [row[0] for row in rows]

    def _end_leases(self, sql: sqlite3.Connection, leases: Sequence[int]) -> None:
        for lease in leases:
            keys = sql.execute("SELECT key FROM item WHERE lease = ? AND lease != 0 ORDER BY key", (lease,)).fetchall()
            self._apply(sql, [Erase(key) for (key,) in keys])
            sql.execute("DELETE FROM lease WHERE id = ?", (lease,))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that has ended the leases that are over."""
        with self._file.transaction("IMMEDIATE") as sql:
            before = self._revision(sql)
            self._end_leases(sql, self._ended_leases(sql))
            yield sql
            changed = self._revision(sql) != before
        if changed:
            ring(self._file.path + "-wal")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """One snapshot, in which no lease is over."""
        while True:
            with self._file.transaction("DEFERRED") as sql:
                if not self._ended_leases(sql):
                    yield sql
                    return
            self.end_leases()


class _SqliteWatch(Watch):
    """Has a connection of its own: only another one's commits change what SQLite calls ``data_version``."""

    def __init__(self, engine: SqliteEngine, file: SqliteFile, prefix: str, after: int) -> None:
        self._engine = engine
        self._file = file
        self._prefix = prefix
        self._after = after
        self._bell = Bell(file.path + "-wal")
        self._seen = -1
        self._next_end_ns = 0

    def poll(self, timeout_s: float) -> list[Change]:
        deadline = time.monotonic() + timeout_s
        while True:
            changes = self._look()
            left_s = deadline - time.monotonic()
            if changes or left_s <= 0:
                return changes
            if not self._bell.wait(min(left_s, _LOOK_S)) and left_s <= _LOOK_S:
                return []  # the next poll looks first, too

    def close(self) -> None:
        self._file.close()
        self._bell.close()

    def _look(self) -> list[Change]:
        with self._file.connected() as sql:
            if self._file.opened != 1:
                raise StaleError(f"{self._file.path} was removed or replaced; make a range and a watch anew")
            version = int(sql.execute("PRAGMA data_version").fetchone()[0])
        if version == self._seen and not self._engine.is_over(self._next_end_ns):
            return []
        while True:
            with self._file.transaction("DEFERRED") as sql:
                self._next_end_ns = self._engine.next_end_ns(sql)
                if not self._engine.is_over(self._next_end_ns):
                    changes, self._after = self._changes(sql)
                    self._seen = version
                    return changes
            self._engine.end_leases()

    def _changes(self, sql: sqlite3.Connection) -> tuple[list[Change], int]:
        """The changes after ``_after``, and the revision they lead to."""
        revision, changes_after = sql.execute("SELECT revision, changes_after FROM state").fetchone()
        if self._after == revision:
            return [], revision
        if not changes_after <= self._after <= revision:
            raise StaleError(
                f"changes after revision {self._after} are not kept in {self._file.path}: "
                f"{changes_after} to {revision} are; make a range and a watch anew"
            )
        rows = sql.execute(
            "SELECT key, value, revision, lease, erased FROM change WHERE revision > ? AND substr(key, 1, ?) = ? "
            "ORDER BY revision, key",
            (self._after, len(self._prefix), self._prefix),
        )
        return [Change(KeyValue(*row[:4]), bool(row[4])) for row in rows], revision
