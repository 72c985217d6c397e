# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the tier keeps what vLLM expects of a secondary tier, also when the device does not.

Method: the real classes of vLLM and the real store, on a pool file or a simulated disk whose requests are spoiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from vllm.v1.kv_offload.base import LookupResult
from vllm_tier import CHUNK_TOKENS, ROW_BYTES, Tier, key, offloading_config, request

from kvstore.errors import ConfigError
from kvstore.testing import SimDisk
from kvstore.vllm.tier import _leaked

ALWAYS = 1_000_000


@pytest.fixture
def tier(make_pool: Any) -> Iterator[Tier]:
    made = Tier(make_pool())
    yield made
    made.tier.shutdown()


def spoil_reads(disk: SimDisk, tier: Tier, number: int, fault: Any = "error", **more: Any) -> None:
    """Spoil every read of one block from now on."""
    block = tier.tier._space.describe([key(number)])[0]
    assert block is not None
    first = block.offset_bytes
    disk.fault(fault, op="read", first_byte=first, last_byte=first + ROW_BYTES - 1, times=ALWAYS, **more)


def lookup(tier: Tier, number: int) -> LookupResult:
    return tier.tier.lookup(key(number), request([key(number)]))


def test_what_was_stored_is_loaded_into_other_rows(tier: Tier) -> None:
    stored = [tier.fill(row, seed=row) for row in range(3)]
    keys = [key(1), key(2), key(3)]
    assert lookup(tier, 1) is LookupResult.MISS
    assert tier.store(keys, [0, 1, 2]).success
    assert lookup(tier, 1) is LookupResult.HIT
    result = tier.load(keys, [9, 5, 7])
    assert result.success
    assert result.transfer_bytes == 3 * ROW_BYTES
    assert [tier.rows[row].tobytes() for row in (9, 5, 7)] == stored


def test_a_job_of_the_engine_is_one_job_of_the_store_and_moves_without_a_copy(tier: Tier) -> None:
    keys = [key(number) for number in range(8)]
    tier.store(keys, list(range(8)))
    tier.load(keys, list(range(8, 16)))
    status = tier.tier.report_status()
    assert (status["store_jobs"], status["load_jobs"], status["pool"]["bytes_staged"]) == (1, 1, 0)


def test_a_block_that_is_there_is_written_once(tier: Tier) -> None:
    tier.fill(0, seed=1)
    assert tier.store([key(1)], [0]).transfer_bytes == ROW_BYTES
    again = tier.store([key(1)], [0])
    assert (again.success, again.transfer_bytes) == (True, 0)


def test_blocks_know_their_chain(tier: Tier) -> None:
    keys = [key(number) for number in range(4)]
    context = request(keys)
    tier.store(keys[:2], [0, 1], context)
    tier.store(keys[2:], [2, 3], context)
    blocks = tier.tier._space.describe(keys)
    assert [block.depth for block in blocks] == [0, 1, 2, 3]
    assert blocks[0].parent == 0
    assert len({block.parent for block in blocks}) == 4


def test_a_key_whose_load_failed_is_a_miss_before_the_failure_is_told(disk: SimDisk) -> None:
    tier = Tier(disk.path)
    keys = [key(1), key(2)]
    good = [tier.fill(row, seed=row) for row in range(2)]
    tier.store(keys, [0, 1])
    spoil_reads(disk, tier, 2)
    result = tier.load(keys, [4, 5])
    assert (result.success, list(result.successful_keys)) == (False, [key(1)])
    assert tier.rows[4].tobytes() == good[0]
    assert (lookup(tier, 1), lookup(tier, 2)) == (LookupResult.HIT, LookupResult.MISS)
    tier.tier.shutdown()


def test_a_block_that_rots_is_no_success_and_can_be_stored_again(disk: SimDisk) -> None:
    tier = Tier(disk.path)
    stored = tier.fill(0, seed=1)
    tier.store([key(1)], [0])
    spoil_reads(disk, tier, 1, "bit_rot", value=4097)
    assert not tier.load([key(1)], [4]).success
    assert lookup(tier, 1) is LookupResult.MISS
    disk.clear_faults()
    assert tier.store([key(1)], [0]).transfer_bytes == ROW_BYTES
    assert lookup(tier, 1) is LookupResult.HIT
    assert tier.load([key(1)], [4]).success
    assert tier.rows[4].tobytes() == stored
    tier.tier.shutdown()


def test_a_failed_write_is_a_failed_job_and_a_miss(disk: SimDisk) -> None:
    tier = Tier(disk.path)
    payloads = tier.tier._pool.superblocks()[0]["geometry"]["data_offset"]
    disk.fault("error", op="write", first_byte=payloads, times=1)
    result = tier.store([key(1)], [0])
    assert not result.success
    assert lookup(tier, 1) is LookupResult.MISS
    assert tier.tier.report_status()["blocks_not_stored"] == 1
    tier.tier.shutdown()


