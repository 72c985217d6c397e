# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the sharing tests: a file or a loop device, and openers in processes of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
sys.path.insert(0, str(Path(__file__).parents[1] / "reliability"))
sys.path.insert(0, str(Path(__file__).parent))

from reliability_support import need_root
from sharing_support import ENVIRONMENT, MIB, POOL, Opener

import kvstore


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the SQLite files of devices, for this process and its children."""
    monkeypatch.setenv("KVSTORE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setitem(ENVIRONMENT, "KVSTORE_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def make_pool(tmp_path: Path) -> Callable[..., str]:
    """Return a function that formats a pool in a file of this test's own, with regions of 1 MiB."""

    def make(size: int = 256 * MIB, **options: Any) -> str:
        path = str(tmp_path / "pool.img")
        kvstore.format(path, size=size, **{**POOL, **options})
        return path

    return make


@pytest.fixture(params=["file", "loop"])
def medium(request: pytest.FixtureRequest, make_pool: Callable[..., str]) -> Iterator[Callable[..., str]]:
    """The same, and with a loop device over the file."""
    devices: list[str] = []

    def make(size: int = 256 * MIB) -> str:
        if request.param == "file":
            return make_pool(size)
        need_root("a loop device")
        if shutil.which("losetup") is None:
            pytest.skip("losetup is missing: install util-linux")
        backing = make_pool(size)
        command = ["losetup", "--find", "--show", "--direct-io=on", backing]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"no loop device here: {done.stderr.strip()}")
        devices.append(done.stdout.strip())
        kvstore.format(devices[-1], **POOL, force=True)
        return devices[-1]

    yield make
    for device in devices:
        subprocess.run(["losetup", "--detach", device], check=False)


@pytest.fixture
def start() -> Iterator[Callable[..., Opener]]:
    """Return a function that starts an opener and waits until it has the pool open; all are killed at the end."""
    openers: list[Opener] = []

    def make(name: str, path: str, *, wait: bool = True, **options: Any) -> Opener:
        openers.append(Opener(name, path, **options))
        if wait:
            openers[-1].answer()
        return openers[-1]

    yield make
    for opener in openers:
        opener.kill()


@pytest.fixture
def start_all(start: Callable[..., Opener]) -> Callable[..., list[Opener]]:
    """Return a function that starts so many openers of one pool at once."""

    def make(count: int, path: str, **options: Any) -> list[Opener]:
        openers = [start(f"opener{i}", path, wait=False, **options) for i in range(count)]
        for opener in openers:
            opener.answer()
        return openers

    return make
