# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Which drives may be exported: blank ones, and those of a kvstore pool. Writes nothing."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Sequence
from pathlib import Path

import kvstore
from kvstore import _core
from kvstore.errors import BusyError, ConfigError, ForeignDataError, KvStoreError
from kvstore.nvmf.spec import Namespace
from kvstore.nvmf.tree import Tree

__all__ = ["check_drive", "drive_identity", "lasting_name", "refuse_doubles", "refuse_exported"]

_DEV = Path("/dev")
_SYS = Path("/sys")
_PATH = re.compile(r"c\d+n")


def check_drive(namespace: Namespace, forced: Collection[str]) -> None:
    """Refuse a drive that is somebody's.

    Parameters
    ----------
    forced : devices, as the file names them, whose content may be exposed to hosts, and overwritten by them.

    Raises
    ------
    ConfigError : there is no such drive, or it is named by what the kernel calls it in this boot.
    BusyError : it is mounted or held; no force helps.
    ForeignDataError : it holds data, and is not forced.
    """
    path = namespace.device
    if not Path(path).exists():
        raise ConfigError(f"{path} is not there: see ls -l /dev/disk/by-id, and name the drive in the file")
    if stays := lasting_name(path):
        raise ConfigError(f"{path} may be another drive after the next boot: write {stays} in the file")
    try:
        found = kvstore.plan_format(path, force=True)[0]["found"]
    except BusyError as error:
        raise BusyError(f"on this target {error}. End that, or take the drive out of the file") from error
    if not found or path in forced or _is_store(path, found):
        return
    raise ForeignDataError(f"{path} holds {found}: hosts would overwrite it. If that may go: --force {path}")


def refuse_doubles(devices: Sequence[str]) -> None:
    """Refuse one drive under two names: two stores would overwrite each other, and the kernel lets it be.

    Raises
    ------
    ConfigError : with both names.
    """
    seen: dict[str, str] = {}
    for device in devices:
        drive = os.path.realpath(device)
        if drive in seen:
            raise ConfigError(f"{seen[drive]} and {device} are one drive, {drive}: name it once in the file")
        seen[drive] = device


def refuse_exported(namespaces: Sequence[Namespace], tree: Tree, ours: Collection[str], sys: Path = _SYS) -> None:
    """Refuse a drive that somebody else's subsystem exports: nvmet holds none, so that no O_EXCL would find it.

    Parameters
    ----------
    ours : the NQNs of subsystems that are nvmf-setup's.

    Raises
    ------
    BusyError : with the other's NQN; no force helps.
    """
    theirs = [(nqn, path) for nqn in tree.names("subsystems") if nqn not in ours for path in _exported(tree, nqn)]
    for namespace in namespaces:
        drive = _identities(namespace.device, sys)
        for nqn, path in theirs:
            if drive & _identities(path, sys):
                raise BusyError(
                    f"subsystem {nqn} exports {namespace.device} already, as {path}, and nvmf-setup did not make it: "
                    "remove it there, or take the drive out of the file"
                )


def _exported(tree: Tree, nqn: str) -> list[str]:
    """Devices of a subsystem: of its namespaces, and the controller that is passed through whole."""
    path = f"subsystems/{nqn}"
    found = []
    for one in [*(f"{path}/namespaces/{nsid}" for nsid in tree.names(f"{path}/namespaces")), f"{path}/passthru"]:
        if tree.exists(f"{one}/enable") and tree.read(f"{one}/enable") == "1":
            found.append(tree.read(f"{one}/device_path"))
    return found


def _identities(path: str, sys: Path) -> set[str]:
    """Of what a name leads to and all that is in it: two names that share any lead to the same bytes."""
    try:
        status = Path(path).stat()
    except OSError:
        return {os.path.realpath(path)}
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    if stat.S_ISBLK(status.st_mode):
        return _with_partitions((sys / "dev/block" / number).resolve())
    if stat.S_ISCHR(status.st_mode):
        return _drives_of((sys / "dev/char" / number).resolve(), sys)
    return {f"{status.st_dev}:{status.st_ino}"}


def _with_partitions(drive: Path) -> set[str]:
    """Of a drive's or a partition's folder in sysfs."""
    return {drive.name, *(path.parent.name for path in drive.glob("*/partition"))}


def _drives_of(controller: Path, sys: Path) -> set[str]:
    """Of a controller's folder: its namespaces, whose paths with multipath are called nvme0c1n2, for nvme0n2."""
    names = {_PATH.sub("n", path.name) for path in controller.glob("nvme*n*")}
    return set().union(*(_with_partitions((sys / "class/block" / name).resolve()) for name in names))


def drive_identity(path: str, sys: Path = _SYS) -> str:
    """Of what a name leads to, with its size, within one boot; empty: to nothing."""
    try:
        status = Path(path).stat()
        if not stat.S_ISBLK(status.st_mode):
            return f"{status.st_dev}:{status.st_ino}"
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        return f"{number} of {(sys / 'dev/block' / number / 'size').read_text().strip()} sectors"
    except OSError:
        return ""


def lasting_name(path: str, dev: Path = _DEV) -> str:
    """Of a drive that is named by the kernel: its name under /dev/disk/by-id, the drive's own before others. Empty: it
    is named otherwise, or has none."""
    if Path(path).parent != dev or Path(path).is_symlink():
        return ""
    folder = dev / "disk/by-id"
    links = folder.iterdir() if folder.is_dir() else ()
    names = [link.name for link in links if os.path.realpath(link) == path]
    return str(folder / min(names, key=lambda name: (not name.startswith("nvme-"), name))) if names else ""


def _is_store(path: str, found: str) -> bool:
    """What is found first, not what is left of a pool below a later file system: hosts would repair that over it."""
    try:
        superblock = _core.read_superblock(path)
    except KvStoreError:
        return False
    return found.startswith(f"kvstore store {superblock['store_uuid']}, formatted ")
