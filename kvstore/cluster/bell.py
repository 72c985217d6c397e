# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Bell: processes wake each other through the attributes of a file they share (inotify).

A ring may be lost: its process was killed before it, or this one may have no further inotify instance and waits in
short steps instead. So whoever is woken, or not, looks for itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import time

_IN_ATTRIB = 0x4  # also when the last name of the file goes
_STEP_S = 0.004
_READ_BYTES = 65536

_libc = ctypes.CDLL(None, use_errno=True)


def ring(path: str) -> None:
    """Wake all who wait at the file."""
    with contextlib.suppress(OSError):  # it is gone, or another user's: see above
        os.utime(path)


class Bell:
    """Waits for ``ring`` of one file. One thread at a time."""

    def __init__(self, path: str) -> None:
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0 and _libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_ATTRIB) < 0:
            self.close()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has been rung since the last call, or within ``timeout_s``; True, too, where that is not known."""
        if self._fd < 0:
            time.sleep(min(timeout_s, _STEP_S))
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if not poll.poll(max(1, int(timeout_s * 1000))):
            return False
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, _READ_BYTES)
        return True

    def close(self) -> None:
        """Give the descriptor back. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
