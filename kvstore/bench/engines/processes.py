# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Programs that engines start: waited for with a bound, ended with a term, and with force after it or
when this process is gone."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["PATIENCE_S", "end", "outcome", "start"]

#: How long anything that should be over may still take.
PATIENCE_S = 60.0
_TICK_S = 0.1


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a program that the kernel kills when the calling thread, or the whole process, ends before it: one that
    outlived a killed run would go on writing to what is somebody else's by then. Needs util-linux's ``setpriv``,
    without which it is started all the same.
    """
    tied = ["setpriv", "--pdeathsig=KILL"] if shutil.which("setpriv") else []
    process = subprocess.Popen([*tied, *command], **options)
    process.args = list(command)
    return process


def outcome(process: subprocess.Popen[str], limit_s: float, stopped: threading.Event | None = None) -> tuple[str, str]:
    """Standard output and error of a program that ends by itself; it is gone on return, however that comes.

    Raises
    ------
    RuntimeError : it took longer than ``limit_s``, or ``stopped`` was set meanwhile.
    """
    give_up = time.monotonic() + limit_s
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=_TICK_S)
            if stopped is not None and stopped.is_set():
                raise RuntimeError(f"{_name(process)} was stopped")
            if time.monotonic() > give_up:
                raise RuntimeError(f"{_name(process)} did not end within {limit_s:.0f} s")
    finally:
        end(process)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def end(process: subprocess.Popen[Any], patience_s: float = PATIENCE_S) -> None:
    """Ask it to end, and after ``patience_s`` do not ask."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(patience_s)


def _name(process: subprocess.Popen[Any]) -> str:
    return str(process.args[0] if isinstance(process.args, list) else process.args)
