# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the LMCache tests: a small pool in a file, and both doors on it.

Everything here runs against LMCache's own classes; without LMCache only test_installed.py is left, and says so.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")
os.environ.setdefault("PYTHONHASHSEED", "0")

sys.path.insert(0, str(Path(__file__).parent))

MIB = 1 << 20


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:
        return False


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what could not be imported, and what would be deselected after importing torch and LMCache for it."""
    if collection_path.name in (Path(__file__).parent.name, "test_installed.py"):
        return None
    if not (_is_installed("torch") and _is_installed("lmcache")):
        return True
    return True if "not lmcache" in config.option.markexpr else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.lmcache)


@pytest.fixture
def make_pool(tmp_path: Path) -> Callable[..., str]:
    """Return a function that formats a pool file and returns its path."""

    def make(size: int = 256 * MIB, region_bytes: int = 4 * MIB, name: str = "pool.img", **options: Any) -> str:
        path = tmp_path / name
        kvstore.format(str(path), size=size, region_bytes=region_bytes, min_block_bytes=4096, **options)
        return str(path)

    return make


@pytest.fixture
def pool_path(make_pool: Callable[..., str]) -> str:
    return make_pool()


@pytest.fixture
def disk() -> Iterator[Any]:
    """Return a formatted disk in memory, whose reads can be spoiled."""
    from lmcache_device import Disk

    made = Disk()
    yield made
    made.remove()


@pytest.fixture
def make_adapter() -> Iterator[Callable[..., Any]]:
    """Return a function that makes L2 adapters; all are closed at the end."""
    from kvstore.lmcache import KVStoreL2Adapter

    adapters = []

    def make(path: str, l1_memory_desc: Any = None, **params: Any) -> KVStoreL2Adapter:
        adapter = KVStoreL2Adapter({"path": path, **params}, l1_memory_desc=l1_memory_desc)
        adapters.append(adapter)
        return adapter

    yield make
    for adapter in adapters:
        adapter.close()


@pytest.fixture
def adapter(make_adapter: Callable[..., Any], pool_path: str) -> Any:
    return make_adapter(pool_path)
