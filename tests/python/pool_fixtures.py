# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures that more than one folder of tests uses; a conftest.py imports those it offers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from python_support import IDENTITY, POOL

import kvstore
from kvstore.testing import SimDisk


@pytest.fixture
def pool_path(tmp_path: Path) -> str:
    """A formatted pool in a file of this test's own, not open."""
    path = str(tmp_path / "pool.img")
    kvstore.format(path, **POOL)
    return path


@pytest.fixture
def disk() -> Iterator[SimDisk]:
    """A formatted simulated disk, not open. What is stuck at the end is let go."""
    made = SimDisk(POOL["size"], seed=1)
    kvstore.format(made.path, region_bytes=POOL["region_bytes"], min_block_bytes=POOL["min_block_bytes"])
    yield made
    made.clear_faults()
    made.release_stuck()
    made.remove()


@pytest.fixture
def sim_pool(disk: SimDisk) -> Iterator[kvstore.Pool]:
    opened = kvstore.open(disk.path)
    yield opened
    disk.clear_faults()
    disk.release_stuck()
    opened.close()


@pytest.fixture
def sim_space(sim_pool: kvstore.Pool) -> kvstore.Space:
    return sim_pool.space(**IDENTITY)


@pytest.fixture
def python() -> Callable[..., subprocess.Popen[str]]:
    """Return a function that starts a child: Python source, and its ``sys.argv[1:]``."""
    package_root = str(Path(kvstore.__file__).parent.parent)

    def start(source: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", source, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=package_root,  # the first place where -c looks for modules
            env={**os.environ, "PYTHONPATH": package_root},
        )

    return start
