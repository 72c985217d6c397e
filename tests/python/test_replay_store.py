# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The store does what its simulation says: the same trace through both, the same hits.

Method: a real pool in a file, small payloads, every block read back compared; a trace of some thousand lookups whose
capacity is a tenth of its blocks, so that regions are reclaimed all the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from replay_support import conversations, public_trace

from kvstore import Space
from kvstore.replay import POLICIES, Admission, Request, Trace, capacity_blocks, make_policy, run_on_store, simulate

BLOCKS_PER_REGION = 8


@pytest.mark.parametrize("policy", ["store", "store-fifo"])
@pytest.mark.parametrize(("percent", "admission"), [(10, Admission.ALL), (30, Admission.FULL_BLOCKS)])
def test_the_store_hits_as_its_simulation(pool_file: Path, percent: int, admission: Admission, policy: str) -> None:
    trace = conversations(seed=5, requests=1500)
    capacity = capacity_blocks(trace, f"{percent}%")
    simulated = simulate(
        trace, make_policy(policy, capacity, trace=trace, blocks_per_region=BLOCKS_PER_REGION), admission
    )
    order = POLICIES[policy].reclaim_order
    run = run_on_store(trace, pool_file, capacity, BLOCKS_PER_REGION, admission=admission, reclaim_order=order)
    assert run.result.lookups > 10_000
    assert run.stats["regions_reclaimed"] > 100
    assert run.result.prefix_hit == pytest.approx(simulated.prefix_hit, abs=0.005)
    assert run.result.writes_per_lookup == pytest.approx(simulated.writes_per_lookup, abs=0.005)
    assert run.bytes_wrong == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_the_store_hits_as_its_simulation_on_public_traces(pool_file: Path, name: str) -> None:
    trace = public_trace(name)
    capacity = capacity_blocks(trace, "10%")
    simulated = simulate(trace, make_policy("store", capacity, trace=trace, blocks_per_region=BLOCKS_PER_REGION))
    run = run_on_store(trace, pool_file, capacity, BLOCKS_PER_REGION)
    assert run.result.prefix_hit == pytest.approx(simulated.prefix_hit, abs=0.005)


def test_a_get_that_moves_nothing_is_wrong_although_the_request_before_read_the_same(
    pool_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_many, calls = Space.get_many, []

    def moves_once(space: Space, keys: Sequence[bytes], outs: Sequence[memoryview]) -> Any:
        calls.append(len(keys))
        if len(calls) == 1:
            return get_many(space, keys, outs)
        return SimpleNamespace(wait=lambda: [SimpleNamespace(status="hit")] * len(keys))

    monkeypatch.setattr(Space, "get_many", moves_once)
    trace = Trace("one prompt", [Request(float(time_s), 20, 0, (1, 2)) for time_s in range(3)], block_tokens=10)
    run = run_on_store(trace, pool_file, 64, BLOCKS_PER_REGION)
    assert calls == [2, 2]
    assert run.bytes_wrong == 2 * run.payload_bytes


def test_a_run_that_put_nothing_amplified_nothing(pool_file: Path) -> None:
    trace = Trace("short prompts", [Request(0.0, 5, 0, (1,)), Request(1.0, 6, 0, (2,))], block_tokens=10)
    run = run_on_store(trace, pool_file, 64, BLOCKS_PER_REGION, admission=Admission.FULL_BLOCKS)
    assert run.result.blocks_put == 0
    assert run.amplification(1 << 20) == run.result.write_amplification == 1
