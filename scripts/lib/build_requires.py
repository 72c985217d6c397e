# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Prints what pyproject.toml needs to build, one requirement a line."""

from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

print("\n".join(tomllib.loads(Path("pyproject.toml").read_text())["build-system"]["requires"]))
