# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Where the process of an opener is, as far as this one can see (S5).

As ``csrc/store/process_identity.cpp``, but for people: a process is only looked for where its id means the same, under
this kernel and in this process id namespace, and what cannot be read proves nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, TypeAlias

__all__ = ["Whereabouts", "find_process"]

#: ``"here"``: it runs on this host. ``"gone"``: it was here and is no more. ``"unseen"``: nobody here can say.
Whereabouts: TypeAlias = Literal["here", "gone", "unseen"]

_PROC = Path("/proc")


def find_process(boot: str, namespace: int, process_id: int, start: int) -> Whereabouts:
    """Look for a process.

    Parameters
    ----------
    boot : id of the host's boot.
    namespace : inode of its process id namespace.
    process_id, start : of the process; when it began, in clock ticks since the boot.
    """
    if 0 in (namespace, process_id, start):
        return "unseen"
    try:
        own_boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        own_namespace = (_PROC / "self/ns/pid").stat().st_ino
        mounted_for_us = (_PROC / "self").readlink() == Path(str(os.getpid()))
    except OSError:
        return "unseen"
    if (boot, namespace) != (own_boot, own_namespace) or not mounted_for_us:
        return "unseen"
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):
        return "gone"
    except PermissionError:
        pass  # somebody else's, and there
    return _compare(process_id, start)


def _compare(process_id: int, start: int) -> Whereabouts:
    """Whether the process of that id is the one that began then, or an heir to its id."""
    try:
        text = (_PROC / str(process_id) / "stat").read_text(errors="replace")
    except OSError:
        return "unseen"
    # See proc(5). The command in parentheses may hold spaces and parentheses of its own; fields count from the state.
    state, *fields = text.rpartition(")")[2].split()
    threads, began = int(fields[16]), int(fields[18])
    has_ended = state == "X" or (state == "Z" and threads <= 1)
    return "gone" if has_ended or began != start else "here"
