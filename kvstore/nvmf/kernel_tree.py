# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""KernelTree: configfs, whose operations may wait for a drive that is dead or a host that does not let go.

Guarantees: a change ends within its deadline, whatever the kernel waits for. Reading has none: what reads beside a
change that hangs may hang with it.
"""

from __future__ import annotations

import errno
import json
import os
import select
import subprocess
import sys
import weakref
from pathlib import Path

from kvstore.nvmf.tree import NVMET, DirectoryTree, KernelWaits

__all__ = ["KernelTree"]

_WITHIN_S = 30.0
_KILL_S = 1.0

# One child for all changes: a process that waits in the kernel cannot be ended, so that it must not be this one. What
# is written comes by standard input: a child's command line can be read by all, and keys are written, too.
_CHILD = """
import json, os, sys
for line in iter(sys.stdin.readline, ""):
    action, path, value = json.loads(line)
    try:
        if action == "write":
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, value.encode())
            finally:
                os.close(fd)
        elif action == "symlink":
            os.symlink(value, path)
        else:
            {"mkdir": os.mkdir, "rmdir": os.rmdir, "unlink": os.unlink}[action](path)
    except OSError as error:
        print(error.errno, flush=True)
    else:
        print(0, flush=True)
"""


class KernelTree(DirectoryTree):
    """See the module. After a change that did not end the next ones have a child of their own."""

    def __init__(self, root: Path = NVMET, within_s: float = _WITHIN_S) -> None:
        super().__init__(root)
        self._within_s = within_s
        self._child: subprocess.Popen[bytes] | None = None

    def write(self, path: str, value: str) -> None:
        self._do("write", path, value)

    def mkdir(self, path: str) -> None:
        self._do("mkdir", path)

    def rmdir(self, path: str) -> None:
        self._do("rmdir", path)

    def link(self, path: str, to: str) -> None:
        self._do("symlink", path, str(self.root / to))

    def unlink(self, path: str) -> None:
        self._do("unlink", path)

    def _do(self, action: str, path: str, value: str = "") -> None:
        where = str(self.root / path)
        child = self._child = self._child or self._started()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps([action, where, value]).encode() + b"\n")
        child.stdin.flush()
        ready, _, _ = select.select([child.stdout], [], [], self._within_s)
        if not ready:
            self._child = None
            child.kill()
            told = f"the kernel has not ended this within {self._within_s:g} s, and may yet: a drive or a host keeps it"
            raise KernelWaits(errno.ETIMEDOUT, told, where)
        answer = child.stdout.readline().strip()
        number = int(answer or errno.EIO)
        if not answer:
            self._child = None  # it was killed
        if number:
            raise OSError(number, os.strerror(number), where)

    def _started(self) -> subprocess.Popen[bytes]:
        # In a session of its own: a Ctrl-C is for the run, which undoes what was done.
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        weakref.finalize(self, _end, child)
        return child


def _end(child: subprocess.Popen[bytes]) -> None:
    """One that waits in the kernel is left behind."""
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    try:
        child.wait(_KILL_S)
    except subprocess.TimeoutExpired:
        child.returncode = -9  # or the interpreter would complain of it at its end
