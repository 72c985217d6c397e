# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Where a benchmark runs: files and devices, a loop device over memory, a plain file on disk.

Nothing that holds data is overwritten unless the user says so.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import kvstore
from kvstore.errors import BusyError, ConfigError, ForeignDataError, KvStoreError

__all__ = [
    "device_bytes",
    "file_on_disk",
    "folder_on_memory",
    "grow",
    "loop_on_memory",
    "place_in_memory",
    "refuse_data",
    "remove",
    "sync",
    "usable_bytes",
    "write_zeros",
]

_DD_BYTES = 4 << 20  # what is written at once
_PAGE_BYTES = 4096


def device_bytes(path: Path | str) -> int:
    """Size of a file or of a block device, and of what is in a folder; 0 when it is not there."""
    if Path(path).is_dir():
        return sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
    try:
        with open(path, "rb", buffering=0) as opened:
            return opened.seek(0, os.SEEK_END)
    except FileNotFoundError:
        return 0


def grow(path: Path | str, size_bytes: int) -> None:
    """Make a file, or make it larger, so that it has ``size_bytes``; a device has what it has."""
    if not Path(path).is_block_device():
        with open(path, "ab") as opened:
            if opened.tell() < size_bytes:
                opened.truncate(size_bytes)


def write_zeros(path: Path | str, size_bytes: int) -> Iterator[int]:
    """Make a file of ``size_bytes`` whose every byte is written, all of it where it is larger; yields bytes as they go.

    A file with holes charges who puts into them first for extents and journal, as no device does. Devices and folders
    are left alone.

    Raises
    ------
    OSError : there is no room, or no such folder.
    RuntimeError : the path would be a device, and there is none.
    """
    place = Path(path)
    if place.is_block_device() or place.is_dir():
        return
    if not place.exists() and place.is_relative_to("/dev") and not place.is_relative_to("/dev/shm"):
        raise RuntimeError(f"there is no device {path}")
    size_bytes = max(size_bytes, device_bytes(path))
    _demand_room(place, size_bytes)
    fd = _open_direct(place)
    zeros = mmap.mmap(-1, _DD_BYTES)  # page-aligned
    try:
        done = 0
        while done < size_bytes:
            whole_pages = -(-min(_DD_BYTES, size_bytes - done) // _PAGE_BYTES) * _PAGE_BYTES
            with memoryview(zeros)[:whole_pages] as part:
                written = os.pwrite(fd, part, done)
            done += written
            yield written
        os.ftruncate(fd, size_bytes)
        os.fsync(fd)
    finally:
        os.close(fd)
        zeros.close()


def _demand_room(path: Path, size_bytes: int) -> None:
    """Before any is written: a file system that is full is full for all who use it."""
    has = path.stat().st_blocks * 512 if path.exists() else 0
    free = shutil.disk_usage(Path(os.path.realpath(path)).parent).free
    if has + free < size_bytes:
        raise OSError(errno.ENOSPC, f"there are {free:,} bytes free, not {size_bytes - has:,}", str(path))


def _open_direct(path: Path) -> int:
    """For its owner alone, as the store makes files; through the page cache where nothing else can be had (tmpfs)."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)


def usable_bytes(path: Path | str, size_bytes: int) -> int:
    """What of it may be used: all of a file that is still to be made or to grow, never more than a device has."""
    return min(device_bytes(path), size_bytes) if Path(path).is_block_device() else size_bytes


def run(*command: str) -> str:
    """Standard output of a command that must succeed.

    Raises
    ------
    ConfigError : it cannot be run, or failed; with what it said.
    """
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be run: {error}") from error
    except subprocess.CalledProcessError as error:
        raise ConfigError(
            f"{' '.join(command)}: {error.stderr.strip() or f'exit status {error.returncode}'}"
        ) from error


def sync(path: Path | str) -> None:
    """Wait until the device has what was written to it, by whomever. OSError: it has not."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def refuse_data(path: Path | str, *, overwrite: bool = False) -> None:
    """Raise when somebody's data is there that nobody allowed to ``overwrite``: a file or folder that is not empty, a
    device that is not blank; and, allowed or not, when somebody has it open as a store, mounted or held.

    Raises
    ------
    ConfigError : it is no place for blocks at all, such as a pipe.
    ForeignDataError : with what was found, and how to say that it may go.
    BusyError, DeviceError : a store in use; a device that is mounted, held, or cannot be read.
    """
    place = Path(path)
    if not place.exists():
        return
    if place.is_dir():
        found = "files" if any(place.iterdir()) else ""
    elif place.is_block_device():
        found = _found_on(path, overwrite)
    elif place.is_file():
        _found_on(path, True)
        found = f"a file of {device_bytes(path):,} bytes" if device_bytes(path) else ""
    else:
        raise ConfigError(f"{path} is neither a file, a folder nor a block device")
    if found and not overwrite:
        raise ForeignDataError(f"{path} holds {found}: a benchmark would overwrite it; overwrite=1 lets it")


def _found_on(path: Path | str, only_in_use: bool) -> str:
    """What a store that is made there would find. Other engines may use what no store would: then that says nothing."""
    try:
        return str(kvstore.plan_format(path, force=True)[0]["found"])
    except BusyError:
        raise
    except KvStoreError:
        if only_in_use:
            return ""
        raise


def remove(path: Path | str) -> None:
    """A file or folder that an engine made, also one that a link led to; nothing when there is none."""
    place = Path(os.path.realpath(path))
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


@contextlib.contextmanager
def loop_on_memory(size_bytes: int) -> Iterator[str]:
    """A loop device with direct I/O over a tmpfs file: the cost of software, with almost no device. Needs root.

    Raises
    ------
    ConfigError : it cannot be made, or there is less memory free.
    """
    free = _free_memory()
    if free < size_bytes:
        raise ConfigError(
            f"there are {free:,} bytes of memory free in /dev/shm, not {size_bytes:,}: a smaller size or fewer engines"
        )
    with contextlib.ExitStack() as kept:
        with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="kvstore-bench-") as image:
            image.truncate(size_bytes)
            try:
                device = run("losetup", "-f", "--show", "--direct-io=on", image.name).strip()
            except ConfigError as error:
                raise ConfigError(f"no loop device over memory, which needs root and losetup: {error}") from error
            # The device is detached when the last one closes it, and the file's name is gone: a run that is killed
            # leaves neither a device nor its memory behind.
            try:
                kept.callback(os.close, os.open(device, os.O_RDONLY | os.O_CLOEXEC))
            finally:
                run("losetup", "-d", device)
        # Touched once: the first write to a tmpfs page pays for its allocation, and must not be charged to
        # whoever happens to run first.
        run("dd", "if=/dev/zero", f"of={device}", "bs=4M", f"count={size_bytes >> 22}", "oflag=direct")
        yield device


