# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: a release of vLLM that is supported by its signatures asks for nothing that our classes do not have.

Method: the base classes of that release are parsed, not imported, from its wheel's files, which scripts/test engines
unpacks. Every abstract method must be ours, and every method of ours must take what the release passes.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSIONS = ["0.33.0"]
V1 = "distributed/kv_transfer/kv_connector/v1"
# Of each base class its file, and ours with its own.
CLASSES = {
    "SecondaryTierManager": ("v1/kv_offload/tiering/base.py", "KVStoreTier", "tier.py"),
    "KVConnectorBase_V1": (f"{V1}/base.py", "KVStoreConnector", "connector.py"),
    "SupportsHMA": (f"{V1}/base.py", "KVStoreConnector", "connector.py"),
    "OffloadingManager": ("v1/kv_offload/base.py", "IndexManager", "connector_scheduler.py"),
    "OffloadingSpec": ("v1/kv_offload/base.py", "IndexSpec", "connector_scheduler.py"),
}
# What the connector calls of vLLM's own offloading connector.
CALLED = {
    "scheduler.py:OffloadingConnectorScheduler": {
        "__init__": ["spec", "vllm_config", "kv_cache_config"],
        "on_new_request": ["request"],
        "get_num_new_matched_tokens": ["request", "num_computed_tokens", "max_num_new_tokens"],
        "update_state_after_alloc": ["request", "blocks", "num_external_tokens"],
        "get_external_cache_hit_sources": ["request", "num_external_tokens"],
        "build_connector_meta": ["scheduler_output"],
        "update_connector_output": ["connector_output"],
        "has_pending_push_work": [],
        "request_finished": ["request"],
        "reset_cache": [],
        "get_stats": [],
        "shutdown": [],
    },
    "worker.py:OffloadingConnectorWorker": {
        "__init__": ["spec", "vllm_config", "kv_cache_config"],
        "_init_worker": ["kv_caches"],
        "register_kv_caches": ["kv_caches"],
    },
}


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
        takes_any = have[name].args.kwarg is not None and wanted[name].args.kwarg is None
        taken = argument_names(have[name])
        lacks += [f"{name}({argument})" for argument in argument_names(wanted[name]) if argument not in taken]
        assert not (takes_any and name != "__init__"), "only the constructor takes what it does not know"
    return sorted(lacks)


def unpacked(version: str, path: str) -> Path:
    found = ROOT / f"build/vllm-{version}/vllm" / path
    if not found.exists():
        pytest.skip(f"the files of vLLM {version} are not unpacked in build: scripts/test engines")
    return found


def ours(base: str) -> ast.ClassDef:
    _, name, path = CLASSES[base]
    return class_in(ROOT / "kvstore/vllm" / path, name)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("base", CLASSES)
def test_our_class_has_all_that_the_release_asks_for(base: str, version: str) -> None:
    assert missing(class_in(unpacked(version, CLASSES[base][0]), base), ours(base)) == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("called", CALLED)
def test_the_release_has_what_the_connector_calls(called: str, version: str) -> None:
    path, name = called.split(":")
    there = methods(class_in(unpacked(version, f"{V1}/offloading/{path}"), name))
    for method, arguments in CALLED[called].items():
        assert argument_names(there[method])[1:] == arguments, method


@pytest.mark.parametrize("version", VERSIONS)
def test_a_method_or_an_argument_more_is_noticed(version: str) -> None:
    base = class_in(unpacked(version, CLASSES["SecondaryTierManager"][0]), "SecondaryTierManager")
    base.body += ast.parse("@abstractmethod\ndef flush(self): ...\n").body
    methods(base)["lookup"].args.args.append(ast.arg("deadline"))
    assert missing(base, ours("SecondaryTierManager")) == ["flush", "lookup(deadline)"]