def test_a_job_is_not_told_while_the_device_has_its_rows(disk: SimDisk) -> None:
    tier = Tier(disk.path)
    tier.store([key(1)], [0])
    spoil_reads(disk, tier, 1, "stuck")
    tier.tier.submit_load(tier.job([key(1)], [4], request([key(1)]), is_load=True))
    assert list(tier.tier.get_finished_jobs()) == []
    assert tier.tier.has_pending_work()
    disk.clear_faults()
    disk.release_stuck()
    tier.finish()
    assert not tier.tier.has_pending_work()
    tier.tier.shutdown()


def test_a_store_that_is_gone_answers_and_raises_nothing(tier: Tier) -> None:
    tier.store([key(1)], [0])
    tier.tier._pool.close()
    assert lookup(tier, 1) is LookupResult.MISS
    tier.tier.touch([key(1)], request([key(1)]))
    assert not tier.load([key(1)], [4]).success
    assert not tier.store([key(2)], [0]).success
    tier.tier.get_stats()
    tier.tier.drain_jobs()
    assert "a lookup is a miss: closed" in tier.tier.report_status()["trouble"]


@pytest.mark.parametrize("is_load", [False, True])
def test_a_job_whose_results_cannot_be_made_is_reported_all_the_same(
    tier: Tier, monkeypatch: pytest.MonkeyPatch, is_load: bool
) -> None:
    tier.store([key(1)], [0])
    monkeypatch.setattr(tier.tier, "_loaded" if is_load else "_stored", lambda *_: 1 / 0)
    result = tier.load([key(1)], [4]) if is_load else tier.store([key(2)], [0])
    assert not result.success
    assert not tier.tier.has_pending_work()
    assert lookup(tier, 1) is (LookupResult.MISS if is_load else LookupResult.HIT)


def test_after_shutdown_the_memory_can_be_closed(tier: Tier) -> None:
    tier.store([key(1)], [0])
    tier.tier.shutdown()
    tier.tier.shutdown()
    tier.view.release()
    assert lookup(tier, 1) is LookupResult.MISS


def test_rows_that_a_device_may_still_write_to_stay_mapped(disk: SimDisk) -> None:
    tier = Tier(disk.path, close_timeout_s=0.1)
    tier.store([key(1)], [0])
    spoil_reads(disk, tier, 1, "stuck")
    tier.tier.submit_load(tier.job([key(1)], [4], request([key(1)]), is_load=True))
    tier.tier.shutdown()
    assert any(memory is tier.rows for memory in _leaked)
    tier.view.release()
    disk.clear_faults()
    disk.release_stuck()


def test_counts_are_told_once(tier: Tier) -> None:
    tier.store([key(1)], [0])
    assert "vllm:kvstore_blocks_stored" in str(tier.tier.get_stats().data)
    assert tier.tier.get_stats() is None
    assert {"vllm:kvstore_blocks_stored", "vllm:kvstore_lookup_hits"} <= set(tier.tier.build_metric_definitions({}))


def test_events_tell_of_stored_and_evicted_blocks_where_they_are_asked_for(make_pool: Any) -> None:
    tier = Tier(make_pool(), enable_kv_events=True, locality="LOCAL")
    tier.store([key(1)], [0])
    tier.tier._space.delete([key(1)])
    events = list(tier.tier.take_events())
    assert [(event.keys, event.removed, event.locality.value) for event in events] == [
        ([key(1)], False, "LOCAL"),
        ([key(1)], True, "LOCAL"),
    ]
    tier.tier.shutdown()


def test_a_block_of_a_group_ends_where_the_request_says(tier: Tier) -> None:
    context = request([key(1), key(2)])
    tail = key(3)
    context.set_offload_key_position(tail, 2 * CHUNK_TOKENS + 16)
    tier.store([tail], [0], context)
    tier.store([key(2)], [1], context)
    tail_block, before = tier.tier._space.describe([tail, key(2)])
    assert (tail_block.depth, before.depth) == (2, 1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pathh": "x"}, r"secondary_tiers\.KVStoreTier\.pathh: no such setting"),
        ({"verify": "sometimes"}, "verify must be one of"),
        ({"identity": {"dtype": "fp8"}}, "identity.dtype is set by kvstore itself"),
    ],
)
def test_a_bad_setting_is_named(make_pool: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Tier(make_pool(), **settings)


def test_data_parallel_engines_need_a_shared_pool(make_pool: Any) -> None:
    with pytest.raises(ConfigError, match='mode must be "shared"'):
        Tier(make_pool(), offloading_config(data_parallel_size=2))


def test_data_parallel_engines_share_a_pool_in_shared_mode(make_pool: Any) -> None:
    tier = Tier(make_pool(), offloading_config(data_parallel_size=2), mode="shared")
    stored = tier.fill(0, seed=1)
    assert tier.store([key(1)], [0]).success
    assert tier.load([key(1)], [4]).success
    assert tier.rows[4].tobytes() == stored
    tier.tier.shutdown()


def test_rows_larger_than_a_region_are_refused_at_the_start(make_pool: Any) -> None:
    with pytest.raises(ConfigError, match="--block-bytes 131072"):
        Tier(make_pool(region_bytes=65536), row_bytes=131072)
