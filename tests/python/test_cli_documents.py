# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the documents say of numbers, verbs and tests is what there is.

Method: names are taken out of the Markdown and compared with an open pool, with the command line's parser, and with the
sources of the tests.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kvstore
from kvstore.cli.dispatch import build_parser

ROOT = Path(__file__).resolve().parents[2]
METRICS = ROOT / "docs/metrics.md"
FAULT_MODEL = ROOT / "docs/fault_model.md"
FIELD_REPORTS = ROOT / "tests/reliability/README.md"


def documented_metrics() -> set[str]:
    """Names in the first column of every table, and names of the form regions_* in the second."""
    names: set[str] = set()
    for line in METRICS.read_text().splitlines():
        cells = line.split("|")
        if len(cells) < 4 or cells[1].strip() in ("name", "---"):
            continue
        names.update(name.strip() for name in cells[1].split(","))
        names.update(re.findall(r"\bregions_\w+", cells[2]))
    return names


def test_every_number_is_documented_and_none_is_invented(pool_path: str) -> None:
    with kvstore.open(pool_path, mode="shared") as pool:
        there = set(pool.stats())
    assert documented_metrics() - {""} == there


def cxx_tests() -> set[str]:
    """Suite.Name of every C++ test; parameterised suites without their instance."""
    expression = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)
    return {
        ".".join(found)
        for path in (ROOT / "tests/cpp").rglob("*.cpp")
        for found in expression.findall(path.read_text())
    }


def python_tests() -> set[str]:
    expression = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
    return {name for path in (ROOT / "tests").rglob("test_*.py") for name in expression.findall(path.read_text())}


@pytest.mark.parametrize("document", [FAULT_MODEL, FIELD_REPORTS], ids=lambda path: path.stem)
def test_every_fault_of_the_tables_names_tests_that_exist(document: Path) -> None:
    named = set()
    for line in document.read_text().splitlines():
        if line.startswith("| ") and line.count("|") > 3 and not line.startswith(("| fault", "| report")):
            tests = re.findall(r"`([\w.]+)`", line.split("|")[-2])
            assert tests, line
            named.update(tests)
    assert len(named) > 20
    assert named - cxx_tests() - python_tests() == set()


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_every_verb_that_is_named_exists(document: str) -> None:
    parser = build_parser()
    (verbs,) = [action.choices for action in parser._actions if action.dest == "verb"]
    assert verbs is not None
    named = set(re.findall(r"(?:^|`)kvstore ([a-z]+) ", (ROOT / document).read_text(), re.MULTILINE))
    assert named <= set(verbs)


def test_every_verb_is_in_the_readme() -> None:
    parser = build_parser()
    (verbs,) = [action.choices for action in parser._actions if action.dest == "verb"]
    text = (ROOT / "README.md").read_text()
    assert [verb for verb in verbs or () if f"`kvstore {verb} " not in text] == []
