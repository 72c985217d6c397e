# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Openers in processes of their own, told what to do; and what the tests of this folder share."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kvstore

MIB = 1 << 20
POOL = {"region_bytes": MIB, "min_block_bytes": 4096}
SEED = int(os.environ.get("KVS_SEED", "1"))

LEASE_S = 2.0
PROMISES_AHEAD_BYTES = 4096
# What takes a lease, or the word of a lease's end, takes no more than this, on a machine that is busy.
LEASES_MAX_S = 4 * LEASE_S + 20
ANSWER_S = 90.0

HERE = Path(__file__).parent
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(Path(kvstore.__file__).parent.parent), str(HERE.parent / "reliability")]),
}


class Refused(Exception):
    """What the opener was told raised an error of kvstore."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Opener:
    """A process with the pool open. Every wait has an end, and a process that ends unasked fails the test."""

    def __init__(self, name: str, path: str, **options: Any) -> None:
        self.name = name
        self._path = path
        arguments = {"paths": path, "mode": "shared", "lease_s": LEASE_S, "wait_s": 30, **options}
        self._complaints = tempfile.TemporaryFile()  # not a pipe, which nobody would empty
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "opener_process.py"), json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env=ENVIRONMENT,
        )
        assert self._process.stdout is not None
        # How far it works ahead of who reads its promises: else a slow machine would fill any pool.
        fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, PROMISES_AHEAD_BYTES)
        self._text = b""
        self._lines: deque[list[Any]] = deque()

    # ---- one command ----

    def tell(self, command: str, *arguments: Any) -> None:
        """Send a command and do not wait: the answer comes from :meth:`answer`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps([command, *arguments]) + "\n").encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(f"{self.name} has ended: {self._complained()}") from None

    def answer(self, promises: set[str] | None = None) -> Any:
        """The next answer. What ``work`` said before it goes into ``promises``."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            while self._lines:
                word, *rest = self._lines.popleft()
                if word == "ok":
                    return rest[0]
                if word == "error":
                    raise Refused(*rest)
                assert promises is not None, (word, rest)
                promises.add(rest[0])
            self._read(deadline)

    def ask(self, command: str, *arguments: Any) -> Any:
        self.tell(command, *arguments)
        return self.answer()

    # ---- while it works ----

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def take_promises(self, promises: set[str]) -> int:
        """What it has promised since; call it when it is readable."""
        self._read(time.monotonic() + ANSWER_S)
        count = 0
        while self._lines and self._lines[0][0] == "stored":
            promises.add(self._lines.popleft()[1])
            count += 1
        return count

    # ---- its life ----

    def kill(self, promises: set[str] | None = None) -> None:
        """SIGKILL; what it had promised until then counts."""
        self._process.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if not self._process.stdout.closed:
            self._text += self._process.stdout.read()
            self._process.stdout.close()
        self._process.wait(ANSWER_S)
        self._split()
        while self._lines:
            word, *rest = self._lines.popleft()
            if word == "stored" and promises is not None:
                promises.add(rest[0])

    def pause(self) -> None:
        """Stops every thread of it, and returns when they have stopped.

        Outside of a transaction: one that is stopped inside holds SQLite's lock, and with it all openers of the host.
        """
        with contextlib.closing(
            sqlite3.connect(f"{self._path}.sqlite", isolation_level=None, timeout=ANSWER_S)
        ) as lock:
            lock.execute("BEGIN IMMEDIATE")
            self._process.send_signal(signal.SIGSTOP)
            deadline = time.monotonic() + ANSWER_S
            while "T (stopped)" not in Path(f"/proc/{self._process.pid}/status").read_text():
                assert time.monotonic() < deadline, f"{self.name} does not stop"
                time.sleep(0.001)
            lock.execute("ROLLBACK")

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """A clean end: close, and the process exits well."""
        if self._process.poll() is None:
            self.ask("close")
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(ANSWER_S) == 0, self._complained()

    def _read(self, deadline: float) -> None:
        ready = select.select([self.fileno()], [], [], max(0.0, deadline - time.monotonic()))[0]
        assert ready, f"{self.name} does not answer"
        more = os.read(self.fileno(), 1 << 16)
        if not more:
            raise AssertionError(f"{self.name} has ended: {self._complained()}")
        self._text += more
        self._split()

    def _complained(self) -> str:
        self._complaints.seek(0)
        return self._complaints.read().decode()

    def _split(self) -> None:
        *lines, self._text = self._text.split(b"\n")
        self._lines += [json.loads(line) for line in lines]


def ask_all(openers: Sequence[Opener], command: str, *arguments: Any) -> list[Any]:
    """The same command to all at once; their answers in order."""
    for opener in openers:
        opener.tell(command, *arguments)
    return [opener.answer() for opener in openers]


def wait_until(opener: Opener, condition: Any, what: str, within_s: float = LEASES_MAX_S) -> dict[str, Any]:
    """Ask for its numbers until they fulfil the condition; those numbers."""
    deadline = time.monotonic() + within_s
    while not condition(stats := opener.ask("stats")):
        assert time.monotonic() < deadline, f"{opener.name}: not {what} after {within_s} s: {stats}"
        time.sleep(0.02)
    return dict(stats)


def percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]
