# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: a release of vLLM that is supported by its signatures asks for nothing that the tier does not have.

Method: the base classes of that release are parsed, not imported, from its wheel's files, which scripts/test --engines
unpacks. Every abstract method must be ours, and every method of ours must take what the release passes.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSIONS = ["0.33.0"]
BASE = "SecondaryTierManager"


def class_in(path: Path, name: str) -> ast.ClassDef:
    tree = ast.parse(path.read_text())
    return next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)


def methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}


def is_abstract(method: ast.FunctionDef) -> bool:
    return any("abstractmethod" in ast.unparse(decorator) for decorator in method.decorator_list)


def argument_names(method: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]]


def missing(base: ast.ClassDef, ours: ast.ClassDef) -> list[str]:
    """What ``base`` asks for and ``ours`` lacks."""
    have, wanted = methods(ours), methods(base)
    lacks = [name for name, method in wanted.items() if is_abstract(method) and name not in have]
    for name in have.keys() & wanted.keys():
        takes_any = have[name].args.kwarg is not None
        taken = argument_names(have[name])
        lacks += [f"{name}({argument})" for argument in argument_names(wanted[name]) if argument not in taken]
        assert not (takes_any and name != "__init__"), "only the constructor takes what it does not know"
    return sorted(lacks)


@pytest.fixture(params=VERSIONS)
def base(request: pytest.FixtureRequest) -> ast.ClassDef:
    path = ROOT / f"build/vllm-{request.param}/vllm/v1/kv_offload/tiering/base.py"
    if not path.exists():
        pytest.skip(f"the files of vLLM {request.param} are not unpacked in build: scripts/test --engines")
    return class_in(path, BASE)


@pytest.fixture
def ours() -> ast.ClassDef:
    return class_in(ROOT / "kvstore/vllm/tier.py", "KVStoreTier")


def test_the_tier_has_all_that_the_release_asks_for(base: ast.ClassDef, ours: ast.ClassDef) -> None:
    assert missing(base, ours) == []


def test_a_method_or_an_argument_more_is_noticed(base: ast.ClassDef, ours: ast.ClassDef) -> None:
    base.body += ast.parse("@abstractmethod\ndef flush(self): ...\n").body
    methods(base)["lookup"].args.args.append(ast.arg("deadline"))
    assert missing(base, ours) == ["flush", "lookup(deadline)"]
