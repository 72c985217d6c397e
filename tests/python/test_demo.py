# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""scripts/demo: it runs, it would notice what it is there to notice, and it says what is missing.

Method: its parts are run with a client that loses or changes chunks; the whole of it, without the installation, with
four chunks under a real LMCache.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvstore.doctor import Finding

ROOT = Path(__file__).resolve().parents[2]
LIB = ROOT / "scripts/lib"
DEMO = ROOT / "scripts/demo"


def load_module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, LIB / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def server_module() -> Iterator[ModuleType]:
    yield load_module("lmcache_server")
    del sys.modules["lmcache_server"]


@pytest.fixture
def demo(server_module: ModuleType) -> Iterator[ModuleType]:
    yield load_module("demo")
    del sys.modules["demo"]


class Client:
    """Gives back what was stored, but for one chunk that is lost, or one that is changed."""

    def __init__(self, lost: int | None = None, changed: int | None = None) -> None:
        self.lost, self.changed = lost, changed

    def create_request(self, number: int, request_id: str, request_kind: str) -> Any:
        return SimpleNamespace(number=number, num_full_tokens=4 * 256)

    def lookup(self, request: Any) -> Any:
        return SimpleNamespace(hit_chunks=4 if self.lost is None or self.lost // 4 != request.number else self.lost % 4)

    def compute_checksums(self, request: Any, start: int, count: int) -> list[str]:
        numbers = range(4 * request.number, 4 * request.number + 4)
        return ["other" if number in (self.lost, self.changed) else f"sum-{number}" for number in numbers]

    def zero_destination(self, request: Any, start: int, count: int) -> None: ...
    def retrieve(self, request: Any, start: int, count: int) -> None: ...
    def end_session(self, request: Any) -> None: ...


@pytest.mark.parametrize(
    ("client", "expected"),
    [(Client(), (8, 8)), (Client(changed=5), (8, 7)), (Client(lost=6), (6, 7))],
    ids=["all there", "one changed", "one lost"],
)
def test_lost_and_changed_chunks_are_counted(demo: ModuleType, client: Client, expected: tuple[int, int]) -> None:
    assert demo.load(client, [f"sum-{number}" for number in range(8)]) == expected


def test_a_chunk_is_that_of_the_model(demo: ModuleType) -> None:
    assert demo.CHUNK_BYTES == 32 << 20


def test_too_little_memory_is_said_before_it_runs_out(demo: ModuleType) -> None:
    with pytest.raises(demo.Missing, match="of memory"):
        demo.check_memory(1 << 60)


def test_a_folder_that_no_pool_works_in_is_said(demo: ModuleType, tmp_path: Path) -> None:
    demo.refuse(Finding("space", "ok", "plenty"), tmp_path)
    with pytest.raises(demo.Missing, match="Set TMPDIR"):
        demo.refuse(Finding("space", "fail", "1KiB are free", "free space"), tmp_path)


def test_the_adapter_is_found_wherever_the_status_has_it(server_module: ModuleType) -> None:
    adapter = {"type": "KVStoreL2Adapter", "live_bytes": 7}
    status = {"is_healthy": True, "storage_manager": {"l2_adapters": [{"type": "Other"}, adapter], "l1": {}}}
    assert server_module._find_adapter(status) is adapter
    with pytest.raises(KeyError):
        server_module._find_adapter({"l2_adapters": []})


@pytest.mark.parametrize(
    "arguments", [["--chunks", "3"], ["--chunks", "0"], ["--chunks"], ["--chunks", "many"], ["--no"]]
)
def test_wrong_arguments_are_refused_before_anything_is_installed(arguments: list[str]) -> None:
    done = subprocess.run([DEMO, *arguments], capture_output=True, text=True, timeout=20)
    assert done.returncode != 0
    assert done.stderr.startswith("error: ")


def test_help_is_printed() -> None:
    done = subprocess.run([DEMO, "--help"], capture_output=True, text=True, timeout=20, check=True)
    assert "--chunks" in done.stdout


@pytest.mark.lmcache
def test_a_server_that_does_not_start_is_told_with_the_end_of_its_log(
    server_module: ModuleType, tmp_path: Path
) -> None:
    pytest.importorskip("lmcache", reason="lmcache is not installed: run scripts/setup --lmcache")
    with server_module.LMCacheServer(tmp_path, tmp_path / "none.img", l1_gb=0.1) as server:
        with pytest.raises(server_module.ServerDied, match=r"none\.img"):
            server.wait_until_ready()
    assert not (tmp_path / "server.pid").exists()


@pytest.mark.lmcache
def test_the_demo_runs(tmp_path: Path) -> None:
    pytest.importorskip("lmcache", reason="lmcache is not installed: run scripts/setup --lmcache")
    pytest.importorskip("torch", reason="torch is not installed: run scripts/setup --lmcache")
    command = [sys.executable, LIB / "demo.py", "--folder", tmp_path, "--chunks", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in ("hits           4 of 4", "verified       4 of 4 equal", "4 blocks read back, 0 bad"):
        assert line in done.stdout
    assert not (tmp_path / "server.pid").exists()
