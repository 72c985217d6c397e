# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the vLLM tests. They run in the environment that scripts/test engines makes, where vLLM is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doors"))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "python"))

from door_fixtures import disk, make_pool  # noqa: F401
from door_support import Door
from gpu_fixtures import gpu, gpu_of_session  # noqa: F401

DOOR = Door(Path(__file__).parent, "engines", ("vllm",), ("test_installed.py", "test_signatures.py"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return DOOR.is_left_out(collection_path, config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    DOOR.mark(items)


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
