# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Claim: one run at a time works at a place, whatever its engines lock.

Two runs that begin together would both find a place empty, write over each other's blocks, and remove the file that the
other one made. A claim is a name that the kernel gives once and takes back when the process ends, however that ends:
no file is left behind. It is of one host and network namespace; others are kept out by the engines' own locks only.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import stat
from pathlib import Path

from kvstore.errors import BusyError

__all__ = ["Claims"]


class Claims:
    """Of one run; the same place may be claimed again by it. A context manager."""

    def __init__(self) -> None:
        self._held: dict[str, socket.socket] = {}

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *error: object) -> None:
        for held in self._held.values():
            held.close()
        self._held.clear()

    def take(self, path: Path | str) -> None:
        """Raise BusyError when another run works there. The place need not exist."""
        name = _name(path)
        if name in self._held:
            return
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            claim.bind(f"\0kvstore-bench-{hashlib.sha256(name.encode()).hexdigest()}")
        except OSError as error:
            claim.close()
            if error.errno != errno.EADDRINUSE:
                raise
            raise BusyError(f"{path} is in use by another benchmark that runs") from error
        self._held[name] = claim


def _name(path: Path | str) -> str:
    """The same for all names of a place: of a device its number, of all else where links lead."""
    try:
        found = Path(path).stat()
    except OSError:
        return os.path.realpath(path)
    return f"device {found.st_rdev}" if stat.S_ISBLK(found.st_mode) else os.path.realpath(path)
