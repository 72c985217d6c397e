# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Tree: the few operations that the kernel's configfs takes, on paths below its root.

Directories are objects of the kernel, files their attributes, links what belongs together. Errors are OSError.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path

__all__ = ["NVMET", "DirectoryTree", "KernelWaits", "Tree"]

#: Where the target is configured.
NVMET = Path("/sys/kernel/config/nvmet")


class KernelWaits(OSError):
    """A change has not ended in time, and may end yet."""


class Tree(ABC):
    """Paths are relative to the root, with slashes. Not thread-safe: the kernel takes one operation at a time."""

    @abstractmethod
    def names(self, path: str) -> list[str]:
        """Of what is in a directory, sorted; empty when there is none."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is a directory, attribute or link."""

    @abstractmethod
    def identity(self, path: str) -> str:
        """Of a directory, as long as it is there: one that is made again under its name has another."""

    @abstractmethod
    def read(self, path: str) -> str:
        """An attribute, without the newline that the kernel adds."""

    @abstractmethod
    def write(self, path: str, value: str) -> None:
        """Set an attribute."""

    @abstractmethod
    def mkdir(self, path: str) -> None:
        """Make an object."""

    @abstractmethod
    def rmdir(self, path: str) -> None:
        """Remove an object."""

    @abstractmethod
    def link(self, path: str, to: str) -> None:
        """Make a link to another object of this tree."""

    @abstractmethod
    def unlink(self, path: str) -> None:
        """Remove a link."""


class DirectoryTree(Tree):
    """A directory: configfs itself."""

    def __init__(self, root: Path = NVMET) -> None:
        self.root = root

    def names(self, path: str) -> list[str]:
        try:
            return sorted(entry.name for entry in (self.root / path).iterdir())
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.lexists(self.root / path)

    def identity(self, path: str) -> str:
        # configfs keeps a directory's inode in memory until rmdir.
        return str((self.root / path).lstat().st_ino)

    def read(self, path: str) -> str:
        return (self.root / path).read_text().rstrip("\n")

    def write(self, path: str, value: str) -> None:
        # One write(2), which is one operation of the kernel; without truncating, which is none.
        fd = os.open(self.root / path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)

    def mkdir(self, path: str) -> None:
        (self.root / path).mkdir()

    def rmdir(self, path: str) -> None:
        (self.root / path).rmdir()

    def link(self, path: str, to: str) -> None:
        (self.root / path).symlink_to(self.root / to)

    def unlink(self, path: str) -> None:
        (self.root / path).unlink()
