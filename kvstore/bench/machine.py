# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Facts of the machine and of the devices under a benchmark, which every number needs beside it.

All from sysfs and procfs, without privileges. What cannot be read is ``"unknown"``, what there is not is left out of
the device's facts; nothing here raises. No serial number is read; one can only be in a path that the user gave.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import kvstore
from kvstore.doctor.machine import Machine, Target, find_target
from kvstore.sizes import format_size

__all__ = ["UNKNOWN", "device_facts", "fill_level", "machine"]

UNKNOWN = "unknown"
_SECTOR_BYTES = 512  # the unit of sysfs, whatever the device's own is
_DELETED = " (deleted)"
_LAYERS_MAX = 8  # of devices upon devices; the kernel allows fewer


def machine(
    paths: Sequence[str] = (), host: Machine | None = None, find: Callable[[str], Target] | None = None
) -> dict[str, Any]:
    """Facts that every number needs beside it.

    Parameters
    ----------
    paths : devices or files; each has its facts in the list ``"devices"``, see :func:`device_facts`.
    host : where files are read; this machine by default.
    find : which device a path means.

    Returns
    -------
    JSON values: texts, and the list of ``"devices"`` when there are paths.
    """
    host = host or Machine()
    memory_kib = _match(r"^MemTotal:\s*(\d+) kB", host.read("/proc/meminfo"))
    facts: dict[str, Any] = {
        "kernel": host.read("/proc/sys/kernel/osrelease") or UNKNOWN,
        "cpu": _match(r"^model name\s*:\s*(.+)$", host.read("/proc/cpuinfo")),
        "cores": _cores(host),
        "cores_allowed": _match(r"^Cpus_allowed_list:\s*(.+)$", host.read("/proc/self/status")),
        "memory_gib": f"{int(memory_kib) / 2**20:.1f}" if memory_kib != UNKNOWN else UNKNOWN,
        "governor": host.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or UNKNOWN,
        "load": " ".join(host.read("/proc/loadavg").split()[:3]) or UNKNOWN,
        "revision": revision(Path(__file__)),
        "version": kvstore.__version__,
        "fio": _output("fio", "--version") or "not installed",
    }
    if paths:
        facts["devices"] = [device_facts(path, host, find) for path in paths]
    return facts


def device_facts(path: str, host: Machine | None = None, find: Callable[[str], Target] | None = None) -> dict[str, Any]:
    """What is known of the device that a path is, or that the file of that path lies on.

    Returns
    -------
    ``place`` says in a few words where that is, the same for all files of one file system; results at one place are
    compared with each other. ``under`` are the facts of the devices that a loop, dm or md device lies on.
    """
    return _facts(path, host or Machine(), find or _find, 0)


def _find(path: str) -> Target:
    """Of a folder too, in which an engine keeps files."""
    if not Path(path).is_dir():
        return find_target(path)
    facts = Path(path).stat()
    return Target(path, False, f"{os.major(facts.st_dev)}:{os.minor(facts.st_dev)}")


def _facts(path: str, host: Machine, find: Callable[[str], Target], layer: int) -> dict[str, Any]:
    try:
        target = find(path)
    except (OSError, ValueError):
        return {"path": path, "place": UNKNOWN}
    facts = _disk(host, target)
    if target.is_block:
        name = host.path(target.sysfs(host)).resolve().name if facts else Path(os.path.realpath(path)).name
        facts = {"path": path, "place": name, **facts}
    else:
        kind = target.file_system(host) or UNKNOWN
        size = {"file_size": format_size(target.size_bytes), "file_allocated": format_size(target.allocated_bytes)}
        facts = {
            "path": path,
            "place": f"{kind} on {facts['disk']}" if facts else kind,
            "file_system": kind,
            **(size if target.size_bytes else {}),  # a folder has none
            **_file_system(path),
            **facts,
        }
    under = _under(host, target, find, layer)
    if under:
        facts["under"] = under
        over = f"{_kind(facts['disk'])} over {' + '.join(below['place'] for below in under)}"
        facts["place"] = over if target.is_block else f"{facts['file_system']} on {over}"
    return facts


def _file_system(path: str) -> dict[str, Any]:
    """How full it is."""
    try:
        system = os.statvfs(path)
    except OSError:
        return {}
    free = format_size(system.f_bavail * system.f_frsize)
    used = system.f_blocks - system.f_bfree
    return {
        "file_system_free": free,
        "file_system_used": _percent(used, system.f_blocks) if system.f_blocks else UNKNOWN,
    }


