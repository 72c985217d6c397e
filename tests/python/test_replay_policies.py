# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What every policy of replay keeps to, whatever it decides; and what single ones decide.

Method: one suite that runs for each policy on a seeded trace, watched request by request; then small traces by hand.
"""

from __future__ import annotations

import pytest
from replay_support import conversations

from kvstore.errors import ConfigError
from kvstore.replay import POLICIES, Admission, Policy, Request, Trace, capacity_blocks, make_policy, simulate

CAPACITY = 256


def trace_of(*chains: list[int], block_tokens: int = 10) -> Trace:
    requests = [Request(float(i), len(chain) * block_tokens, 0, tuple(chain)) for i, chain in enumerate(chains)]
    return Trace("by hand", requests, block_tokens)


def hits(policy: str, capacity: int, *chains: list[int], blocks_per_region: int = 1) -> list[int]:
    """The leading run of hits of each request."""
    trace = trace_of(*chains)
    made = make_policy(policy, capacity, trace=trace, blocks_per_region=blocks_per_region)
    return [served.run for served in simulate(trace, made).served]


@pytest.fixture(scope="module")
def trace() -> Trace:
    return conversations(seed=1)


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest, trace: Trace) -> Policy:
    return make_policy(request.param, CAPACITY, trace=trace, blocks_per_region=8)


def test_no_policy_holds_more_than_its_capacity(policy: Policy, trace: Trace) -> None:
    for request in trace.requests:
        policy.serve(request, run=0, keep=len(request.blocks))
        assert len(policy.resident) <= CAPACITY


def test_only_what_was_put_is_a_hit(policy: Policy, trace: Trace) -> None:
    put: set[int] = set()
    for request in trace.requests:
        assert set(policy.resident) <= put
        policy.serve(request, run=0, keep=len(request.blocks))
        put.update(request.blocks)


def test_everything_fits_then_everything_seen_before_is_a_hit(policy: Policy, trace: Trace) -> None:
    roomy = make_policy(policy.name, 4 * trace.blocks_unique, trace=trace, blocks_per_region=8)
    result = simulate(trace, roomy)
    expected = 1 - trace.blocks_unique / trace.lookups
    assert result.block_hit == pytest.approx(expected)
    # The bound writes nothing that is never read again.
    assert result.writes_per_lookup == pytest.approx(1 - expected) or policy.name == "opt"


def test_hits_puts_and_writes_add_up(policy: Policy, trace: Trace) -> None:
    result = simulate(trace, policy)
    assert 0 < result.prefix_hit <= result.block_hit < 1
    assert result.blocks_written >= result.blocks_put
    assert result.write_amplification == pytest.approx(result.blocks_written / result.blocks_put)


def test_a_second_run_gives_the_same(policy: Policy, trace: Trace) -> None:
    again = make_policy(policy.name, CAPACITY, trace=trace, blocks_per_region=8)
    assert simulate(trace, policy) == simulate(trace, again)


def test_none_is_better_than_the_bound(policy: Policy, trace: Trace) -> None:
    bound = make_policy("opt", CAPACITY, trace=trace)
    assert simulate(trace, policy).prefix_hit <= simulate(trace, bound).prefix_hit


def test_a_partial_tail_is_not_put_when_only_full_blocks_are_admitted(policy: Policy, trace: Trace) -> None:
    partial = {request.blocks[-1] for request in trace.requests if request.tokens % trace.block_tokens}
    full = {block for request in trace.requests for block in request.blocks[: request.tokens // trace.block_tokens]}
    simulate(trace, policy, Admission.FULL_BLOCKS)
    assert partial - full
    assert not (partial - full) & set(policy.resident)


def test_lru_keeps_what_was_used_and_fifo_what_is_young() -> None:
    chains = [1], [2], [1], [3], [1]
    assert hits("lru", 2, *chains) == [0, 0, 1, 0, 1]
    assert hits("fifo", 2, *chains) == [0, 0, 1, 0, 0]


def test_lru_drops_the_tail_of_a_chain_first() -> None:
    assert hits("lru", 3, [1, 2, 3], [4], [1, 2, 3]) == [0, 0, 2]


def test_a_hole_ends_the_run_and_the_rest_counts_as_block_hits() -> None:
    trace = trace_of([1, 2, 3], [9], [1, 2, 3])
    result = simulate(trace, make_policy("region-fifo", 3, trace=trace, blocks_per_region=1))
    assert [served.run for served in result.served] == [0, 0, 0]
    assert [served.hits for served in result.served] == [0, 0, 2]


def test_the_bound_does_not_write_what_never_comes_back() -> None:
    result = simulate(trace := trace_of([1], [2], [1]), make_policy("opt", 1, trace=trace))
    assert [served.run for served in result.served] == [0, 0, 1]
    assert result.blocks_written == 1


@pytest.mark.parametrize("policy_name", ["region-fifo", "region-lru", "store", "store-fifo"])
def test_regions_are_reclaimed_whole(policy_name: str, trace: Trace) -> None:
    policy = make_policy(policy_name, CAPACITY, trace=trace, blocks_per_region=8)
    gone = []
    for request in trace.requests:
        before = set(policy.resident)
        policy.serve(request, run=0, keep=len(request.blocks))
        gone.append(len(before - set(policy.resident)))
    assert sum(gone) > CAPACITY
    assert all(count % 8 == 0 for count in gone)


@pytest.mark.parametrize("blocks_per_region", [8, 32])
def test_cleaning_gains_hits_within_its_budget_of_writes(blocks_per_region: int) -> None:
    trace = conversations(seed=9, requests=2000)
    cleaned, plain = (
        simulate(trace, make_policy(name, 1024, trace=trace, blocks_per_region=blocks_per_region))
        for name in ("region-clean", "region-lru")
    )
    assert cleaned.blocks_copied > 0
    assert cleaned.write_amplification <= 1.05
    assert cleaned.prefix_hit > plain.prefix_hit


@pytest.mark.parametrize("text", ["0%", "-1%", "x%", "", "12XB", "10"])
def test_a_capacity_that_is_none_is_refused(text: str, trace: Trace) -> None:
    with pytest.raises(ConfigError):
        capacity_blocks(trace, text, block_bytes=4096)


def test_capacity_is_a_share_of_the_unique_blocks_or_bytes(trace: Trace) -> None:
    assert capacity_blocks(trace, "10%") == trace.blocks_unique // 10
    assert capacity_blocks(trace, "64KiB", block_bytes=4096) == 16
    with pytest.raises(ConfigError, match="block-bytes"):
        capacity_blocks(trace, "64KiB")


def test_a_policy_nobody_knows_is_refused_and_the_known_are_named(trace: Trace) -> None:
    with pytest.raises(ConfigError, match="region-lru"):
        make_policy("mru", 10, trace=trace)
