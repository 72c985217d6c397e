# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""SqliteFile: one connection to a SQLite file that many processes share.

Guarantees: what was committed is on the disk. A file that was removed or replaced is opened anew, and made if need be,
at the next transaction, so what it held reads as wiped; of a transaction in which that was noticed the outcome is
unknown. So is one whose ``-wal`` or ``-shm`` went, in whatever order they go and whoever comes in between: SQLite does
not notice, and one process would write a log that another does not see. In a forked child every call is refused: SQLite
must not hear of forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from kvstore.errors import EngineError

_FULL = 2  # PRAGMA synchronous
_BESIDE = ("-wal", "-shm")  # which SQLite removes with the last connection, and only then

_Inode = tuple[int, int]

# POSIX: whoever closes any descriptor of a file drops all locks that its process has there. SQLite knows; while we make
# the file nobody here may open it.
_making = threading.Lock()
_all: weakref.WeakSet[SqliteFile] = weakref.WeakSet()
_inherited: set[_Inode] = set()


class SqliteFile:
    """A connection in WAL mode with ``synchronous = FULL``. Thread-safe: transactions wait for each other.

    Parameters
    ----------
    path : made, with mode 0600, if absent.
    schema : statements that make what is missing of it.
    timeout_s : longest wait for another process's transaction.
    """

    def __init__(self, path: str, schema: str, timeout_s: float) -> None:
        self.path = str(Path(path).resolve())  # as SQLite names what lies beside it
        self.opened = 0  # how many times: again whenever it was replaced
        self.transactions = 0
        self._schema = schema
        self._timeout_s = timeout_s
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._identity: list[_Inode | None] = []  # of the file and of what is beside it
        with self._errors():
            self._connection = self._connect()
        _all.add(self)

    @contextlib.contextmanager
    def transaction(self, kind: Literal["IMMEDIATE", "DEFERRED"]) -> Iterator[sqlite3.Connection]:
        """A transaction, to write or to read, that an exception undoes."""
        with self.connected() as sql:
            self.transactions += 1
            sql.execute(f"BEGIN {kind}")
            try:
                yield sql
                sql.execute("COMMIT")
            except BaseException:
                if sql.in_transaction:  # not where SQLite has undone it by itself
                    sql.execute("ROLLBACK")
                raise
            if kind == "IMMEDIATE" and not self._is_current():
                raise EngineError(f"{self.path} was removed or replaced during a transaction")

    @contextlib.contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """The connection to the file that now bears the name."""
        self._refuse_fork()
        with self._lock, self._errors():
            if self._closed:
                raise EngineError(f"the connection to {self.path} is closed")
            if not self._is_current():
                self._discard()
                self._connection = self._connect()
            yield self._connection

    def close(self) -> None:
        """Idempotent."""
        if os.getpid() != self._pid:
            return
        with self._lock, self._errors():
            if not self._closed:
                self._connection.close()
            self._closed = True

    def abandon(self) -> None:
        """In a forked child: keep SQLite from closing the connection, ever, and the file from being opened again."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
        _inherited.update(inode for inode in self._identity[:1] if inode is not None)

    def _discard(self) -> None:
        # Where something of it is left, of the file or beside it, all of that goes, and the file, too, whichever it is.
        # Within a process SQLite shares what is open of one inode, so that a connection opened anew would get the lost
        # -shm of the others, and be alone with it. And whoever opens a file that was put in the place of ours, beside
        # our -shm, truncates what others have mapped, who die of that, once our closing has dropped our locks there.
        if self._identity:
            with self._folder_locked():
                ours = [own and own == now for own, now in zip(self._identity, self._inodes(), strict=True)]
                for end, is_ours in zip(("", *_BESIDE), ours, strict=True):
                    if is_ours or (any(ours) and not end):
                        Path(self.path + end).unlink(missing_ok=True)
        self._identity = []  # if the next one does not open either
        self._connection.close()  # leaves the names alone, since the file has no more its own

    def _connect(self) -> sqlite3.Connection:
        # In the folder's lock, so that nobody has just found a -shm by its name while another gives it up.
        with _making, self._folder_locked():
            if self._inode(self.path) is None:
                self._make()
            # Before it is opened: if it is replaced in between, that is noticed later, and not never.
            inode = self._inode(self.path)
            if inode in _inherited:
                raise EngineError(
                    f"{self.path} was open when this process was forked, so SQLite takes its locks for its own here: "
                    "open the pool in one process, or start children with spawn"
                )
            connection = sqlite3.connect(
                self.path, timeout=self._timeout_s, isolation_level=None, check_same_thread=False
            )
            try:
                self._begin_wal(connection)
                self._set(connection, "synchronous", _FULL)
                connection.executescript(self._schema)
            except BaseException:
                connection.close()
                raise
            self._identity = [inode, *(self._inode(self.path + end) for end in _BESIDE)]
        self.opened += 1
        return connection

    def _make(self) -> None:
        """An empty file, in the folder's lock."""
        for end in _BESIDE:  # a log of another file, which those that had that one open may yet write
            Path(self.path + end).unlink(missing_ok=True)
        os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))

    @contextlib.contextmanager
    def _folder_locked(self) -> Iterator[None]:
        deadline = time.monotonic() + self._timeout_s
        folder = os.open(Path(self.path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            while True:
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                time.sleep(random.uniform(0.001, 0.01))
            yield
        finally:
            fcntl.flock(folder, fcntl.LOCK_UN)  # a child forked meanwhile has it open, too
            os.close(folder)

    def _begin_wal(self, connection: sqlite3.Connection) -> None:
        # Of processes that make the file at once SQLite lets none wait for another here, since both would for ever.
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._set(connection, "journal_mode", "wal")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(random.uniform(0.001, 0.01))

    def _set(self, connection: sqlite3.Connection, name: str, value: str | int) -> None:
        connection.execute(f"PRAGMA {name} = {value}")
        found = connection.execute(f"PRAGMA {name}").fetchone()[0]
        if found != value:
            raise EngineError(
                f"SQLite on {self.path} has {name} {found} where it must have {value}: "
                "put the file on a local file system that has shared memory maps"
            )

    def _is_current(self) -> bool:
        return self._identity == self._inodes()

    def _inodes(self) -> list[_Inode | None]:
        """Of what bears the names now."""
        return [self._inode(self.path + end) for end in ("", *_BESIDE)]

    @staticmethod
    def _inode(path: str) -> _Inode | None:
        try:
            found = Path(path).stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _refuse_fork(self) -> None:
        if os.getpid() != self._pid:  # before the lock: another thread of the parent may hold it for ever
            raise EngineError(f"the connection to {self.path} is the parent process's: open the pool after fork")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            damaged = any(words in str(error) for words in ("not a database", "malformed"))
            mend = ": remove it when no opener is left; the state is rebuilt from the devices" if damaged else ""
            raise EngineError(f"SQLite on {self.path}: {error}{mend}") from error
        except sqlite3.Error as error:
            raise EngineError(f"SQLite on {self.path}: {error}") from error
        except OSError as error:
            raise EngineError(f"SQLite on {self.path}: {error.strerror}") from error


def _abandon_all() -> None:
    global _making
    _making = threading.Lock()  # another thread of the parent may have held it
    for file in list(_all):
        file.abandon()


os.register_at_fork(after_in_child=_abandon_all)
