# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures that the tests of more than one door use; a conftest.py imports those it offers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.testing import SimDisk

MIB = 1 << 20


@pytest.fixture
def make_pool(tmp_path: Path) -> Callable[..., str]:
    """Return a function that formats a pool file and returns its path."""

    def make(size: int = 256 * MIB, region_bytes: int = 4 * MIB, name: str = "pool.img", **options: Any) -> str:
        path = str(tmp_path / name)
        kvstore.format(path, size=size, region_bytes=region_bytes, min_block_bytes=4096, **options)
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
