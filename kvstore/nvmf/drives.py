# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Which drives may be exported: blank ones, and those of a kvstore pool. Writes nothing."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import kvstore
from kvstore import _core
from kvstore.errors import BusyError, ConfigError, ForeignDataError, KvStoreError
from kvstore.nvmf.spec import Namespace

__all__ = ["check_drive", "refuse_doubles"]


def check_drive(namespace: Namespace, forced: Collection[str]) -> None:
    """Refuse a drive that is somebody's.

    Parameters
    ----------
    forced : devices, as the file names them, whose content may be exposed to hosts, and overwritten by them.

    Raises
    ------
    ConfigError : there is no such drive.
    BusyError : it is mounted or held; no force helps.
    ForeignDataError : it holds data, and is not forced.
    """
    path = namespace.device
    if not Path(path).exists():
        raise ConfigError(f"{path} is not there: see ls -l /dev/disk/by-id, and name the drive in the file")
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


def _is_store(path: str, found: str) -> bool:
    """What is found first, not what is left of a pool below a later file system: hosts would repair that over it."""
    try:
        superblock = _core.read_superblock(path)
    except KvStoreError:
        return False
    return found.startswith(f"kvstore store {superblock['store_uuid']}, formatted ")
