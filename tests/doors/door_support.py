# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of every door to an engine need: the rule by which they are collected, what documents say to paste.

A door's conftest.py puts this folder on the path, and takes the fixtures of door_fixtures.py that it offers.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Door:
    """A folder of tests that need an engine.

    Parameters
    ----------
    folder : of the tests.
    marker : of each of them.
    needs : modules without which nothing of it can be imported.
    always : the files that need none of these, and say so.
    """

    folder: Path
    marker: str
    needs: tuple[str, ...]
    always: tuple[str, ...] = ("test_installed.py",)

    def is_left_out(self, path: Path, config: pytest.Config) -> bool | None:
        """What could not be imported, and what would be deselected after importing the engine for it."""
        if path.name in (self.folder.name, *self.always):
            return None
        if not all(_is_installed(name) for name in self.needs):
            return True
        return True if f"not {self.marker}" in config.option.markexpr else None

    def mark(self, items: Iterable[pytest.Item]) -> None:
        """Give each test of the folder the marker."""
        for item in items:
            if self.folder in item.path.parents:
                item.add_marker(self.marker)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # a test has put something of its own in its place
        return False


def pasted(pattern: str, *documents: Path, at_least: int = 2) -> list[Any]:
    """What the README and other documents say to paste, as parameters of a test: the JSON in the pattern's group."""
    found = [
        pytest.param(json.loads(match), id=f"{path.name}-{number}")
        for path in (ROOT / "README.md", *documents)
        for number, match in enumerate(re.findall(pattern, path.read_text(), re.DOTALL))
    ]
    assert len(found) >= at_least, f"nothing to paste: {pattern}"
    return found


def missing(names: Iterable[str], text: str, shown: str = "| `{}` |") -> list[str]:
    """Those that a document does not show, in a table of its own unless told otherwise."""
    return [name for name in names if shown.format(name) not in text]
