# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of a device, or of a file that stands in for one."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence

from kvstore.doctor.finding import Finding
from kvstore.doctor.machine import Machine, Target
from kvstore.errors import BusyError, FormatError, KvStoreError
from kvstore.sizes import format_size

__all__ = [
    "check_alignment",
    "check_content",
    "check_direct_io",
    "check_engine",
    "check_name",
    "check_request_size",
    "check_scheduler",
    "check_space",
    "check_write_cache",
]

_PAGE_BYTES = 4096
_SECTOR_BYTES = 512  # the unit of sysfs, whatever the device's own is
_PIECE_KB = 1024  # one device request of the store at most
_STABLE = ("/dev/disk/by-", "/dev/mapper/")
# File systems that keep a file's pages in place under O_DIRECT writes.
_PLAIN_FILE_SYSTEMS = {"ext4", "xfs"}


def check_name(machine: Machine, target: Target) -> Finding:
    """Whether the path leads to the same device after the next boot."""
    if not target.is_block:
        kind = target.file_system(machine)
        if kind in _PLAIN_FILE_SYSTEMS:
            return Finding("name", "ok", f"a file on {kind}, standing in for a device")
        text = f"a file on {kind or 'an unknown file system'}, standing in for a device"
        return Finding("name", "warn", text, "use a block device, or a file on ext4 or xfs")
    if target.path.startswith(_STABLE):
        return Finding("name", "ok", "a name that stays with the device")
    folder = machine.path("/dev/disk/by-id")
    own = machine.path(target.path).resolve()
    links = sorted(link for link in folder.glob("*") if link.resolve() == own) if folder.is_dir() else []
    # nvme-eui and wwn names are the device's own; others hold its model's name.
    links.sort(key=lambda link: not re.match(r"nvme-(eui|uuid|nguid)|wwn-", link.name))
    mend = f"use /dev/disk/by-id/{links[0].name}" if links else "give it a name by a udev rule"
    return Finding("name", "warn", "the name may lead to another device after the next boot", mend)


def check_content(machine: Machine, target: Target) -> Finding:
    """Who holds the device, and what is on it."""
    try:
        found = machine.what_is_there(target.path)
    except BusyError as error:
        mend = "stop the holder, or open with wait_s to wait for it"
        if machine.superblock(target.path).get("shared_mode"):
            mend = 'open it with mode="shared" too; kvstore peers shows who has it open'
        return Finding("content", "warn", str(error), mend)
    except KvStoreError as error:
        return Finding("content", "fail", str(error), "mend what the message says")
    if not found:
        return Finding("content", "warn", "free, and there is no store on it", f"kvstore format {target.path}")
    if "kvstore store" in found:
        damaged = found.startswith("damaged")
        superblock = machine.superblock(target.path)
        if superblock:
            # A device has a uuid of its own; all other verbs name the pool's.
            mode = "shared" if superblock["shared_mode"] else "owner"
            found = f"{found}, a member of pool {superblock['pool_uuid']} in {mode} mode"
        return Finding("content", "fail" if damaged else "ok", found, "kvstore format --force" if damaged else "")
    mend = "use another device; kvstore format --force overwrites what is there"
    return Finding("content", "fail", f"something else is on it: {found}", mend)


def check_direct_io(machine: Machine, target: Target) -> Finding:
    """Whether a page can really be read past the page cache."""
    try:
        machine.read_directly(target.path)
    except OSError as error:
        if error.errno == errno.EINVAL:
            mend = "put the file on ext4 or xfs (tmpfs has it since Linux 6.6), or use a block device"
            return Finding("direct I/O", "fail", "O_DIRECT is refused", mend)
        if error.errno in (errno.EACCES, errno.EPERM):
            mend = 'run as a user that may read and write it (group "disk" for block devices)'
            return Finding("direct I/O", "fail", "permission denied", mend)
        return Finding("direct I/O", "fail", f"a page cannot be read: {error.strerror}", "look into the kernel's log")
    return Finding("direct I/O", "ok", "a page was read past the page cache")


