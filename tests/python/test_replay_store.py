# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The store does what its simulation says: the same trace through both, the same hits.

Method: a real pool in a file, small payloads, every block read back compared; a trace of some thousand lookups whose
capacity is a tenth of its blocks, so that regions are reclaimed all the time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from replay_support import conversations, public_trace

from kvstore.replay import Admission, capacity_blocks, make_policy, run_on_store, simulate

BLOCKS_PER_REGION = 8


@pytest.mark.parametrize(("percent", "admission"), [(10, Admission.ALL), (30, Admission.FULL_BLOCKS)])
def test_the_store_hits_as_its_simulation(pool_file: Path, percent: int, admission: Admission) -> None:
    trace = conversations(seed=5, requests=1500)
    capacity = capacity_blocks(trace, f"{percent}%")
    simulated = simulate(
        trace, make_policy("store", capacity, trace=trace, blocks_per_region=BLOCKS_PER_REGION), admission
    )
    run = run_on_store(trace, pool_file, capacity, BLOCKS_PER_REGION, admission=admission)
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
