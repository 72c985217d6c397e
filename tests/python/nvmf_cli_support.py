# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A machine for the whole command line of nvmf-setup: target and host at once, whose configfs and /sys and door are
fakes; every verb, in the order from two drives to a pool and back.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from pathlib import Path
from typing import Any

from nvmf_check_support import COMMANDS, FILES
from nvmf_check_support import machine as checked_machine
from nvmf_host_support import FakeHostKernel
from nvmf_support import FakeConfigfs

from kvstore.nvmf.cli import Machine, main
from kvstore.nvmf.host import LocalHost
from kvstore.nvmf.persist import Persistence
from kvstore.nvmf.pool import HostPool
from kvstore.nvmf.spec import Spec, read_spec
from kvstore.nvmf.target import Target

FILE = """
subsystems:
  - nqn: nqn.2026-11.com.example:pool
    serial: pool0
    namespaces:
      - {{nsid: 1, device: {folder}/drive1, uuid: 00000001-0000-4000-8000-000000000000, nguid: "{one}"}}
      - {{nsid: 2, device: {folder}/drive2, uuid: 00000002-0000-4000-8000-000000000000, nguid: "{two}"}}
    hosts: [decode1, decode2]
    ports: [1]
ports:
  - {{id: 1, transport: rdma, address: 10.0.0.1}}
hosts:
  - name: decode1
    nqn: nqn.2026-11.com.example:decode1
    host_id: 11111111-0000-4000-8000-000000000000
    key_file: {folder}/decode1.key
  - {{name: decode2, nqn: "nqn.2026-11.com.example:decode2", host_id: 22222222-0000-4000-8000-000000000000}}
connection: {{io_queues: 2}}
"""
BYTES = 48 << 20
KEY = bytes(range(32))


class Fake:
    """A machine that is target and host, and what was done to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "pool.yaml"
        self.file.write_text(FILE.format(folder=folder, one="1" * 32, two="2" * 32))
        for name in ("drive1", "drive2"):
            (folder / name).open("wb").truncate(BYTES)
        (folder / "dev").mkdir()
        for number in (1, 2):  # what the host sees of them
            (folder / f"dev/nvme9n{number}").symlink_to(folder / f"drive{number}")
        key = folder / "decode1.key"
        key.write_text(self.key)
        key.chmod(0o600)
        self.missing: list[str] = []  # modules
        self.configfs = FakeConfigfs()
        self.connected: list[str] | None = None
        self.holder = ""  # of each namespace that the host has
        self.kernel = FakeHostKernel(folder / "sys", read_spec(self.file))
        self.checked = checked_machine(folder / "checked", FILES, COMMANDS)

    @property
    def key(self) -> str:
        return f"DHHC-1:00:{base64.b64encode(KEY + binascii.crc32(KEY).to_bytes(4, 'little')).decode()}:"

    def wait(self, address: str, seconds: float) -> None:
        """For an address of the target, which is there; tests have other things happen meanwhile."""

    def machine(self) -> Machine:
        ticks = itertools.count()
        outside: dict[str, Any] = {"load": lambda names: None, "missing": lambda names: self.missing}

        def target(spec: Spec) -> Target:
            record = self.folder / "state/target.json"
            connected = {"connected": lambda nqn: self.connected, "wait": self.wait}
            return Target(spec, self.configfs, record_path=record, **connected, **outside)

        def host(spec: Spec, name: str) -> LocalHost:
            time = {"now_s": lambda: float(next(ticks)), "sleep": lambda seconds: None, "cpus": lambda: 8}
            return LocalHost(spec, name, self.kernel, self.kernel, holder=lambda path: self.holder, **time, **outside)

        def pool(host: LocalHost) -> HostPool:
            return HostPool(host, self.folder / "dev", self.folder / "state/pool.json", sleep=lambda seconds: None)

        def persistence(files: Any, root: Path) -> Persistence:
            return Persistence(files, root, Path("/state/persist.json"))

        lock = self.folder / "state/lock"
        return Machine(target, host, pool, persistence, lambda: lock, lambda: self.checked)

    def run(self, *words: str) -> int:
        return main([word.format(file=self.file, folder=self.folder) for word in words], self.machine())

    def state(self) -> list[Any]:
        """All that a verb may change."""
        paths = [
            path
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and not path.is_symlink() and path.name != "lock"
        ]
        files = {str(path): path.read_bytes() for path in paths}
        return [self.configfs.state(), self.kernel.lines, list(self.kernel.written), files]


HOST = ("{file}", "--host", "decode1")
SIZE = ("--region-bytes", "1MiB")
VERBS: list[tuple[str, ...]] = [
    ("plan", "{file}"),
    ("plan", *HOST),
    ("target", "apply", "{file}"),
    ("target", "status", "{file}"),
    ("host", "connect", *HOST),
    ("host", "status", *HOST),
    ("pool", *HOST, *SIZE),
    ("persist", "target", "{file}", "--root", "{folder}/root", "--program", "nvmf-setup"),
    ("persist", "host", *HOST, "--root", "{folder}/root", "--program", "nvmf-setup"),
    ("persist", "target", "{file}", "--root", "{folder}/root", "--remove"),
    ("check", "{file}"),
    ("host", "disconnect", *HOST),
    ("target", "remove", "{file}"),
]
_CHANGING = {("target", "apply"), ("host", "connect"), ("pool",), ("persist", "target"), ("persist", "host"),
            ("host", "disconnect"), ("target", "remove")}  # fmt: skip
#: Those that may change something.
CHANGING = [words for words in VERBS if words[:2] in _CHANGING or words[:1] in _CHANGING]
