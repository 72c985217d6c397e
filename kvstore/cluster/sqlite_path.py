# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Where the SQLite engine of a pool is when nobody says where: every opener on the host must come to the same file."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from kvstore.errors import ConfigError, EngineError


def default_sqlite_path(paths: Sequence[str], pool_uuid: str) -> str:
    """Return the file of a pool's engine, in a folder that is there.

    Beside a pool image: ``pool.img`` has ``pool.img.sqlite``; of several images the one whose name sorts first has it.
    For devices, below the state folder by the pool's uuid: ``$KVSTORE_STATE_DIR``, else ``/var/lib/kvstore`` for root,
    else ``kvstore`` in ``$XDG_STATE_HOME`` or ``~/.local/state``; made with mode 0700 where it is missing.

    Parameters
    ----------
    paths : of the pool's devices, in any order.
    pool_uuid : of the pool, as its superblocks say.

    Raises
    ------
    ConfigError : a path is neither a file nor a block device.
    EngineError : the state folder cannot be made.

    Notes
    -----
    Users with other state folders, and containers that see the image in another folder of the host, would come to other
    files, and two engines for one pool are two writers of one region: give those ``sqlite:/path``.
    """
    resolved = [Path(path).resolve() for path in paths]
    modes = [_mode(path) for path in resolved]
    if all(map(stat.S_ISREG, modes)):
        image = min(resolved, key=lambda path: (path.name, path))
        return f"{image}.sqlite"
    folder = _state_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise EngineError(
            f"{folder}, the folder of kvstore's state: {error.strerror}; set KVSTORE_STATE_DIR"
        ) from error
    return str(folder / f"{pool_uuid}.sqlite")


def _mode(path: Path) -> int:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}, so it has no SQLite engine; write sqlite:/path/to/file"
        ) from error
    if not stat.S_ISREG(mode) and not stat.S_ISBLK(mode):
        raise ConfigError(f"{path} is neither a file nor a block device: write sqlite:/path/to/file")
    return mode


def _state_folder() -> Path:
    if given := os.environ.get("KVSTORE_STATE_DIR"):
        return Path(given).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/kvstore")
    given = os.environ.get("XDG_STATE_HOME")
    return (Path(given) if given else Path.home() / ".local" / "state") / "kvstore"
