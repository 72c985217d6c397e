# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: vLLM with kvstore behind it says the same tokens as without, whatever happens to the store or to the engine.

Method: a real vLLM on the CPU with a tiny Llama of random weights, each run a process of its own on one pool file. What
a later process finds cached can only come from the pool. Greedy decoding, so tokens are equal or something is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm_model import make_model
from vllm_support import PROMPTS, RESET, generate

import kvstore

pytestmark = pytest.mark.timeout(600)
# Two blocks of 128 tokens of each prompt are whole.
BLOCKS = 2
BLOCK_TOKENS = 128


def tokens(steps: list[dict[str, Any]]) -> list[list[int]]:
    return [step["tokens"] for step in steps]


def spoil(pool: str, depth: int) -> None:
    """Flip a bit in the payload of one block at that depth of a chain."""
    with kvstore.open(pool, read_only=True) as opened:
        block = next(block for block in opened.blocks() if block.depth == depth)
    with open(pool, "r+b") as file:
        file.seek(block.offset_bytes + block.nbytes // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0x10]))


def test_a_prefix_comes_back_after_a_reset_and_in_a_new_process(
    run_engine: Any, make_pool: Any, model: Path, expected: list[list[int]]
) -> None:
    pool = make_pool()
    first = run_engine(model, pool, [generate(0), generate(1), RESET, generate(0)])
    cold, again = first.generated(2), first.generated(1)[0]
    assert tokens(cold) == expected[:2]
    assert [step["cached"] for step in cold] == [0, 0]
    assert (again["tokens"], again["cached"]) == (expected[0], BLOCKS * BLOCK_TOKENS)
    counts = first.status()
    assert (counts["load_jobs"], counts["blocks_loaded"]) == (1, BLOCKS)
    assert (counts["blocks_stored"], counts["trouble"]) == (2 * BLOCKS, {})
    assert counts["metrics"]["vllm:kvstore_blocks_loaded"] == BLOCKS

    second = run_engine(model, pool, [generate(1), generate(0, salt="tenant"), generate(0)])
    warm, salted, other = second.generated(3)
    assert (warm["tokens"], warm["cached"]) == (expected[1], BLOCKS * BLOCK_TOKENS)
    assert (salted["tokens"], salted["cached"]) == (expected[0], 0)
    assert (other["tokens"], other["cached"]) == (expected[0], BLOCKS * BLOCK_TOKENS)
    counts = second.status()
    assert (counts["load_jobs"], counts["blocks_loaded"], counts["pool"]["bytes_staged"]) == (2, 2 * BLOCKS, 0)


def test_a_corrupted_block_is_computed_again(
    run_engine: Any, make_pool: Any, model: Path, expected: list[list[int]]
) -> None:
    pool = make_pool()
    first = run_engine(model, pool, [generate(0)])
    assert tokens(first.generated(1)) == expected[:1]
    first.status()
    spoil(pool, depth=1)

    second = run_engine(model, pool, [generate(0), generate(1), RESET, generate(0)])
    spoilt, fresh, mended = second.generated(3)
    assert (spoilt["tokens"], fresh["tokens"], mended["tokens"]) == (expected[0], expected[1], expected[0])
    assert spoilt["cached"] <= BLOCK_TOKENS
    assert mended["cached"] == BLOCKS * BLOCK_TOKENS
    counts = second.status()
    assert (counts["blocks_not_loaded"], counts["pool"]["checksum_misses"]) == (1, 1)


def test_an_engine_killed_while_it_stores_comes_back(
    run_engine: Any, make_pool: Any, model: Path, expected: list[list[int]]
) -> None:
    pool = make_pool()
    killed = run_engine(model, pool, [generate(number) for number in range(PROMPTS)])
    killed.step("storing")
    killed.kill()

    after = run_engine(model, pool, [generate(number) for number in range(PROMPTS)])
    assert tokens(after.generated(PROMPTS)) == expected
    assert after.status()["trouble"] == {}


def test_a_full_pool_evicts_and_the_engine_goes_on(
    run_engine: Any, make_pool: Any, model: Path, expected: list[list[int]]
) -> None:
    # A few regions of two blocks: less than the prompts need.
    pool = make_pool(size=34 << 20, region_bytes=256 << 10)
    with kvstore.open(pool) as opened:
        capacity_blocks = int(opened.stats()["capacity_bytes"]) // (128 << 10)
    many = 2 * capacity_blocks
    run = run_engine(model, pool, [*(generate(number) for number in range(100, 100 + many)), generate(0)])
    assert run.generated(many + 1)[-1]["tokens"] == expected[0]
    counts = run.status()
    assert counts["pool"]["blocks_evicted"] > 0
    assert counts["blocks_stored"] > capacity_blocks


def test_other_weights_and_another_dtype_hit_nothing(
    run_engine: Any, make_pool: Any, model: Path, tmp_path: Path, expected: list[list[int]]
) -> None:
    pool = make_pool()
    served = tmp_path / "served"
    served.symlink_to(model)
    first = run_engine(served, pool, [generate(0)])
    assert tokens(first.generated(1)) == expected[:1]
    first.status()

    half = run_engine(served, pool, [generate(0)], dtype="float16")
    assert half.generated(1)[0]["cached"] == 0
    assert half.status()["lookup_hits"] == 0

    other = tmp_path / "other"
    make_model(other, seed=1)
    served.unlink()
    served.symlink_to(other)
    tuned = run_engine(served, pool, [generate(0)])
    step = tuned.generated(1)[0]
    assert step["cached"] == 0
    assert step["tokens"] != expected[0]
    assert tuned.status()["lookup_hits"] == 0
