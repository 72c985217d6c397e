# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: vLLM with KVStoreConnector says the same tokens as without, whatever happens to the store or to the engine.

Method: as test_end_to_end.py. An engine's start is most of a test's time, so each run goes through several cases: a
reset empties vLLM's own cache and leaves the pool, whose blocks are spoiled while the engine serves.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm_model import make_hybrid_model
from vllm_support import ENVIRONMENT, PROMPTS, RESET, generate

import kvstore

pytestmark = pytest.mark.timeout(600)
# Two blocks of 128 tokens of each prompt are whole.
ALL = 256
FORGET = {"do": "reset", "connector": True}


def spoil(depth: int) -> dict[str, Any]:
    return {"do": "spoil", "depth": depth}


@pytest.fixture
def run_connector(run_engine: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        return run_engine(*arguments, script="connector_run", **named)

    return run


def said(steps: list[dict[str, Any]]) -> list[tuple[list[int], int]]:
    return [(step["tokens"], step["cached"]) for step in steps]


@pytest.mark.parametrize("layerwise", [False, True])
def test_a_prefix_is_loaded_and_a_corrupted_block_computed_again(
    run_connector: Any, make_pool: Any, model: Path, expected: list[list[int]], layerwise: bool
) -> None:
    pool = make_pool()
    settings = {"layerwise": layerwise}
    steps = [generate(0), generate(1), RESET, generate(0), spoil(1), RESET, generate(1), generate(2)]
    run = run_connector(model, pool, [*steps, RESET, generate(1), FORGET, generate(0)], tier=settings)
    cold, other, warm, spoilt, fresh, mended, forgotten = run.generated(7)
    assert said([cold, other, warm]) == [(expected[0], 0), (expected[1], 0), (expected[0], ALL)]
    assert (spoilt["tokens"], spoilt["finish"]) == (expected[1], "length")
    assert said([fresh, mended, forgotten]) == [(expected[2], 0), (expected[1], ALL), (expected[0], 0)]
    counts = run.status()
    assert (counts["load_jobs"], counts["blocks_loaded"], counts["blocks_not_loaded"]) == (3, 5, 1)
    assert counts["pool"]["checksum_misses"] >= 1
    assert counts["metrics"]["vllm:kvstore_blocks_loaded"] == 5

    steps = [generate(1), generate(0, salt="tenant"), spoil(0), RESET, generate(0), generate(3)]
    second = run_connector(model, pool, steps, tier=settings, policy="fail")
    warm, salted, failed, alive = second.generated(4)
    assert said([warm, salted]) == [(expected[1], ALL), (expected[0], 0)]
    assert (failed["finish"], alive["tokens"]) == ("error", expected[3])
    assert second.status()["blocks_not_loaded"] >= 1


def test_an_engine_killed_while_it_stores_comes_back_and_goes_on_when_the_pool_is_full(
    run_connector: Any, make_pool: Any, model: Path, expected: list[list[int]]
) -> None:
    # A few regions of two blocks.
    pool = make_pool(size=34 << 20, region_bytes=256 << 10)
    killed = run_connector(model, pool, [generate(number) for number in range(PROMPTS)])
    killed.step("storing")
    killed.kill()

    with kvstore.open(pool) as opened:
        capacity_blocks = int(opened.stats()["capacity_bytes"]) // (128 << 10)
    fill = generate(0)
    fill["prompt"] = [generate(number)["prompt"] for number in range(100, 100 + 2 * capacity_blocks)]
    after = run_connector(model, pool, [*(generate(number) for number in range(PROMPTS)), fill, RESET, generate(0)])
    assert [step["tokens"] for step in after.generated(PROMPTS)] == expected
    assert after.generated(2 * capacity_blocks + 1)[-1]["tokens"] == expected[0]
    counts = after.status()
    assert counts["pool"]["blocks_evicted"] > 0
    assert counts["blocks_stored"] > capacity_blocks


def test_ten_requests_tell_the_store_which_block_comes_after_which(
    run_connector: Any, make_pool: Any, model: Path
) -> None:
    pool = make_pool()
    requests = generate(0)
    requests["prompt"] = [f"{number} " * 8 + generate(0)["prompt"] * 2 for number in range(10)]
    run = run_connector(model, pool, [requests], engine={"block_size": 32})
    assert len(run.generated(10)) == 10
    assert run.status()["trouble"] == {}

    # Nothing of the other dtype is found among these.
    half = run_connector(model, pool, [requests], dtype="float16", engine={"block_size": 32})
    assert {step["cached"] for step in half.generated(10)} == {0}
    assert half.status()["lookup_hits"] == 0

    command = [sys.executable, "-m", "kvstore", "dump", "--json", pool]
    dump = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    blocks = [json.loads(line) for line in dump.splitlines() if '"depth"' in line]
    assert len(blocks) > 200
    at_start = [block for block in blocks if block["depth"] == 0]
    assert 0 < len(at_start) <= 0.05 * len(blocks)


def test_a_model_of_two_kv_cache_groups_comes_back_and_is_computed_again_where_one_fails(
    run_connector: Any, make_pool: Any, tmp_path: Path
) -> None:
    model = tmp_path / "tiny-hybrid"
    make_hybrid_model(model)
    steps = [generate(0), generate(1), RESET, generate(0), spoil(1), RESET, generate(1), generate(0)]
    run = run_connector(model, make_pool(), steps)
    cold, other, warm, spoilt, again = run.generated(5)
    assert said([cold, other]) == [(cold["tokens"], 0), (other["tokens"], 0)]
    assert said([warm]) == [(cold["tokens"], ALL)]
    assert [step["tokens"] for step in (spoilt, again)] == [other["tokens"], cold["tokens"]]
    counts = run.status()
    assert counts["blocks_loaded"] > 0
    assert counts["blocks_not_loaded"] > 0
