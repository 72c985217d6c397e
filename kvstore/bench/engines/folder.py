# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A folder for engines that keep their blocks in files of their own; gone when they are closed.

What they put is on the device after one ``syncfs``, which is the cheapest way there is for many files; gets come from
the device once their pages were dropped from the page cache.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import tempfile
from pathlib import Path

from kvstore.bench.engines.base import Engine, Work

__all__ = ["Folder", "FolderEngine", "direct_io", "forget_cached"]

_log = logging.getLogger("kvstore")


class Folder:
    """A fresh one for ``work.paths[0]``: made there when nothing is, in it where it is a folder, else next to it.

    Raises
    ------
    RuntimeError : the path is a device, or the file system has no room.
    """

    def __init__(self, work: Work) -> None:
        place = Path(work.paths[0]).absolute()  # servers that are given it may run elsewhere
        if place.is_block_device():
            raise RuntimeError(f"its blocks are files, and {place} is a device: give it a file system (filename=A,B)")
        parent = place if place.is_dir() else place.parent
        free = shutil.disk_usage(parent).free
        if free < work.size_bytes:
            raise RuntimeError(f"{parent} has {free:,} bytes free, not {work.size_bytes:,}")
        if place.exists():
            self.path = Path(tempfile.mkdtemp(prefix=f"{place.name}-", dir=parent))
        else:
            self.path = place
            place.mkdir()

    def remove(self) -> None:
        """With all that is in it. What cannot be removed is told, and ends nothing: there are results to write."""
        try:
            shutil.rmtree(self.path)
        except OSError as error:
            _log.warning("%s is left behind: %s", self.path, error)


class FolderEngine(Engine):
    """Whose blocks are in files in such a folder: ``open`` makes it, ``close`` removes it. Those with a cache or a log
    of their own flush and forget that.
    """

    in_folder = True
    folder: Folder | None = None

    @property
    def path(self) -> Path:
        """Of the folder."""
        assert self.folder is not None
        return self.folder.path

    def flush(self) -> None:
        sync_file_system(self.path)

    def forget(self) -> None:
        forget_cached(self.path)

    def close(self) -> None:
        if self.folder is not None:
            self.folder.remove()
            self.folder = None


def direct_io(work: Work) -> bool:
    """The option ``direct``, which some of them have.

    Raises
    ------
    RuntimeError : it is neither 0 nor 1.
    """
    value = work.options.get("direct", "1")
    if value not in ("0", "1"):
        raise RuntimeError(f"direct is {value!r}: it is 0 or 1")
    return value == "1"


def sync_file_system(folder: Path) -> None:
    """Wait until the device has all that was written to the file system of a folder, by whomever.

    Raises
    ------
    OSError : it has not.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd):
            code = ctypes.get_errno()
            raise OSError(code, f"syncfs: {os.strerror(code)}", str(folder))
    finally:
        os.close(fd)


def forget_cached(folder: Path) -> None:
    """Drop the files under a folder from the page cache, so that the first get of a block is one from the device. What
    is not written out yet stays.
    """
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
