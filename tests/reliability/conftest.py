# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the reliability tests: loop devices, small file systems, and what tests/python has that serves here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
sys.path.insert(0, str(Path(__file__).parent))

from pool_fixtures import disk, pool_path, python, sim_pool, sim_space  # noqa: F401
from reliability_support import MIB, need_root, need_uring, run

import kvstore


@pytest.fixture
def attach() -> Iterator[Callable[..., str]]:
    """Return a function that puts a loop device over a file; all are detached at the end."""
    devices: list[str] = []

    def make(backing: str, *flags: str) -> str:
        need_root("a loop device")
        if shutil.which("losetup") is None:
            pytest.skip("losetup is missing: install util-linux")
        command = ["losetup", "--find", "--show", *flags, backing]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"no loop device here: {done.stderr.strip()}")
        devices.append(done.stdout.strip())
        return devices[-1]

    yield make
    for device in devices:
        subprocess.run(["blockdev", "--setrw", device], check=False)  # it would stay read-only for its next user
        subprocess.run(["losetup", "--detach", device], check=False)


@pytest.fixture
def small_fs(tmp_path: Path, attach: Callable[..., str]) -> Iterator[Path]:
    """A mounted ext4 of this test's own, 128 MiB."""
    image = tmp_path / "ext4.img"
    with open(image, "wb") as file:
        file.truncate(128 * MIB)
    device = attach(str(image))
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is missing: install e2fsprogs")
    run("mkfs.ext4", "-q", "-F", device)
    folder = tmp_path / "mounted"
    folder.mkdir()
    run("mount", device, str(folder))
    yield folder
    # Lazily: the kernel lets go of a ring's files a moment after they were closed.
    run("umount", "--lazy", str(folder))


@pytest.fixture(params=["uring", "threads"])
def kind(request: pytest.FixtureRequest) -> str:
    """Both ways to reach a device."""
    need_uring(request.param)
    return request.param


@pytest.fixture(params=["file", "loop"])
def medium(request: pytest.FixtureRequest, tmp_path: Path, attach: Callable[..., str]) -> Callable[[int], str]:
    """Return a function that makes a sparse file, or a loop device over one, of so many bytes."""

    def make(size: int) -> str:
        backing = tmp_path / "pool.img"
        with open(backing, "wb") as file:
            file.truncate(size)
        return attach(str(backing), "--direct-io=on") if request.param == "loop" else str(backing)

    return make


@pytest.fixture
def file_pool_path(tmp_path: Path) -> str:
    """A formatted pool in a file of this test's own, with regions of 4 MiB."""
    path = str(tmp_path / "file_pool.img")
    kvstore.format(path, size=192 * MIB, region_bytes=4 * MIB, min_block_bytes=4096)
    return path
