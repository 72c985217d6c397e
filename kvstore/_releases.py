# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Which release of somebody else's package is installed, for the doors that depend on it. Imports nothing of it."""

from __future__ import annotations

import importlib.metadata
import re

__all__ = ["installed_version", "release_numbers"]


def installed_version(*distributions: str) -> str | None:
    """The version of the first of these that is installed, as pip shows it, or None."""
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def release_numbers(version: str) -> tuple[int, ...]:
    """Of "0.5.6.post1" (0, 5, 6), to compare; (0,) of what is no version."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else (0,)
