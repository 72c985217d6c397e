# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Fabrics: the kernel's doors for connecting to a target, /dev/nvme-fabrics: a line of options in, a controller out;
and for ending that, the controller's delete_controller.

The kernel is asked directly and not through nvme-cli, because a key never may be on a command line, where every user of
the machine reads it; because nvme-cli 2.3 (Debian 12) knows no fast_io_fail_tmo; and because it refuses a second host
NQN of one machine as "already connected", which the kernel does not.

Guarantees: a call ends within its deadline, whatever the kernel waits for; no key is part of an error.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path

from kvstore.errors import ConfigError, WaitTimeout

__all__ = ["ConnectRefused", "Fabrics", "KernelFabrics", "StillConnecting"]

DEVICE = Path("/dev/nvme-fabrics")
_LOG = Path("/dev/kmsg")
_CONTROLLERS = Path("/sys/class/nvme")
_SECRET = re.compile(r"DHHC-1:[^,\s]*|(dhchap\w*secret=)[^,\s]*")
_KILL_S = 2.0
_OPTIONS_S = 30.0
_RECORD_BYTES = 8192  # of the kernel's log, at most (CONSOLE_EXT_LOG_MAX)

# A thread that hangs in the kernel keeps its process from ending; a child that does is left behind instead. The line
# comes by standard input: a child's command line can be read by all.
_CHILD = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
try:
    os.write(fd, sys.stdin.buffer.read())
except OSError as error:
    print("errno", error.errno)
else:
    print("made", os.read(fd, 4096).decode())
"""

# The kernel keeps who reads waiting while it connects somebody, which may be for ever.
_OPTIONS = """
import sys
try:
    print("known", open(sys.argv[1]).read().strip())
except OSError as error:
    print("errno", error.errno)
"""

# The kernel answers when the controller is gone, which takes as long as what it waits for (nvme_delete_ctrl_sync).
_DISCONNECT = """
import os, sys
try:
    os.write(os.open(sys.argv[1], os.O_WRONLY | os.O_CLOEXEC), b"1")
except OSError as error:
    print("errno", error.errno)
"""


class ConnectRefused(OSError):
    """The kernel does not connect. ``log`` has what it said of it, where that can be read."""

    def __init__(self, number: int, log: tuple[str, ...] = ()) -> None:
        super().__init__(number, os.strerror(number))
        self.log = log


class StillConnecting(WaitTimeout):
    """The kernel has not answered and cannot be stopped: it may connect later on."""


class Fabrics(ABC):
    """Not thread-safe."""

    @abstractmethod
    def options(self, within_s: float = _OPTIONS_S) -> frozenset[str]:
        """The options that this kernel knows; empty when it does not say (before 5.17).

        Raises
        ------
        WaitTimeout : another connection is being made, which holds the door, and does not end.
        ConfigError : this kernel has no such door.
        """

    @abstractmethod
    def connect(self, line: str, within_s: float) -> str:
        """Connect; the name of the controller.

        Raises
        ------
        ConnectRefused : the kernel or the target refuses it.
        WaitTimeout : no answer in time; there may be a controller. StillConnecting: or there may be one later.
        ConfigError : this kernel has no such door, or its answer is none; there may be a controller.
        """

    @abstractmethod
    def disconnect(self, name: str, within_s: float) -> None:
        """Let the kernel remove a controller.

        Raises
        ------
        OSError : it refuses, or there is none.
        WaitTimeout : it has begun, and not ended.
        """


class KernelFabrics(Fabrics):
    """The kernel's own."""

    def __init__(self, device: Path = DEVICE, log: Path = _LOG, controllers: Path = _CONTROLLERS) -> None:
        self._device, self._log, self._controllers = device, log, controllers

    def options(self, within_s: float = _OPTIONS_S) -> frozenset[str]:
        child = _child(_OPTIONS, self._device)
        try:
            told, _ = child.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            _is_ended(child)
            raise WaitTimeout(
                f"{self._device} does not answer within {within_s:g} s: the kernel is at work on another connection, "
                "and no other can be made before that ends. See dmesg; where it never ends, reboot"
            ) from None
        word, _, rest = told.strip().partition(" ")
        if word == "errno" and int(rest) == errno.EINVAL:
            return frozenset()
        if word != "known":
            number = int(rest) if word == "errno" else errno.EIO
            raise self._unusable(OSError(number, os.strerror(number))) from None
        return frozenset(token.partition("=")[0] for token in rest.split(","))

    def connect(self, line: str, within_s: float) -> str:
        log = _LogReader(self._log)
        child = _child(_CHILD, self._device)
        try:
            told, failed = child.communicate(line, timeout=within_s)
        except BaseException as error:  # an interrupt, too: the child is in a session of its own and would go on
            is_late = isinstance(error, subprocess.TimeoutExpired)
            what = f"the kernel has not connected within {within_s:g} s" if is_late else "the run was ended"
            if not _is_ended(child):
                raise StillConnecting(f"{what}, and the kernel cannot be stopped") from None
            if not is_late:
                raise
            raise WaitTimeout(f"{what}: does the target answer a ping, and its log say why") from None
        finally:
            said = log.since()
        word, _, rest = told.strip().partition(" ")
        if word == "errno":
            raise ConnectRefused(int(rest), said)
        made = re.search(r"instance=(\d+)", rest)
        if made is None:
            last = failed.strip().splitlines()[-1:] or [f"it answered {rest!r}"]
            raise ConfigError(f"{self._device}: {last[0]}. Run it as root, after modprobe nvme-fabrics")
        return f"nvme{made[1]}"

    def disconnect(self, name: str, within_s: float) -> None:
        child = _child(_DISCONNECT, self._controllers / name / "delete_controller")
        try:
            told, _ = child.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            _is_ended(child)
            raise WaitTimeout(f"the kernel has not disconnected {name} within {within_s:g} s") from None
        word, _, number = told.strip().partition(" ")
        if word == "errno":
            raise OSError(int(number), os.strerror(int(number)), name)

    def _unusable(self, error: OSError) -> ConfigError:
        mend = "modprobe nvme-fabrics" if error.errno == errno.ENOENT else "run it as root"
        return ConfigError(f"{self._device}: {error.strerror}: {mend}")


def _child(code: str, path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-S", "-c", code, str(path)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def _is_ended(child: subprocess.Popen[str]) -> bool:
    """Kills it; it ends when the kernel lets go of it, which may be never."""
    child.kill()
    try:
        child.communicate(timeout=_KILL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


class _LogReader:
    """What the kernel logs of NVMe from now on."""

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self._fd = -1  # root only, or a container: the error number has to do

    def since(self) -> tuple[str, ...]:
        """Once."""
        said: list[str] = []
        while self._fd >= 0:
            try:
                record = os.read(self._fd, _RECORD_BYTES).decode(errors="replace")
            except BrokenPipeError:
                continue  # the log has gone round; the next reading goes on with the oldest record there is
            except OSError:
                break
            if not record:
                break
            text = record.partition(";")[2].split("\n")[0]
            if "nvme" in text:
                said.append(_SECRET.sub(r"\1KEY", text))
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        return tuple(said)