def _disk(host: Machine, target: Target) -> dict[str, Any]:
    """Of the block device itself; nothing where there is none (tmpfs, overlay)."""
    folder = target.sysfs(host)
    if not folder:
        return {}
    disk = f"{folder}/.." if host.exists(f"{folder}/partition") else folder
    logical, physical = (target.queue(host, f"{name}_block_size") for name in ("logical", "physical"))
    sectors = host.read(f"{folder}/size")
    scheduler = target.queue(host, "scheduler")
    chosen = re.search(r"\[([\w-]+)\]", scheduler)
    facts = {
        "disk": target.disk_name(host),
        "model": _first(host, f"{disk}/device/model", f"{disk}/dm/name", f"{disk}/md/level"),
        "firmware": _first(host, f"{disk}/device/firmware_rev", f"{disk}/device/rev"),
        "size": format_size(int(sectors) * _SECTOR_BYTES) if sectors.isdecimal() else UNKNOWN,
        "lba_format": f"{logical or UNKNOWN} B logical, {physical or UNKNOWN} B physical",
        "write_cache": target.queue(host, "write_cache") or UNKNOWN,
        "scheduler": chosen[1] if chosen else scheduler or UNKNOWN,
        "queue": _queue(host, target, disk),
    }
    metadata = host.read(f"{disk}/metadata_bytes")
    if metadata not in ("", "0"):
        facts["lba_format"] += f", {metadata} B of metadata"
    link = [host.read(f"{disk}/device/device/current_link_{name}") for name in ("speed", "width")]
    optional = {
        "transport": host.read(f"{disk}/device/transport"),
        "link": f"{link[0]} x{link[1]}" if all(link) else "",
        "in_use": _in_use(host, disk, logical),
    }
    return facts | {name: text for name, text in optional.items() if text}


def _queue(host: Machine, target: Target, disk: str) -> str:
    depth, most = target.queue(host, "nr_requests"), target.queue(host, "max_sectors_kb")
    folder = host.path(f"{disk}/mq")
    queues = sum(1 for entry in _entries(folder) if entry.isdecimal())
    return f"{queues or UNKNOWN} of {depth or UNKNOWN} requests of up to {most or UNKNOWN} KiB"


def _in_use(host: Machine, disk: str, logical: str) -> str:
    """How full a drive says it is: what was written and not discarded (NVMe's NUSE)."""
    used, sectors = host.read(f"{disk}/nuse"), host.read(f"{disk}/size")
    if not (used.isdecimal() and sectors.isdecimal() and logical.isdecimal() and int(sectors)):
        return ""
    return _percent(int(used) * int(logical), int(sectors) * _SECTOR_BYTES)


def _under(host: Machine, target: Target, find: Callable[[str], Target], layer: int) -> list[dict[str, Any]]:
    folder = target.sysfs(host)
    if not folder or layer >= _LAYERS_MAX:
        return []
    backing = host.read(f"{folder}/loop/backing_file")
    if backing.endswith(_DELETED):  # a file without a name lies where its folder does
        backing = str(Path(backing.removesuffix(_DELETED)).parent)
    if backing:
        return [_facts(backing, host, find, layer + 1)]
    found = []
    for name in _entries(host.path(f"{folder}/slaves")):
        device = host.read(f"{folder}/slaves/{name}/dev")
        below = Target(f"/dev/{name}", True, device)
        found.append(_facts(below.path, host, _always(below), layer + 1) if device else {"place": name})
    return found


def _always(target: Target) -> Callable[[str], Target]:
    """The kernel's own name of a device: no need to look for it in /dev, where it may be called otherwise."""
    return lambda _: target


def _kind(disk: str) -> str:
    """``loop3`` is a loop device as any other is: what it lies on makes the difference."""
    return disk.rstrip("0123456789").rstrip("-")


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _first(host: Machine, *names: str) -> str:
    return next((text for text in map(host.read, names) if text), UNKNOWN)


def _cores(host: Machine) -> str:
    listed = len(re.findall(r"^processor\s*:", host.read("/proc/cpuinfo"), re.MULTILINE))
    return str(listed) if listed else UNKNOWN


def _match(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1].strip() if found else UNKNOWN


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"


def fill_level(stats: Mapping[str, Any]) -> str:
    """How full a pool is, from its ``stats()``: what its regions hold of what they could hold."""
    try:
        return _percent(int(stats["occupied_bytes"]), int(stats["capacity_bytes"]))
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return UNKNOWN


def revision(file: Path) -> str:
    """Of the git checkout that this file is tracked in, else the package's version. A package installed somewhere below
    another project's checkout must not bear that one's revision.
    """
    folder = str(file.parent)
    if not _output("git", "-C", folder, "ls-files", "--error-unmatch", file.name):
        return f"version {kvstore.__version__}"
    return _output("git", "-C", folder, "describe", "--always", "--dirty", "--match=") or UNKNOWN


def _output(*command: str) -> str:
    """Standard output of a program; empty when there is none of that name, or it failed."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
