# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the SGLang tests: pools, backends made by SGLang's own factory, host pools with SGLang's own addressing.

Everything here runs against SGLang's own base class; without SGLang only test_installed.py is left, and says so.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.testing import SimDisk

sys.path.insert(0, str(Path(__file__).parent))

MIB = 1 << 20


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what could not be imported, and what would be deselected after importing SGLang for it."""
    if collection_path.name in (Path(__file__).parent.name, "test_installed.py"):
        return None
    if not all(importlib.util.find_spec(name) for name in ("torch", "sglang")):
        return True
    return True if "not engines" in config.option.markexpr else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engines)


@pytest.fixture
def make_pool(tmp_path: Path) -> Callable[..., str]:
    """Return a function that formats a pool file and returns its path."""

    def make(name: str = "pool.img", size: int = 256 * MIB, region_bytes: int = 4 * MIB) -> str:
        path = str(tmp_path / name)
        kvstore.format(path, size=size, region_bytes=region_bytes, min_block_bytes=4096)
        return path

    return make


@pytest.fixture
def pool_path(make_pool: Callable[..., str]) -> str:
    return make_pool()


@pytest.fixture
def disk() -> Iterator[SimDisk]:
    """A formatted simulated disk, on which nothing takes time. What is stuck at the end is let go."""
    made = SimDisk("160MiB", seed=1)
    kvstore.format(made.path, region_bytes="4MiB", min_block_bytes=4096)
    yield made
    made.clear_faults()
    made.release_stuck()
    made.remove()


@pytest.fixture
def make_backend() -> Iterator[Callable[..., Any]]:
    """Return a function that makes backends by SGLang's factory, with a host pool; all are closed at the end."""
    from sglang_engine import HostPool, create_backend

    made = []

    def make(path: str, host_pool: HostPool | None = None, *, extra: dict[str, Any] | None = None, **rank: Any) -> Any:
        backend = create_backend(path, extra=extra, **rank)
        made.append(backend)
        backend.register_mem_pool_host(HostPool() if host_pool is None else host_pool)
        return backend

    yield make
    for backend in made:
        backend.close()
