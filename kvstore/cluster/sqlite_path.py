# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Where the SQLite engine of a pool is when nobody says where: every opener on the host must come to the same file.

Two engines for one pool are two writers of one region. So where another name of the device could lead to another file,
and that can be seen, there is no default: somebody has to say it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from collections.abc import Sequence
from pathlib import Path

from kvstore.errors import ConfigError, EngineError

_MEND = 'give all openers the same engine="sqlite:/absolute/path"'
# linux/loop.h: struct loop_info64 begins with the number of the file system and that of the file.
_LOOP_GET_STATUS64 = 0x4C05
_LOOP_INFO_BYTES = 232
_DELETED = " (deleted)"
_SYSFS = Path("/sys")
_MOUNTS = Path("/proc/self/mountinfo")


def default_sqlite_path(paths: Sequence[str], pool_uuid: str, *, make_folder: bool = True) -> str:
    """Return the file of a pool's engine.

    Beside a pool image: ``pool.img`` has ``pool.img.sqlite``; of several images the one whose name sorts first has it.
    Links are followed, and a loop device is the file behind it. For other devices, below the state folder by the pool's
    uuid: ``$KVSTORE_STATE_DIR``, else ``/var/lib/kvstore`` for root, else ``kvstore`` in ``$XDG_STATE_HOME`` or
    ``~/.local/state``.

    Parameters
    ----------
    paths : of the pool's devices, in any order.
    pool_uuid : of the pool, as its superblocks say.
    make_folder : the state folder, with mode 0700, where it is missing.

    Raises
    ------
    ConfigError : a path is neither a file nor a block device; an image has several hard links, or is a mount by itself;
        the file behind a loop device cannot be found; ``KVSTORE_STATE_DIR`` is not absolute.
    EngineError : the state folder cannot be made, or a loop device not be asked.

    Notes
    -----
    Users with other state folders, and containers that see the image in another folder of the host, would come to other
    files: give those ``sqlite:/path``.
    """
    resolved = [_behind_loops(Path(path).resolve()) for path in paths]
    if all(stat.S_ISREG(_facts(path).st_mode) for path in resolved):
        for path in resolved:
            _demand_one_name(path)
        image = min(resolved, key=lambda path: (path.name, path))
        return f"{image}.sqlite"
    folder = _state_folder()
    if make_folder:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EngineError(
                f"{folder}, the folder of kvstore's state: {error.strerror}; set KVSTORE_STATE_DIR"
            ) from error
    return str(folder / f"{pool_uuid}.sqlite")


def _facts(path: Path) -> os.stat_result:
    try:
        facts = path.stat()
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}, so it has no SQLite engine; write sqlite:/path/to/file"
        ) from error
    if not stat.S_ISREG(facts.st_mode) and not stat.S_ISBLK(facts.st_mode):
        raise ConfigError(f"{path} is neither a file nor a block device: write sqlite:/path/to/file")
    return facts


def _behind_loops(path: Path) -> Path:
    """What a loop device, or a partition of one, was made of; anything else is itself."""
    facts = _facts(path)
    while stat.S_ISBLK(facts.st_mode):
        folder = (_SYSFS / "dev/block" / f"{os.major(facts.st_rdev)}:{os.minor(facts.st_rdev)}").resolve()
        disk = folder.parent if (folder / "partition").exists() else folder
        try:
            name = (disk / "loop" / "backing_file").read_text(errors="surrogateescape").removesuffix("\n")
        except FileNotFoundError:
            return path
        inode = _backing_inode(Path("/dev") / disk.name if disk != folder else path)
        behind = Path(name)
        if _inode(behind) != inode:
            raise ConfigError(f"{path} is a loop device of {_lost_file(name)}, so its engine has no place: {_MEND}")
        path = behind.resolve()  # a file, or another loop device
        facts = _facts(path)
    return path


def _lost_file(name: str) -> str:
    if name.endswith(_DELETED):
        return f"the deleted file {name.removesuffix(_DELETED)}"
    return f"{name}, a file that does not bear this name here (it was renamed over, or is in another mount namespace)"


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _backing_inode(device: Path) -> int:
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            information = fcntl.ioctl(descriptor, _LOOP_GET_STATUS64, bytes(_LOOP_INFO_BYTES))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise EngineError(
            f"{device}, a loop device, cannot be asked for its file: {error.strerror}; {_MEND}"
        ) from error
    return int(struct.unpack_from("=QQ", information)[1])


def _demand_one_name(image: Path) -> None:
    links = _facts(image).st_nlink
    if links > 1:
        raise ConfigError(
            f"{image} has {links} hard links, and each name would have an engine of its own: {_MEND}, or remove the"
            " other links"
        )
    if str(image) in _mount_points():
        raise ConfigError(
            f"{image} is a mount by itself, and what lies beside it elsewhere does not lie beside it here: {_MEND},"
            " or mount its folder"
        )


def _mount_points() -> set[str]:
    """Of this process; the kernel writes blanks and backslashes in octal."""
    lines = _MOUNTS.read_bytes().splitlines()
    points = (line.split()[4] for line in lines)
    return {os.fsdecode(point.decode("unicode_escape").encode("latin-1")) for point in points}


def _state_folder() -> Path:
    if given := os.environ.get("KVSTORE_STATE_DIR"):
        if not Path(given).is_absolute():  # another folder for each current directory
            raise ConfigError(f"KVSTORE_STATE_DIR is {given!r}: write an absolute path, such as /var/lib/kvstore")
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/kvstore")
    given = os.environ.get("XDG_STATE_HOME", "")
    # What is not absolute is to be ignored, says the XDG Base Directory Specification.
    return (Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "state") / "kvstore"