def check_alignment(machine: Machine, target: Target) -> Finding:
    """Whether the device's own units fit into pages of 4 KiB."""
    logical = _number(target.queue(machine, "logical_block_size"))
    physical = _number(target.queue(machine, "physical_block_size"))
    if not logical:
        return Finding("alignment", "ok", "the device tells nothing; 4 KiB is used throughout")
    text = f"logical block {logical}, physical {physical} bytes"
    if logical > _PAGE_BYTES:
        mend = "use a device with logical blocks of 4 KiB or less; an NVMe drive may be reformatted: nvme format --lbaf"
        return Finding("alignment", "fail", text, mend)
    start = _number(machine.read(f"{target.sysfs(machine)}/start")) * _SECTOR_BYTES
    if target.is_block and start % max(physical, _PAGE_BYTES):
        text = f"{text}; the partition starts at byte {start:,}, so that every write touches two physical blocks"
        return Finding("alignment", "warn", text, "let it start at a multiple of 1 MiB")
    return Finding("alignment", "ok", text)


def check_write_cache(machine: Machine, target: Target) -> Finding:
    """Whether what the device acknowledges is durable at once."""
    cache = target.queue(machine, "write_cache")
    if cache == "write through":
        return Finding("write cache", "ok", "none that is volatile: a flush is free")
    if not cache:
        return Finding("write cache", "ok", "not known: taken for volatile, and flushed")
    return Finding(
        "write cache",
        "warn",
        "volatile: safe, since it is flushed before every commit, but each commit waits for that",
        "a drive with power-loss protection commits faster",
    )


def check_scheduler(machine: Machine, target: Target) -> Finding:
    """Whether the kernel reorders requests that the store has put in order."""
    line = target.queue(machine, "scheduler")
    chosen = re.search(r"\[([\w-]+)\]", line)
    name = chosen[1] if chosen else line
    if name in ("", "none"):
        return Finding("scheduler", "ok", name or "none to choose")
    disk = target.disk_name(machine)
    return Finding(
        "scheduler",
        "warn",
        f"{name} reorders requests that the store has put in order, and costs processor time",
        f"echo none > /sys/block/{disk}/queue/scheduler",
    )


def check_request_size(machine: Machine, target: Target) -> Finding:
    """Whether one request of the store reaches the device as one."""
    now, most = (_number(target.queue(machine, name)) for name in ("max_sectors_kb", "max_hw_sectors_kb"))
    if not now:
        return Finding("request size", "ok", "not known")
    if now >= _PIECE_KB:
        return Finding("request size", "ok", f"up to {now} KiB")
    text = f"at most {now} KiB: the kernel splits requests of 1 MiB"
    if most <= now:
        return Finding("request size", "ok", f"{text}; the device takes no larger ones")
    mend = f"echo {min(most, _PIECE_KB)} > /sys/block/{target.disk_name(machine)}/queue/max_sectors_kb"
    return Finding("request size", "warn", text, mend)


def check_space(machine: Machine, target: Target) -> Finding:
    """Whether the file system can hold a sparse file once it is filled."""
    del machine
    if target.is_block:
        return Finding("space", "ok", "a device of its own")
    missing = max(0, target.size_bytes - target.allocated_bytes)
    text = f"{format_size(missing)} of the file are yet to be allocated, {format_size(target.free_bytes)} are free"
    if missing > target.free_bytes:
        mend = "free space, or make a smaller file; writes that find none fail, and after some the pool is read-only"
        return Finding("space", "fail", text, mend)
    return Finding("space", "ok", text)


def check_engine(machine: Machine, paths: Sequence[str]) -> Finding:
    """Which engine moves the bytes of this pool, seen by opening it read-only."""
    try:
        stats = machine.open_stats(paths)
    except FormatError as error:
        return Finding("engine", "warn", f"no pool to open: {error}", "kvstore format")
    except KvStoreError as error:
        return Finding("engine", "fail", f"the pool does not open: {error}", "mend what the message says")
    text = f"{stats['device_kind']}, checksums by {stats['checksum_engine']}"
    opened = f"{stats['blocks']:,} blocks found in {stats['recovery_seconds'] * 1e3:,.1f} ms"
    if stats["device_kind"] != "uring":
        return Finding("engine", "warn", f"{text}; {opened}", "see io_uring above")
    return Finding("engine", "ok", f"{text}; {opened}")


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
