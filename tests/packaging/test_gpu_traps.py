# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The traps of GPU I/O that tests/fakes/README.md lists have the tests that it names, and nobody uses batch calls."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "fakes" / "README.md"


def test_every_trap_has_a_test_that_exists() -> None:
    cpp = "\n".join(path.read_text() for path in (ROOT / "tests" / "cpp" / "gpu").glob("*.cpp"))
    python = "\n".join(path.read_text() for path in (ROOT / "tests").glob("*/test_*.py"))
    traps = [line for line in TABLE.read_text().splitlines() if re.search(r"`(\w+\.\w+|test_\w+)`", line)]
    assert len(traps) >= 13
    missing = []
    for name in re.findall(r"`(\w+\.\w+|test_\w+)`", "\n".join(traps)):
        suite, _, test = name.rpartition(".")
        is_there = (
            f"TEST_F({suite}, {test})" in cpp or f"TEST({suite}, {test})" in cpp if suite else f"def {name}(" in python
        )
        if not is_there:
            missing.append(name)
    assert missing == []


def test_no_batch_call_of_cufile_is_used() -> None:
    sources = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in {".h", ".cpp", ".cu"}]
    assert len(sources) > 50
    assert [path.name for path in sources if "cuFileBatch" in path.read_text()] == []