def _free_memory() -> int:
    """What /dev/shm may hold still, and the machine has: its limit is a promise that memory need not keep."""
    known = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return min(shutil.disk_usage("/dev/shm").free, int(known["MemAvailable"].split()[0]) << 10)


@contextlib.contextmanager
def folder_on_memory(size_bytes: int) -> Iterator[str]:
    """A folder that does not exist yet, on ext4 on such a loop device, with room for so much. Needs root."""
    # A file system keeps a part for itself: its journal, its inodes.
    whole = (size_bytes * 5 // 4 + (256 << 20)) >> 22 << 22
    with loop_on_memory(whole) as device, tempfile.TemporaryDirectory(prefix="kvstore-bench-") as mount:
        run("mkfs.ext4", "-q", "-F", "-m", "0", device)
        run("mount", device, mount)
        try:
            yield str(Path(mount) / "blocks")
        finally:
            run("umount", mount)


@contextlib.contextmanager
def file_on_disk(size_bytes: int, folder: str) -> Iterator[str]:
    """A preallocated and written file: the device is the limit."""
    handle, path = tempfile.mkstemp(dir=folder, prefix="kvstore-bench-")
    os.close(handle)
    try:
        run("dd", "if=/dev/urandom", f"of={path}", "bs=4M", f"count={size_bytes >> 22}", "oflag=direct")
        yield path
    finally:
        Path(path).unlink(missing_ok=True)


def place_in_memory(in_folder: bool, size_bytes: int) -> contextlib.AbstractContextManager[str]:
    """A folder or a loop device, whichever an engine keeps its blocks in, for at least so much. Needs root."""
    make = folder_on_memory if in_folder else loop_on_memory
    return make(-(-size_bytes // _DD_BYTES) * _DD_BYTES)
