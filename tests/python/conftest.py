# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the Python tests: pools on every kind of device, memory at chosen addresses, child processes.

``pool`` runs a test once per medium: a file by io_uring, a file by threads, a loop device (root only), and a simulated
disk. ``file_pool`` is one pool in a file, for what does not depend on the device.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kvstore
from kvstore import _core
from kvstore.testing import SimDisk

sys.path.insert(0, str(Path(__file__).parent))

from gpu_fixtures import gpu, gpu_of_session  # noqa: F401
from pool_fixtures import disk, pool_path, python, sim_pool, sim_space  # noqa: F401
from python_support import IDENTITY, POOL, Arena
from replay_support import pool_file  # noqa: F401


@pytest.fixture(scope="session")
def loop_device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if os.geteuid() != 0:
        pytest.skip("loop devices need root")
    if shutil.which("losetup") is None:
        pytest.skip("losetup is missing: install util-linux")
    backing = tmp_path_factory.mktemp("loop") / "backing.img"
    with open(backing, "wb") as file:
        file.truncate(POOL["size"])
    done = subprocess.run(
        ["losetup", "--find", "--show", "--direct-io=on", str(backing)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"no loop device here: {done.stderr.strip()}")
    device = done.stdout.strip()
    yield device
    subprocess.run(["losetup", "--detach", device], check=True)
    backing.unlink()


def skip_without_uring() -> None:
    problem = _core.uring_problem()
    if problem:
        pytest.skip(f"io_uring cannot be used here: {problem}")


@pytest.fixture(scope="session", params=["uring-file", "threads-file", "uring-loop", "sim"])
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[kvstore.Pool]:
    """An open pool, once per medium; shared, each test has a space of its own."""
    options = {key: value for key, value in POOL.items() if key != "size"}
    kind, medium = "auto", request.param
    if medium == "sim":
        path = SimDisk(POOL["size"], seed=1).path
    else:
        kind, place = medium.split("-")
        if kind == "uring":
            skip_without_uring()
        if place == "loop":
            path = request.getfixturevalue("loop_device")
            options["force"] = True
        else:
            path = str(tmp_path_factory.mktemp("medium") / "pool.img")
            options["size"] = POOL["size"]
    kvstore.format(path, **options)
    with kvstore.open(path, device_kind=kind) as opened:
        yield opened


@pytest.fixture
def space(pool: kvstore.Pool, request: pytest.FixtureRequest) -> kvstore.Space:
    return pool.space(test=request.node.nodeid, **IDENTITY)


@pytest.fixture(scope="session")
def file_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kvstore.Pool]:
    """An open pool in a file, the device kind chosen by the store; shared, as ``pool``."""
    path = str(tmp_path_factory.mktemp("file") / "pool.img")
    kvstore.format(path, **POOL)
    with kvstore.open(path) as opened:
        yield opened


@pytest.fixture
def file_space(file_pool: kvstore.Pool, request: pytest.FixtureRequest) -> kvstore.Space:
    return file_pool.space(test=request.node.nodeid, **IDENTITY)


@pytest.fixture
def arena() -> Iterator[Callable[[int], Arena]]:
    """Return a function that makes arenas of n pages."""
    made: list[Arena] = []

    def make(pages: int) -> Arena:
        made.append(Arena(pages))
        return made[-1]

    yield make
    for one in made:
        one.close()
