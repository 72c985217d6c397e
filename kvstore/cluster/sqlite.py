# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""SqliteEngine: the embedded engine, for the processes of one host. A file beside the pool; no server.

Every transaction takes SQLite's write lock first, so they are linearizable. Leases are counted in CLOCK_BOOTTIME, which
all processes of a host share; those of an earlier boot have ended. They are ended by whoever comes next, so a watch,
which looks all the time, tells in time.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

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
)
from kvstore.errors import EngineError, LeaseEnded, StaleError

# Kept for watches that are behind; more than a pool of 100,000 regions changes in a minute at 100 GB/s.
CHANGES_MAX = 100_000
_POLL_S_MIN, _POLL_S_MAX = 0.001, 0.020

_FULL = 2  # PRAGMA synchronous

_SCHEMA = """
CREATE TABLE IF NOT EXISTS item (key TEXT PRIMARY KEY, value BLOB NOT NULL, modified INTEGER NOT NULL,
                                 lease INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS item_lease ON item (lease) WHERE lease != 0;
CREATE TABLE IF NOT EXISTS change (revision INTEGER NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
                                   lease INTEGER NOT NULL, erased INTEGER NOT NULL,
                                   PRIMARY KEY (revision, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lease (id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_ns INTEGER NOT NULL,
                                  ends_ns INTEGER NOT NULL, boot TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS state (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL,
                                  changes_after INTEGER NOT NULL);
INSERT OR IGNORE INTO state VALUES (1, 0, 0);
"""


def _boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


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
        self._path = path
        self._now_ns = now_ns
        self._boot = _boot_id()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        with self._errors():
            self._connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
            try:
                self._set("journal_mode", "wal")
                self._set("synchronous", _FULL)
                self._connection.executescript(_SCHEMA)
            except BaseException:
                self._connection.close()
                raise

    def _set(self, name: str, value: str | int) -> None:
        self._connection.execute(f"PRAGMA {name} = {value}")
        found = self._connection.execute(f"PRAGMA {name}").fetchone()[0]
        if found != value:
            raise EngineError(
                f"SQLite on {self._path} has {name} {found} where it must have {value}: "
                "put the file on a local file system that has shared memory maps"
            )

    # ---- MetadataEngine ----

    @property
    def forgets_s(self) -> float:
        # synchronous = FULL: a transaction is flushed to the disk before it is acknowledged, so neither a killed
        # process nor a power cut takes it back. A file that was lost or restored is a wiped engine (S7).
        return 0

    def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> Txn:
        with self._transaction() as sql:
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
        return _SqliteWatch(self, prefix, after)

    def grant(self, ttl_s: float) -> int:
        ttl_ns = int(ttl_s * 1e9)
        with self._transaction() as sql:
            row = (ttl_ns, self._now_ns() + ttl_ns, self._boot)
            return int(sql.execute("INSERT INTO lease (ttl_ns, ends_ns, boot) VALUES (?, ?, ?)", row).lastrowid or 0)

    def renew(self, lease: int) -> None:
        with self._transaction() as sql:
            self._demand_lease(sql, lease)
            sql.execute("UPDATE lease SET ends_ns = ? + ttl_ns WHERE id = ?", (self._now_ns(), lease))

    def revoke(self, lease: int) -> None:
        with self._transaction() as sql:
            self._end_leases(sql, [lease])

    def close(self) -> None:
        with self._lock:
            if not self._closed and os.getpid() == self._pid:
                self._connection.close()
            self._closed = True

    # ---- for watches ----

    def changes(self, prefix: str, after: int) -> tuple[list[Change], int]:
        """Return the changes of keys with ``prefix`` after a revision, and the revision they lead to."""
        with self._reading() as sql:
            revision, changes_after = sql.execute("SELECT revision, changes_after FROM state").fetchone()
            if after == revision:
                return [], revision
            if not changes_after <= after <= revision:
                raise StaleError(
                    f"changes after revision {after} are not kept in {self._path}: "
                    f"{changes_after} to {revision} are; make a range and a watch anew"
                )
            rows = sql.execute(
                "SELECT key, value, revision, lease, erased FROM change WHERE revision > ? AND substr(key, 1, ?) = ? "
                "ORDER BY revision, key",
                (after, len(prefix), prefix),
            )
            return [Change(KeyValue(*row[:4]), bool(row[4])) for row in rows], revision

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
            raise LeaseEnded(f"lease {lease} in {self._path} has ended, with its keys; take a new one")

    def _ended_leases(self, sql: sqlite3.Connection) -> list[int]:
        rows = sql.execute("SELECT id FROM lease WHERE ends_ns <= ? OR boot != ?", (self._now_ns(), self._boot))
        return [row[0] for row in rows]

    def _end_leases(self, sql: sqlite3.Connection, leases: Sequence[int]) -> None:
        for lease in leases:
            keys = sql.execute("SELECT key FROM item WHERE lease = ? AND lease != 0 ORDER BY key", (lease,)).fetchall()
            self._apply(sql, [Erase(key) for (key,) in keys])
            sql.execute("DELETE FROM lease WHERE id = ?", (lease,))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction that has ended the leases that are over. An exception undoes it."""
        with self._connected() as sql:
            sql.execute("BEGIN IMMEDIATE")
            try:
                self._end_leases(sql, self._ended_leases(sql))
                yield sql
            except BaseException:
                sql.execute("ROLLBACK")
                raise
            sql.execute("COMMIT")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A read transaction: one snapshot, in which no lease is over."""
        while True:
            with self._connected() as sql:
                sql.execute("BEGIN")
                try:
                    if not self._ended_leases(sql):
                        yield sql
                        return
                finally:
                    sql.execute("COMMIT")
            with self._transaction():
                pass  # ends them

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._errors():
            if os.getpid() != self._pid:
                raise EngineError(f"the connection to {self._path} is the parent process's: open the pool after fork")
            if self._closed:
                raise EngineError(f"the connection to {self._path} is closed")
            yield self._connection

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise EngineError(f"SQLite on {self._path}: {error}") from error


class _SqliteWatch(Watch):
    def __init__(self, engine: SqliteEngine, prefix: str, after: int) -> None:
        self._engine = engine
        self._prefix = prefix
        self._after = after

    def poll(self, timeout_s: float) -> list[Change]:
        deadline = time.monotonic() + timeout_s
        pause_s = _POLL_S_MIN
        while True:
            changes, self._after = self._engine.changes(self._prefix, self._after)
            left_s = deadline - time.monotonic()
            if changes or left_s <= 0:
                return changes
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, _POLL_S_MAX)

    def close(self) -> None:
        pass  # it has no connection of its own
