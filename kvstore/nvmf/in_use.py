# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Who uses a device: a mount, another kernel driver, a pool, or any process that has it or a partition of it open.

Guarantees: what could not be told is told, and never counts as free. Not seen: processes of other containers that have
it open without claiming it, and targets that export it. Writes nothing.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import kvstore
from kvstore.errors import BusyError, KvStoreError

__all__ = ["holder_of"]

_PROCESSES = Path("/proc")
_DEVICES = Path("/sys/dev/block")
_SETTLE_S = 2.0
_STEP_S = 0.1


def holder_of(path: str, within_s: float = _SETTLE_S) -> str:
    """Who; empty when nobody does, or whoever only looked (udev does, after each writer) has closed it in that time."""
    try:
        kvstore.plan_format(path, force=True)
    except BusyError as error:
        return str(error).removeprefix(f"{path} is in use: ")
    except KvStoreError:
        pass  # too small for a pool, read-only, not readable: that says nothing of others
    try:
        # Refused while a file system, the device mapper or a pool claims it, whatever may be written to it.
        fd = os.open(path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        return f"whether anybody uses it cannot be told ({error.strerror})"
    try:
        facts = os.fstat(fd)
    finally:
        os.close(fd)
    deadline = time.monotonic() + within_s
    while (process := _process_that_has(facts)) and time.monotonic() < deadline:
        time.sleep(_STEP_S)
    return process


def _process_that_has(facts: os.stat_result) -> str:
    """One that has it open: a virtual machine, fio or dd claim nothing."""
    wanted = _identities(facts)
    for process in sorted(_PROCESSES.glob("[0-9]*"), key=lambda one: int(one.name)):
        for opened in _files_of(process):
            if _identity(opened) in wanted:
                command = _text(process / "cmdline").replace("\0", " ").strip() or _text(process / "comm").strip()
                return f"process {process.name} ({command}) has it open"
    return ""


def _files_of(process: Path) -> list[os.stat_result]:
    found = []
    try:
        for link in sorted((process / "fd").iterdir()):
            try:
                found.append(link.stat())
            except OSError:
                continue  # closed meanwhile
    except OSError:
        pass  # ended meanwhile, or another user's
    return found


def _identities(facts: os.stat_result) -> set[tuple[str, int, int]]:
    """Its own and its partitions'."""
    found = {_identity(facts)}
    if stat.S_ISBLK(facts.st_mode):
        folder = _DEVICES / f"{os.major(facts.st_rdev)}:{os.minor(facts.st_rdev)}"
        for number in folder.glob("*/dev"):
            if (number.parent / "partition").exists():
                major, _, minor = _text(number).strip().partition(":")
                found.add(("device", int(major), int(minor)))
    return found


def _identity(facts: os.stat_result) -> tuple[str, int, int]:
    if stat.S_ISBLK(facts.st_mode):
        return "device", os.major(facts.st_rdev), os.minor(facts.st_rdev)
    return "file", facts.st_dev, facts.st_ino


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
