# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Every rule of ARCHITECTURE.md, docs/sharing.md and docs/gpu.md can be switched off, and each clause names its test.

Method: the clauses in csrc, the lines of tests/cpp/store/mutations.txt and the tests in tests/cpp are compared. That
the tests really fail is for scripts/mutate to show.
"""

import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def mutate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "scripts/lib/mutate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rules() -> set[str]:
    text = (ROOT / "ARCHITECTURE.md").read_text() + (ROOT / "docs/sharing.md").read_text()
    text += (ROOT / "docs/gpu.md").read_text()
    return set(re.findall(r"^\* \*\*([GIS]\d+)\*\*", text, re.MULTILINE))


def test_each_rule_has_a_clause_that_can_be_switched_off(mutate: ModuleType) -> None:
    expected = {f"I{number}" for number in range(1, 13)} | {f"S{number}" for number in range(1, 9)}
    expected |= {f"G{number}" for number in range(1, 5)}
    assert {mutate.rule_of(clause) for clause in mutate.clauses()} == rules() == expected


def test_a_clause_stands_at_one_place(mutate: ModuleType) -> None:
    assert [clause for clause, count in Counter(mutate.clauses()).items() if count != 1] == []


def test_each_clause_names_the_test_that_notices(mutate: ModuleType) -> None:
    assert set(mutate.expectations()) == set(mutate.clauses())


def test_each_test_that_is_named_exists(mutate: ModuleType) -> None:
    expression = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)
    sources = [path.read_text() for path in (ROOT / "tests/cpp").rglob("*.cpp")]
    there = {".".join(found) for text in sources for found in expression.findall(text)}
    assert set(mutate.expectations().values()) - there == set()
