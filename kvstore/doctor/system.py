# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the machine: kernel, io_uring, limits, memory."""

from __future__ import annotations

import re

from kvstore.doctor.finding import Finding
from kvstore.doctor.machine import Machine
from kvstore.sizes import format_size

__all__ = ["check_hugepages", "check_kernel", "check_memlock", "check_uring"]

_KERNEL_GOOD = (6, 1)
_KERNEL_NEEDED = (5, 4)
_CAP_IPC_LOCK = 1 << 14
# The staging memory of one engine thread, which is registered first.
_MEMLOCK_NEEDED = 64 << 20


def check_kernel(machine: Machine) -> Finding:
    """Whether the kernel is one that the store is fast on, or works on at all."""
    release = machine.read("/proc/sys/kernel/osrelease")
    found = re.match(r"(\d+)\.(\d+)", release)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if version >= _KERNEL_GOOD:
        return Finding("kernel", "ok", release)
    if version < _KERNEL_NEEDED:
        return Finding("kernel", "fail", f"{release or 'unknown'}: too old", "use Linux 6.1 or later")
    return Finding(
        "kernel",
        "warn",
        f"{release}: io_uring lacks DEFER_TASKRUN, which costs processor time",
        "use Linux 6.1 or later",
    )


def check_uring(machine: Machine) -> Finding:
    """Whether a ring can really be set up here."""
    problem = machine.uring_problem()
    if not problem:
        return Finding("io_uring", "ok", "allowed; a ring was set up")
    switch = machine.read("/proc/sys/kernel/io_uring_disabled")
    if switch in ("1", "2"):
        mend = "sysctl -w kernel.io_uring_disabled=0"
    elif machine.exists("/.dockerenv") or machine.exists("/run/.containerenv"):
        mend = "run the container with a seccomp profile that allows io_uring_setup, io_uring_enter, io_uring_register"
    else:
        mend = "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp policy of this process"
    return Finding("io_uring", "warn", f"{problem}. The engine is threads instead: more processor time", mend)


def check_memlock(machine: Machine) -> Finding:
    """Whether memory may be registered with the rings."""
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", machine.read("/proc/self/status"), re.MULTILINE)
    if effective and int(effective[1], 16) & _CAP_IPC_LOCK:
        return Finding("memlock", "ok", "no limit: CAP_IPC_LOCK")
    line = re.search(r"^Max locked memory\s+(\S+)", machine.read("/proc/self/limits"), re.MULTILINE)
    limit = line[1] if line else "unknown"
    if limit == "unlimited":
        return Finding("memlock", "ok", "unlimited")
    mend = "ulimit -l unlimited; LimitMEMLOCK=infinity in systemd; --ulimit memlock=-1 in Docker"
    if not limit.isdecimal():
        return Finding("memlock", "warn", "the limit of locked memory cannot be read", mend)
    text = f"{format_size(int(limit))} may be locked"
    if int(limit) < _MEMLOCK_NEEDED:
        return Finding("memlock", "warn", f"{text}: buffers will not be registered, which is slower, not wrong", mend)
    return Finding("memlock", "ok", f"{text}; an arena larger than that is used unregistered")


def check_hugepages(machine: Machine) -> Finding:
    """Whether large arenas can have large pages, so that the kernel pins a few thousand pages and not millions."""
    sizes = dict(re.findall(r"^(\w+):\s+(\d+)", machine.read("/proc/meminfo"), re.MULTILINE))
    total, page_kb = int(sizes.get("HugePages_Total", 0)), int(sizes.get("Hugepagesize", 0))
    transparent = re.search(r"\[(\w+)\]", machine.read("/sys/kernel/mm/transparent_hugepage/enabled"))
    mode = transparent[1] if transparent else "absent"
    text = f"{total} of {format_size(page_kb << 10)} reserved, transparent ones: {mode}"
    if total or mode in ("always", "madvise"):
        return Finding("hugepages", "ok", text)
    mend = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, or sysctl -w vm.nr_hugepages=N"
    return Finding("hugepages", "warn", f"{text}: large arenas cost more to register", mend)
