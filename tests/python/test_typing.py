# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The types that users see: mypy --strict over tests/typing, whose assert_type lines are the expectations.

Lines marked ``# wrong`` must be refused; that is checked by removing what is right about them: an unused ignore fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvstore

EXAMPLES = Path(__file__).parent.parent / "typing" / "api.py"


def test_the_examples_have_the_types_they_say():
    pytest.importorskip("mypy", reason="mypy is not installed")
    root = EXAMPLES.parent.parent.parent
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--warn-unused-ignores",
            "--config-file",
            "",
            "--cache-dir",
            os.devnull,
            str(EXAMPLES),
        ],
        env={**os.environ, "MYPYPATH": str(root)},
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_says_that_it_is_typed():
    package = Path(kvstore.__file__).parent
    assert (package / "py.typed").exists()
    assert (package / "_core.pyi").exists()


def test_the_stub_names_exactly_what_the_core_has():
    import ast
    import inspect

    from kvstore import _core

    tree = ast.parse((Path(kvstore.__file__).parent / "_core.pyi").read_text())
    stubbed = {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    real = {name for name in vars(_core) if not name.startswith("__")}
    assert real == set(stubbed)
    for name, node in stubbed.items():
        if isinstance(node, ast.ClassDef):
            members = {item.name for item in node.body if isinstance(item, ast.FunctionDef)} - {
                "__init__",
                "__buffer__",
            }
            own = {member for member in vars(getattr(_core, name)) if not member.startswith("__")}
            assert own <= members, f"{name}: {own - members} are not in the stub"
            assert all(inspect.getattr_static(getattr(_core, name), member, None) for member in members), name
