# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the LMCache tests: a small pool in a file, and both doors on it.

Everything here runs against LMCache's own classes; without LMCache only test_installed.py is left, and says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")
os.environ.setdefault("PYTHONHASHSEED", "0")

sys.path.insert(0, str(Path(__file__).parents[1] / "doors"))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "python"))

from door_fixtures import make_pool, pool_path  # noqa: F401
from door_support import Door
from gpu_fixtures import gpu, gpu_of_session  # noqa: F401

DOOR = Door(Path(__file__).parent, "lmcache", ("torch", "lmcache"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return DOOR.is_left_out(collection_path, config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    DOOR.mark(items)


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
def adapter(make_adapter: Callable[..., Any], pool_path: str) -> Any:  # noqa: F811
    return make_adapter(pool_path)
