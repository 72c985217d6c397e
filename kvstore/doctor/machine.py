# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Where the checks look: files under a root, and the few questions that are not answered by a file.

Both are parameters, so that every check is tested on trees and answers that the test machine does not have.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kvstore
from kvstore import _core
from kvstore._releases import installed_version
from kvstore.errors import KvStoreError

__all__ = ["Machine", "Target", "find_target", "loader_cache"]

_LDCONFIG_TIMEOUT_S = 10


def loader_cache() -> str:
    """What the dynamic loader knows, as ``ldconfig -p`` prints it. Loads nothing."""
    program = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        return ""
    done = subprocess.run([program, "-p"], capture_output=True, text=True, timeout=_LDCONFIG_TIMEOUT_S, check=False)
    return done.stdout


def _open_stats(paths: Sequence[str]) -> dict[str, Any]:
    with kvstore.open(list(paths), read_only=True) as pool:
        return dict(pool.stats())


def _what_is_there(path: str) -> str:
    found: str = kvstore.plan_format(path)[0]["found"]
    return found


def _superblock(path: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = _core.read_superblock(path)
    except KvStoreError:
        return {}
    return found


def _read_directly(path: str) -> None:
    """One real read of a page past the page cache. OSError when that is not possible."""
    import mmap

    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            os.preadv(descriptor, [page], 0)
    finally:
        os.close(descriptor)


@dataclasses.dataclass
class Machine:
    """The machine that is looked at.

    Parameters
    ----------
    root : stands for ``/``.
    python_path : folders that Python imports from.
    uring_problem : why io_uring cannot be used, or ``""``; sets up a ring for real.
    loader_cache : see :func:`loader_cache`.
    package_version : see :func:`kvstore._releases.installed_version`.
    read_directly : reads a page of a path with O_DIRECT; OSError.
    what_is_there : ``""`` or what a device holds; opens it as its only owner and writes nothing; KvStoreError.
    superblock : what the superblock of a device says, also of one in use; empty where there is none.
    open_stats : opens a pool read-only and returns its ``stats()``; KvStoreError.
    """

    root: Path = Path("/")
    python_path: Sequence[str] = dataclasses.field(default_factory=lambda: list(sys.path))
    uring_problem: Callable[[], str] = _core.uring_problem
    loader_cache: Callable[[], str] = loader_cache
    package_version: Callable[[str], str | None] = installed_version
    read_directly: Callable[[str], None] = _read_directly
    what_is_there: Callable[[str], str] = _what_is_there
    superblock: Callable[[str], dict[str, Any]] = _superblock
    open_stats: Callable[[Sequence[str]], dict[str, Any]] = _open_stats

    def path(self, name: str) -> Path:
        """A path of this machine, given as it is called there."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str:
        """A small text file without surrounding blanks; empty when it is not there."""
        try:
            return self.path(name).read_text(errors="replace").strip()
        except OSError:
            return ""

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder of that name."""
        return self.path(name).exists()


@dataclasses.dataclass(frozen=True)
class Target:
    """A device or file that is to hold a pool.

    Parameters
    ----------
    path : as the user gave it.
    is_block : a block device; otherwise a regular file.
    device : ``MAJOR:MINOR`` of the device, or of the one that the file's file system is on.
    size_bytes, allocated_bytes, free_bytes : of a file: its size, what it occupies, what its file system has left.
    """

    path: str
    is_block: bool
    device: str
    size_bytes: int = 0
    allocated_bytes: int = 0
    free_bytes: int = 0

    def sysfs(self, machine: Machine) -> str:
        """The folder in sysfs, of a partition its own; the empty string where there is none (tmpfs, overlay)."""
        name = f"/sys/dev/block/{self.device}"
        return name if machine.exists(name) else ""

    def queue(self, machine: Machine, name: str) -> str:
        """A setting of the block device's queue, of a partition that of its disk; empty where there is none."""
        folder = self.sysfs(machine)
        if not folder:
            return ""
        # `..` follows the link: the disk is the folder that really holds the partition's.
        disk = f"{folder}/.." if machine.exists(f"{folder}/partition") else folder
        return machine.read(f"{disk}/queue/{name}")

    def file_system(self, machine: Machine) -> str:
        """The kind of file system that a file is on; empty when it is not known."""
        for line in machine.read("/proc/self/mountinfo").splitlines():
            fields = line.split()
            if len(fields) > 6 and fields[2] == self.device:
                return fields[fields.index("-") + 1]
        return ""

    def disk_name(self, machine: Machine) -> str:
        """The name of the disk in /sys/block, for commands to paste."""
        folder = machine.path(self.sysfs(machine)).resolve()
        return (folder.parent if (folder / "partition").exists() else folder).name


def find_target(path: str) -> Target:
    """Look at a path. OSError when it is not there; ValueError when it is neither a block device nor a file."""
    facts = Path(path).stat()
    if stat.S_ISBLK(facts.st_mode):
        return Target(path, True, f"{os.major(facts.st_rdev)}:{os.minor(facts.st_rdev)}")
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError(f"{path} is neither a block device nor a regular file")
    system = os.statvfs(path)
    return Target(
        path,
        False,
        f"{os.major(facts.st_dev)}:{os.minor(facts.st_dev)}",
        size_bytes=facts.st_size,
        allocated_bytes=facts.st_blocks * 512,
        free_bytes=system.f_bavail * system.f_frsize,
    )
