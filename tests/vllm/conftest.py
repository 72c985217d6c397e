# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the vLLM tests. They run in the environment that scripts/test --engines makes, where vLLM is."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "python"))

from gpu_fixtures import gpu, gpu_of_session  # noqa: F401

MIB = 1 << 20


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what could not be imported, and what would be deselected after importing vLLM for it."""
    if collection_path.name in (Path(__file__).parent.name, "test_installed.py", "test_signatures.py"):
        return None
    if importlib.util.find_spec("vllm") is None:
        return True
    return True if "not engines" in config.option.markexpr else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engines)


@pytest.fixture
def make_pool(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that formats a pool file and returns its path."""

    def make(size: int = 128 * MIB, region_bytes: int = 4 * MIB) -> Path:
        path = tmp_path / "pool.img"
        kvstore.format(str(path), size=size, region_bytes=region_bytes, min_block_bytes=4096)
        return path

    return make


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vllm_model import make_model

    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    make_model(folder, seed=0)
    return folder


@pytest.fixture(scope="session")
def expected(model: Path) -> list[list[int]]:
    """What the engine says without a store."""
    from vllm_support import PROMPTS, Run, generate

    run = Run(model, None, [generate(number) for number in range(PROMPTS)])
    try:
        return [step["tokens"] for step in run.generated(PROMPTS)]
    finally:
        run.end()


@pytest.fixture
def run_engine() -> Iterator[Callable[..., Any]]:
    """Return a function that starts a vLLM process; all are gone at the end."""
    from vllm_support import Run

    runs = []

    def start(*arguments: Any, **named: Any) -> Run:
        runs.append(Run(*arguments, **named))
        return runs[-1]

    yield start
    for run in runs:
        run.end()
