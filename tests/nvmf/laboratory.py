# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Guests that do what a test says: ``laboratory.call("module.function", …)`` runs a function of tests/nvmf/guest.

Every call has a time after which it fails and tells where it was. A guest that died, or in which something cannot be
killed any more, is replaced at the next use, so that one failure does not become many.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "vm"))

from guest import BUILT, DRIVES, ROOT, Drive, Guest, Link, has_kvm

HERE = Path(__file__).resolve().parent
SOURCES = (ROOT / "kvstore", HERE / "guest", ROOT / "tests" / "reliability")

BOOT_S = 180.0  # 5 on an idle machine
GUEST_S = 1500.0
CALL_S = 120.0
MODULES = ("kvstore", "support", "fabrics")


class Failed(AssertionError):
    """In the guest; the message has its traceback."""


class Machine:
    """One guest with an agent in it."""

    def __init__(self, name: str, folder: Path, **options: Any) -> None:
        self.name = name
        self.is_broken = False
        self.is_prepared = False  # a fixture's own, gone with the guest
        self.boot_s = 0.0
        self._path = folder / f"{name}.sock"
        python_path = os.pathsep.join(map(str, (ROOT, *SOURCES[1:])))
        command = [
            *("env", f"PYTHONPATH={python_path}", "OPENBLAS_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1"),
            *(sys.executable, str(HERE / "guest" / "agent.py"), *MODULES),
        ]
        self._begin = time.monotonic()
        self.guest = Guest(command, name=name, deadline_s=GUEST_S, agent=self._path, folder=folder, **options)
        self._text = b""
        # At once: an agent that finds nobody at the other end goes.
        self._socket = self._connect(self._path, self._begin + BOOT_S)

    def await_boot(self) -> None:
        try:
            self._ask({"what": "hello"}, BOOT_S)
        except BaseException:
            self.guest.kill()
            raise
        self.boot_s = time.monotonic() - self._begin

    def _connect(self, path: Path, deadline: float) -> socket.socket:
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(path))
                return connection
            except OSError:
                connection.close()
                if self.guest.has_ended() or time.monotonic() > deadline:
                    self.guest.kill()
                    raise Failed(f"{self.name} did not start: {self.guest.told()}") from None
                time.sleep(0.02)

    def call(
        self, function: str, *arguments: Any, worker: str | None = None, timeout_s: float = CALL_S, **options: Any
    ):
        """What the function returned. With a worker, the call finds what earlier ones left open there."""
        request = {
            "what": "call",
            "function": function,
            "arguments": arguments,
            "options": options,
            "worker": worker,
            "timeout_s": timeout_s,
        }
        kind, value = self._ask(request, timeout_s + 60)
        if kind == "ok":
            return value
        self.is_broken |= kind == "hang"
        raise Failed(f"{self.name}: {function}: {kind}\n{value}")

    def kill(self, worker: str) -> None:
        """As SIGKILL ends a process."""
        self._ask({"what": "kill", "worker": worker}, 60)

    def _ask(self, request: dict[str, Any], timeout_s: float) -> list[Any]:
        self._socket.sendall((json.dumps(request) + "\n").encode())
        self._socket.settimeout(timeout_s)
        while b"\n" not in self._text:
            try:
                more = self._socket.recv(65_536)
            except TimeoutError:
                more = b""
            if not more:
                self.is_broken = True
                raise Failed(f"{self.name} does not answer: {self.guest.told()}")
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        return json.loads(line)

    def end(self) -> None:
        """Nothing in a guest is worth shutting down for."""
        self._socket.close()
        self.guest.kill()


class Laboratory:
    """Guests by name, started when they are first wanted; ``boots`` says how long each start took."""

    def __init__(self) -> None:
        BUILT.mkdir(parents=True, exist_ok=True)
        # No guest can write byte code, and each would compile the same sources.
        for folder in SOURCES:
            compileall.compile_dir(folder, quiet=1)
        # Sockets have short names; and the folder is there for who looks into a failure.
        self.folder = Path(tempfile.mkdtemp(prefix="lab-", dir=BUILT))
        self.boots: list[tuple[str, float]] = []
        self._machines: dict[str, Machine] = {}

    def machine(self, name: str, **options: Any) -> Machine:
        found = self._machines.get(name)
        if found is not None and (found.is_broken or found.guest.has_ended()):
            found.end()
            found = None
        if found is None:
            found = self._machines[name] = Machine(name, self.folder, **options)
            self._boot(found)
        return found

    def three(self, drives: Sequence[Drive]) -> tuple[Machine, Machine, Machine]:
        """A target and the hosts "one" and "two", each on a network with it; all of them anew when one is broken."""
        names = ("target", "one", "two")
        there = [self._machines[name] for name in names if name in self._machines]
        if len(there) == len(names) and not any(one.is_broken or one.guest.has_ended() for one in there):
            return there[0], there[1], there[2]
        self.end(names)
        sockets = [self.folder / f"link{number}" for number in (1, 2)]
        for socket_path in sockets:
            socket_path.unlink(missing_ok=True)
        links = [Link(number, path, listens=True) for number, path in enumerate(sockets, 1)]
        shape = {"processors": 1, "memory_mib": 1536}
        self._machines["target"] = Machine("target", self.folder, drives=drives, links=links, **shape)
        deadline = time.monotonic() + BOOT_S
        while not all(path.exists() for path in sockets):
            assert time.monotonic() < deadline, self._machines["target"].guest.told()
            time.sleep(0.02)
        for number, (name, path) in enumerate(zip(names[1:], sockets, strict=True), 1):
            link = [Link(number, path, listens=False)]
            self._machines[name] = Machine(name, self.folder, drives=(), links=link, **shape)
        for name in names:
            self._boot(self._machines[name])
        return self._machines["target"], self._machines["one"], self._machines["two"]

    def _boot(self, machine: Machine) -> None:
        machine.await_boot()
        self.boots.append((machine.name, machine.boot_s))

    def end(self, names: Sequence[str] | None = None) -> None:
        for name in list(self._machines) if names is None else names:
            if name in self._machines:
                self._machines.pop(name).end()

    def remove(self) -> None:
        shutil.rmtree(self.folder)

    def remove_drives(self) -> None:
        """Consoles stay, images are large."""
        for image in self.folder.glob("*/*.img"):
            image.unlink()


__all__ = ["BUILT", "DRIVES", "Drive", "Failed", "Laboratory", "Link", "Machine", "has_kvm"]
