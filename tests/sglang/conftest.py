# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the SGLang tests: pools, backends made by SGLang's own factory, host pools with SGLang's own addressing.

Everything here runs against SGLang's own base class; without SGLang only test_installed.py is left, and says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doors"))
sys.path.insert(0, str(Path(__file__).parent))

from door_fixtures import disk, make_pool, pool_path  # noqa: F401
from door_support import Door

DOOR = Door(Path(__file__).parent, "engines", ("torch", "sglang"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return DOOR.is_left_out(collection_path, config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    DOOR.mark(items)


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
