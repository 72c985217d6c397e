# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Record: what nvmf-setup made on this target, so that it changes and removes nothing else.

Written before the first step, and after each directory that is made, with its identity: what bears a name of the record
and is not that directory is somebody else's, who made it after a run that was killed, or after the kernel's
module was loaded again. A run that is killed between making one and writing that down leaves one that is nobody's.
configfs is empty after a boot, and what is in it then is somebody else's: so a record of another boot says nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvstore.errors import BusyError, ConfigError
from kvstore.nvmf.tree import Tree

__all__ = [
    "Record",
    "only_one",
    "read_json",
    "read_record",
    "remove_file",
    "state_folder",
    "write_json",
    "write_record",
    "write_text",
]

_KINDS = ("subsystems", "ports", "hosts")
_LOCK_S = 120.0
_LOCK_STEP_S = 0.1
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass
class Record:
    """Names below ``subsystems``, ``ports`` and ``hosts``; paths of what is inside them: namespaces and links.

    ``made``: paths of those names that were made, with their identities; the others are yet to be. ``drives``: paths of
    namespaces, with what drive each exported (:func:`kvstore.nvmf.drives.drive_identity`).
    """

    subsystems: set[str] = field(default_factory=set)
    ports: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    inside: set[str] = field(default_factory=set)
    made: dict[str, str] = field(default_factory=dict)
    drives: dict[str, str] = field(default_factory=dict)

    def plus(self, other: Record) -> Record:
        """What is in either."""
        return Record(
            self.subsystems | other.subsystems,
            self.ports | other.ports,
            self.hosts | other.hosts,
            self.inside | other.inside,
            self.made | other.made,
            self.drives | other.drives,
        )

    def proved(self, tree: Tree) -> Record:
        """Without names that somebody else's directories bear."""

        def kept(kind: str, names: set[str]) -> set[str]:
            return {name for name in names if self._is_ours(f"{kind}/{name}", tree)}

        subsystems, ports, hosts = (kept(kind, getattr(self, kind)) for kind in _KINDS)
        return replace(self, subsystems=subsystems, ports=ports, hosts=hosts)

    def identified(self, tree: Tree) -> Record:
        """With the identities of the directories that bear its names now, which are known to be ours."""
        paths = [f"{kind}/{name}" for kind in _KINDS for name in sorted(getattr(self, kind))]
        return replace(self, made={path: tree.identity(path) for path in paths if tree.exists(path)})

    def _is_ours(self, path: str, tree: Tree) -> bool:
        return not tree.exists(path) or self.made.get(path) == tree.identity(path)


def state_folder() -> Path:
    """Where records are."""
    return Path(os.environ.get("KVSTORE_STATE_DIR") or "/var/lib/kvstore")


def read_record(path: Path) -> Record:
    """Empty where there is no file, or it is of another boot.

    Raises
    ------
    ConfigError : it cannot be read, and nobody knows what is ours.
    """
    what = "what nvmf-setup made here"
    read = read_json(path, what)
    if not read or read.get("boot") != _boot():
        return Record()
    try:
        subsystems, ports, hosts, inside = (set(map(str, read[name])) for name in (*_KINDS, "inside"))
        made, drives = ({str(path): str(one) for path, one in read[name].items()} for name in ("made", "drives"))
        return Record(subsystems, ports, hosts, inside, made, drives)
    except (AttributeError, KeyError, TypeError) as error:
        raise _broken(path, what, error) from error


def write_record(path: Path, record: Record) -> None:
    """In one step, on the disk when it returns. OSError: it cannot be written."""
    names = {kind: sorted(getattr(record, kind)) for kind in (*_KINDS, "inside")}
    write_json(path, {"boot": _boot(), **names, "made": record.made, "drives": record.drives})


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A document of names and values; empty where there is no file.

    Raises
    ------
    ConfigError : it cannot be read. ``what`` tells what is in it.
    """
    try:
        read = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _broken(path, what, error) from error
    if not isinstance(read, dict):
        raise _broken(path, what, TypeError("no document of names and values"))
    return read


def write_json(path: Path, document: Mapping[str, Any], mode: int = 0o644) -> None:
    """In one step, on the disk when it returns. OSError: it cannot be written."""
    write_text(path, json.dumps(document, indent=2) + "\n", mode)


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """In one step, on the disk when it returns, never readable for more than ``mode``. OSError: it cannot be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        raise
    _sync(path.parent)


def remove_file(path: Path) -> None:
    """Gone from the disk when it returns; no error where it is not there. OSError: it cannot be."""
    path.unlink(missing_ok=True)
    if path.parent.is_dir():
        _sync(path.parent)


@contextlib.contextmanager
def only_one(path: Path, within_s: float = _LOCK_S) -> Iterator[None]:
    """Of several runs on this machine one goes on at a time: steps of two would undo each other's.

    Raises
    ------
    BusyError : another one has not ended within that time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + within_s
    with open(path, "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise BusyError(
                        f"another nvmf-setup is at work here, and has not ended within {within_s:g} s: fuser {path}"
                    ) from None
                time.sleep(_LOCK_STEP_S)
        yield


def _sync(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _broken(path: Path, what: str, error: Exception) -> ConfigError:
    return ConfigError(f"{path}: {error}. It tells {what}; restore it, or remove it and what it tells of by hand")


def _boot() -> str:
    return _BOOT.read_text().strip()
