# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Loads the kernel's modules for targets and hosts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from kvstore.errors import ConfigError
from kvstore.nvmf.check.machine import run

__all__ = ["load_modules", "missing_modules"]

_WITHIN_S = 60.0
_LOADED = Path("/sys/module")


def missing_modules(names: Collection[str]) -> list[str]:
    """Those that are not loaded."""
    return [name for name in names if not (_LOADED / name.replace("-", "_")).exists()]


def load_modules(names: Collection[str], within_s: float = _WITHIN_S) -> None:
    """Load modules that are not there yet. Ends though a driver that starts up hangs.

    Raises
    ------
    ConfigError : one cannot be; with what modprobe says.
    """
    for name in missing_modules(names):
        program = shutil.which(
            "modprobe", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
        )
        if program is None:
            raise ConfigError(f"the module {name} is not loaded and there is no modprobe: install kmod")
        said = run([program, name], within_s)
        if said.is_late:
            raise ConfigError(f"{said.problem}: modprobe {name}, see dmesg")
        if said.problem:
            raise ConfigError(
                f"modprobe {name}: {said.problem.replace('modprobe: ', '')}. Install the modules of "
                f"{os.uname().release}: linux-image-{os.uname().release} on Debian, linux-modules-extra-… on Ubuntu"
            )
