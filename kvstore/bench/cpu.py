# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time of processes with all their descendants, alive or not."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

__all__ = ["CpuTime", "cpu_of_children", "cpu_of_process", "cpu_of_thread", "cpu_time"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PPID, _UTIME, _STIME, _CUTIME, _CSTIME = 1, 11, 12, 13, 14  # after the command's name in /proc/PID/stat


class CpuTime(NamedTuple):
    """Seconds."""

    usr: float
    sys: float

    def __sub__(self, other: CpuTime) -> CpuTime:
        return CpuTime(self.usr - other.usr, self.sys - other.sys)

    def plus(self, other: CpuTime) -> CpuTime:
        """Both together."""
        return CpuTime(self.usr + other.usr, self.sys + other.sys)


def cpu_of_process() -> CpuTime:
    """Of all threads of this process, so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return CpuTime(used.ru_utime, used.ru_stime)


def cpu_of_thread() -> CpuTime:
    """Of the thread that calls, so far."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return CpuTime(used.ru_utime, used.ru_stime)


def cpu_of_children() -> CpuTime:
    """Of this process's children that have ended and been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return CpuTime(used.ru_utime, used.ru_stime)


def cpu_time(pids: Iterable[int]) -> CpuTime:
    """So far, of these processes, of their descendants, and of those that they waited for. To the microsecond for this
    process, to the kernel's tick for others; one that is gone counts as its parent's.
    """
    wanted = set(pids)
    if not wanted:
        return CpuTime(0.0, 0.0)
    fields = _all_processes()
    found = True
    while found:  # until no process has a parent among them that is not one itself
        children = {pid for pid, stat in fields.items() if int(stat[_PPID]) in wanted}
        found = not children <= wanted
        wanted |= children
    usr = sys = 0.0
    for pid in wanted:
        if pid == os.getpid():
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
                used = resource.getrusage(who)
                usr, sys = usr + used.ru_utime, sys + used.ru_stime
        elif pid in fields:
            stat = fields[pid]
            usr += (int(stat[_UTIME]) + int(stat[_CUTIME])) / _TICKS_PER_S
            sys += (int(stat[_STIME]) + int(stat[_CSTIME])) / _TICKS_PER_S
    return CpuTime(usr, sys)


def _all_processes() -> dict[int, list[str]]:
    fields = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text()
        except OSError:
            continue  # it ended meanwhile
        fields[int(folder.name)] = text[text.rindex(")") + 2 :].split()
    return fields
