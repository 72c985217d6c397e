# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Loads the kernel's modules for targets and hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

from kvstore.errors import ConfigError

__all__ = ["load_modules"]

_WITHIN_S = 60


def load_modules(names: Collection[str]) -> None:
    """Load modules that are not there yet.

    Raises
    ------
    ConfigError : one cannot be; with what modprobe says.
    """
    for name in names:
        if Path("/sys/module", name.replace("-", "_")).exists():
            continue
        program = shutil.which(
            "modprobe", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
        )
        if program is None:
            raise ConfigError(f"the module {name} is not loaded and there is no modprobe: install kmod")
        try:
            done = subprocess.run([program, name], capture_output=True, text=True, timeout=_WITHIN_S)
        except subprocess.TimeoutExpired as error:
            raise ConfigError(f"modprobe {name} has not ended after {_WITHIN_S} s: see dmesg") from error
        if done.returncode:
            raise ConfigError(
                f"modprobe {name}: {done.stderr.strip() or f'exit status {done.returncode}'}. Install the modules of "
                f"{os.uname().release}: linux-image-{os.uname().release} on Debian, linux-modules-extra-… on Ubuntu"
            )
