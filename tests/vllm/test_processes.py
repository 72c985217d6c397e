# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: an engine of several processes finds in the pool what its workers stored, each rank its own part of it.

Method: as test_connector_end_to_end.py, with the executor ``mp`` and the pool in shared mode: scheduler and workers are
openers of it, each a process. One token for each answer, so that a block is asked for sooner than the scheduler's
opener can have read of it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from vllm_support import PROMPTS, RESET, generate

import kvstore

pytestmark = pytest.mark.timeout(600)
# Two blocks of 128 tokens of each prompt are whole.
BLOCKS, ALL = 2, 256
FORGET = {"do": "reset", "connector": True}
# A lease that a busy machine does not let end, with which puts would be refused: a miss, and rightly one.
SHARED = {"mode": "shared", "lease_s": 60}
ONE_WORKER = {"distributed_executor_backend": "mp"}
TWO_WORKERS = {**ONE_WORKER, "tensor_parallel_size": 2}
# vLLM binds each worker to a NUMA node of its own otherwise.
UNBOUND = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def again(number: int) -> list[dict[str, Any]]:
    """A prompt, and the same when vLLM's own cache is empty."""
    return [generate(number, max_tokens=1), RESET, generate(number, max_tokens=1)]


def ranks_of(pool: str) -> Counter[int]:
    """How many blocks each rank has in the pool."""
    with kvstore.open(pool, read_only=True) as opened:
        return Counter(int(block.space["rank"]) for block in opened.blocks())


def test_what_workers_stored_is_found_at_once_and_each_rank_has_its_own(
    run_engine: Any, make_pool: Any, model: Path, expected: list[list[int]]
) -> None:
    pool = make_pool()
    named: dict[str, Any] = {"script": "connector_run", "tier": SHARED, "environment": UNBOUND}
    steps = [step for number in range(PROMPTS) for step in again(number)]
    two = run_engine(model, pool, [*steps, FORGET, generate(0, max_tokens=1)], engine=TWO_WORKERS, **named)
    *answers, forgotten = two.generated(2 * PROMPTS + 1)
    trouble = [line for line in two.log if "kvstore" in line]
    assert [step["cached"] for step in answers] == [0, ALL] * PROMPTS, trouble
    assert [step["tokens"] for step in answers] == [tokens[:1] for tokens in expected for _ in range(2)]
    assert (forgotten["cached"], forgotten["tokens"]) == (0, expected[0][:1])
    counts = two.status()
    assert counts["trouble"] == {}
    assert counts["metrics"]["vllm:kvstore_blocks_loaded"] == 2 * PROMPTS * BLOCKS
    assert ranks_of(pool) == {0: (PROMPTS + 1) * BLOCKS, 1: (PROMPTS + 1) * BLOCKS}

    # One rank has all heads: nothing that two stored is its.
    one = run_engine(model, pool, again(0) + again(1), engine=ONE_WORKER, **named)
    assert [step["cached"] for step in one.generated(4)] == [0, ALL, 0, ALL]
    assert one.status()["metrics"]["vllm:kvstore_blocks_loaded"] == 2 * BLOCKS


def test_the_tier_has_the_parts_of_two_workers_in_one_block(
    run_engine: Any, make_pool: Any, model: Path, expected: list[list[int]]
) -> None:
    pool = make_pool()
    steps = [generate(0), generate(1), RESET, generate(0), generate(1)]
    two = run_engine(model, pool, steps, engine=TWO_WORKERS, environment=UNBOUND)
    answers = two.generated(4)
    assert [step["cached"] for step in answers] == [0, 0, ALL, ALL]
    assert [step["tokens"] for step in answers[2:]] == [step["tokens"] for step in answers[:2]]
    assert [step["tokens"][:1] for step in answers] == [expected[0][:1], expected[1][:1]] * 2
    counts = two.status()
    assert (counts["blocks_stored"], counts["blocks_loaded"], counts["trouble"]) == (2 * BLOCKS, 2 * BLOCKS, {})
