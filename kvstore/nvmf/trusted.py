# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Who else can replace a file: what root reads as a key, or runs at a boot, must be nobody's but root's.

Looked at are owners and modes of the file, of every folder above it, and of where links lead; no ACLs.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["is_owned", "replaceable_at"]


def is_owned(status: os.stat_result) -> bool:
    """By root, or by who runs this."""
    return status.st_uid in (0, os.geteuid())


def replaceable_at(path: Path) -> str:
    """The file or folder by which somebody else can replace what is at ``path``; empty where nobody can.

    Raises
    ------
    OSError : one cannot be looked at.
    """
    whole = path.absolute()
    real = whole.resolve(strict=True)
    for at in dict.fromkeys([whole, *whole.parents, real, *real.parents]):
        status = at.lstat()
        if not is_owned(status) or (not stat.S_ISLNK(status.st_mode) and _others_write(status)):
            return str(at)
    return ""


def _others_write(status: os.stat_result) -> bool:
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return False  # as /tmp: each may remove and rename only what is his
    by_group = status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid())
    return bool(by_group or status.st_mode & stat.S_IWOTH)
