# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a program where the kernel refuses io_uring, as containers do: by a seccomp filter, for good.

    filtered.py {EPERM,ENOSYS} PYTEST_ARGUMENT...      runs pytest
    filtered.py {EPERM,ENOSYS} --source CODE ARGUMENT...  runs Python source

First of all it asserts that the fault is there: io_uring_setup gives that error.
"""

from __future__ import annotations

import ctypes
import errno
import struct
import sys

IO_URING_SETUP, IO_URING_ENTER, IO_URING_REGISTER = 425, 426, 427  # the same on every architecture
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD_WORD, JUMP_IF_AT_LEAST, JUMP_IF_GREATER, RETURN = 0x20, 0x35, 0x25, 0x06
ALLOW, RETURN_ERRNO = 0x7FFF0000, 0x00050000


class Program(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse_io_uring(error: int) -> None:
    """Install the filter for this process and all it will start."""
    instructions = [
        (LOAD_WORD, 0, 0, 0),  # the number of the system call
        (JUMP_IF_AT_LEAST, 0, 2, IO_URING_SETUP),
        (JUMP_IF_GREATER, 1, 0, IO_URING_REGISTER),
        (RETURN, 0, 0, RETURN_ERRNO | error),
        (RETURN, 0, 0, ALLOW),
    ]
    program = Program(len(instructions), b"".join(struct.pack("=HBBI", *one) for one in instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))):
        if libc.prctl(*arguments) != 0:
            sys.exit(f"no seccomp filter can be installed: {errno.errorcode[ctypes.get_errno()]}")
    assert libc.syscall(IO_URING_SETUP, 1, None) == -1
    assert ctypes.get_errno() == error, "io_uring is not refused"


if __name__ == "__main__":
    refuse_io_uring(getattr(errno, sys.argv[1]))
    if sys.argv[2] == "--source":
        source = sys.argv[3]
        sys.argv = ["-c", *sys.argv[4:]]
        exec(compile(source, "<source>", "exec"), {"__name__": "__main__"})
    else:
        import pytest

        sys.exit(pytest.main(sys.argv[2:]))
