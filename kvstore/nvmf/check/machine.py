# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Machine: the host that is checked. Everything the checks know of it they read or ask through this.

Guarantees: what is missing, unreadable or malformed is None or a problem that is told, never an exception; a command
that does not end is left alone after its deadline, even one that cannot be killed because the device it reads is gone.
Writes nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

__all__ = ["ASK_S", "Answer", "Machine", "run"]

#: What a command that only reads may take.
ASK_S = 5.0
_KILL_S = 1.0
_ANSWER_BYTES_MAX = 4 << 20
_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Answer:
    """What a command said.

    ``problem`` is why that is no answer, and empty when it is one; ``is_late``: it did not end in time. ``text`` is its
    output, of one that failed also what it complained of.
    """

    text: str = ""
    problem: str = ""
    is_late: bool = False
    seconds: float = 0.0


def run(command: Sequence[str], within_s: float) -> Answer:
    """Run a program, found by its path, without input and with messages in English.

    Into files, not pipes: a pipe that a grandchild keeps open would be waited for. Not subprocess.run, which after its
    time-out waits for the killed child, and one that reads a lost NVMe device dies only when the kernel gives that up.
    """
    started = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            return Answer(problem=f"{command[0]} cannot be run: {error.strerror}")
        try:
            child.wait(within_s)
        except subprocess.TimeoutExpired:
            problem = _give_up(child, command, within_s)
            return Answer(problem=problem, is_late=True, seconds=time.monotonic() - started)
        seconds = time.monotonic() - started
        text, complaint = _read(out), _read(err)
    if child.returncode == 0:
        return Answer(text, seconds=seconds)
    said = (complaint.strip() or text.strip() or f"exit status {child.returncode}").splitlines()
    return Answer(f"{text}\n{complaint}", f"{Path(command[0]).name}: {said[-1]}", seconds=seconds)


def _give_up(child: subprocess.Popen[bytes], command: Sequence[str], within_s: float) -> str:
    with contextlib.suppress(PermissionError):  # a program that is root's, such as ping, asked for by somebody else
        os.killpg(child.pid, signal.SIGKILL)
    name = Path(command[0]).name
    try:
        child.wait(_KILL_S)
    except subprocess.TimeoutExpired:
        return f"{name} did not end within {within_s:g} s, and cannot be killed: see dmesg for a device that hangs"
    return f"{name} did not end within {within_s:g} s"


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_ANSWER_BYTES_MAX).decode(errors="replace")


def _which(program: str) -> str | None:
    return shutil.which(program, path=_PATH)


@dataclass
class Machine:
    """The machine.

    Parameters
    ----------
    root : stands for ``/``, for files.
    run : runs a command with a deadline, see :func:`run`.
    which : the path of a program, or None.
    is_dry : commands that measure are noted and not run.
    noted : every file, folder and command that was asked for, in order.
    """

    root: Path = Path("/")
    run: Callable[[Sequence[str], float], Answer] = run
    which: Callable[[str], str | None] = _which
    is_dry: bool = False
    noted: list[str] = field(default_factory=list)

    def read(self, name: str) -> str | None:
        """A small text file without surrounding blanks; None when it is not there or refuses to be read.

        sysfs refuses, for instance, to tell the type of an empty GID (EINVAL), or the speed of a link that is down.
        """
        self._note(f"read {name}")
        try:
            return (self.root / name.lstrip("/")).read_text(errors="replace").strip()
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """A file that holds a number, None also when it holds something else."""
        text = self.read(name)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None

    def names(self, name: str) -> list[str]:
        """What is in a folder, sorted; empty when there is none."""
        self._note(f"read {name}/")
        try:
            return sorted(entry.name for entry in (self.root / name.lstrip("/")).iterdir())
        except OSError:
            return []

    def is_listed(self, name: str) -> bool:
        """Whether a folder is there and can be listed: what it is empty of is not known otherwise."""
        self._note(f"read {name}/")
        try:
            os.scandir(self.root / name.lstrip("/")).close()
        except OSError:
            return False
        return True

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder of that name."""
        self._note(f"read {name}")
        return os.path.lexists(self.root / name.lstrip("/"))

    def ask(self, *command: str, within_s: float = ASK_S, measures: bool = False) -> Answer:
        """Run a command. One that measures loads the network or a device, and is not run where that is not wanted."""
        self._note(f"run {' '.join(command)}")
        if measures and self.is_dry:
            return Answer(problem=f"{command[0]} was not run")
        program = self.which(command[0])
        if program is None:
            return Answer(problem=f"{command[0]} is not installed")
        return self.run([program, *command[1:]], within_s)

    def _note(self, line: str) -> None:
        if line not in self.noted:
            self.noted.append(line)
