# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the connector keeps what vLLM expects of both its roles, also when the device does not.

Method: the real classes of vLLM and the real store, on a pool file or a simulated disk whose reads are spoiled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from connector_halves import Halves, allocated, cache_config, empty_step, request, vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole, supports_hma
from vllm.v1.kv_offload.base import LookupResult, make_offload_key
from vllm.v1.outputs import KVConnectorOutput

from kvstore.errors import ConfigError
from kvstore.testing import SimDisk
from kvstore.vllm import KVStoreConnector
from kvstore.vllm.connector_scheduler import ConnectorWorkerMetadata
from kvstore.vllm.told import TOLD_S, ToldKeys

ALWAYS = 1_000_000


@pytest.fixture
def halves(disk: SimDisk) -> Iterator[Callable[..., Halves]]:
    made: list[Halves] = []

    def make(**settings: Any) -> Halves:
        made.append(Halves(disk.path, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def keys_of(blocks: int, group: int = 0) -> list[bytes]:
    return [bytes(make_offload_key(one, group)) for one in request(blocks).block_hashes[:blocks]]


def spoil(disk: SimDisk, engine: Halves, key: bytes) -> None:
    """Fail every read of one block from now on."""
    block = engine.worker._worker._opened.space(0, "").describe([key])[0]
    disk.fault(
        "error",
        op="read",
        first_byte=block.offset_bytes,
        last_byte=block.offset_bytes + block.nbytes - 1,
        times=ALWAYS,
    )


def stored(engine: Halves, blocks: int) -> list[bytes]:
    keys = keys_of(blocks)
    for number in range(blocks):
        engine.fill(number + 1)
    engine.step(stores=(keys, list(range(1, blocks + 1))))
    return keys


@pytest.mark.parametrize("by_layer", [False, True])
def test_what_was_stored_is_loaded_into_other_blocks(halves: Any, by_layer: bool) -> None:
    engine = halves(layerwise=by_layer)
    keys = stored(engine, 3)
    output = engine.step(loads=(keys, [20, 9, 31]), by_layer=by_layer)
    assert [engine.bytes_of(number) for number in (20, 9, 31)] == [engine.bytes_of(number) for number in (1, 2, 3)]
    # A request whose load is within the step runs already: nobody waits for it.
    assert output.finished_recving == (set() if by_layer else {"r"})
    assert (output.invalid_block_ids, output.failed_recving) == (set(), set())


def test_a_request_s_blocks_are_found_and_loaded_after_those_computed_here(halves: Any) -> None:
    engine = halves()
    keys = stored(engine, 4)
    one = request(5)
    engine.scheduler.on_new_request(one)
    assert engine.scheduler.get_num_new_matched_tokens(one, 16) == (48, True)
    engine.scheduler.update_state_after_alloc(one, allocated([1, 11, 12, 13, 14]), 48)
    (job,) = engine.scheduler.build_connector_meta(empty_step()).load_jobs.values()
    assert (job.src_spec.keys, list(job.dst_spec.block_ids)) == (keys[1:], [11, 12, 13])
    assert engine.scheduler.get_external_cache_hit_sources(one, 48) == {engine.scheduler._cache_hit_source: 48}


def test_a_load_within_the_step_leaves_a_token_to_compute(halves: Any) -> None:
    engine = halves(layerwise=True)
    keys = stored(engine, 4)
    one = request(4, tokens_more=0)
    engine.scheduler.on_new_request(one)
    assert engine.scheduler.get_num_new_matched_tokens(one, 0) == (48, False)
    engine.scheduler.update_state_after_alloc(one, allocated([11, 12, 13, 14]), 48)
    meta = engine.scheduler.build_connector_meta(empty_step())
    (job,) = meta.load_jobs.values()
    assert (meta.by_layer, job.src_spec.keys, list(job.dst_spec.block_ids)) == (True, keys[:3], [11, 12, 13])


def test_a_block_that_fails_is_named_and_then_a_miss(halves: Any, disk: SimDisk) -> None:
    engine = halves()
    keys = stored(engine, 3)
    spoil(disk, engine, keys[1])
    output = engine.step(loads=(keys, [20, 21, 22]))
    assert (output.finished_recving, output.invalid_block_ids) == ({"r"}, {21})
    assert engine.bytes_of(22) == engine.bytes_of(3)
    engine.tell(output)
    one = request(3)
    engine.scheduler.on_new_request(one)
    assert engine.scheduler.get_num_new_matched_tokens(one, 0) == (16, True)


def test_with_several_groups_the_request_is_named_instead(halves: Any, disk: SimDisk) -> None:
    engine = halves(groups=2)
    keys = [*keys_of(2), *keys_of(2, group=1)]
    for number in (1, 2, 3, 4):
        engine.fill(number)
    engine.step(stores=(keys, [1, 2, 3, 4]))
    good = engine.step(loads=(keys, [11, 12, 13, 14]))
    assert (good.finished_recving, good.failed_recving) == ({"r"}, set())
    assert [engine.bytes_of(11)[:2], engine.bytes_of(14)[2:]] == [engine.bytes_of(1)[:2], engine.bytes_of(4)[2:]]
    spoil(disk, engine, keys[3])
    bad = engine.step(loads=(keys, [11, 12, 13, 14]))
    assert (bad.finished_recving, bad.failed_recving, bad.invalid_block_ids) == ({"r"}, {"r"}, set())


def test_a_load_that_cannot_begin_fails_its_request(halves: Any) -> None:
    engine = halves()
    keys = stored(engine, 2)
    for load in ((keys, [20]), ([], [])):
        output = engine.step(loads=load)
        assert (output.finished_recving, output.failed_recving) == ({"r"}, {"r"})


def test_nothing_is_stored_after_a_failed_load_until_the_scheduler_knows_of_it(halves: Any, disk: SimDisk) -> None:
    engine = halves(layerwise=True)
    keys = [*stored(engine, 2), *keys_of(5)[2:]]
    spoil(disk, engine, keys[1])
    failed = engine.step(loads=(keys[:2], [20, 21]), stores=(keys[2:3], [3]), by_layer=True)
    assert failed.invalid_block_ids == {21}
    # Scheduled before the scheduler heard of it.
    engine.step(stores=(keys[3:4], [4]), by_layer=True)
    engine.tell(failed)
    engine.step(stores=(keys[4:5], [5]), by_layer=True)
    space = engine.worker._worker._opened.space(0, "")
    assert space.contains(keys[2:]) == [False, False, True]


def test_blocks_are_not_trusted_when_layers_did_not_wait(halves: Any) -> None:
    engine = halves(layerwise=True)
    keys = stored(engine, 2)
    output = engine.step(loads=(keys, [20, 21]), by_layer=True, hooks=False)
    assert output.invalid_block_ids == {20, 21}


def test_a_load_within_the_step_that_failed_is_told_to_who_asks_before_the_step_s_stores(
    halves: Any, disk: SimDisk
) -> None:
    # As vLLM does with speculative decoding; a step later it would have told its users the tokens.
    engine = halves(layerwise=True)
    keys = stored(engine, 2)
    spoil(disk, engine, keys[1])
    load, store = (keys, [20, 21]), (keys_of(3)[2:], [3])
    output = engine.step(loads=load, stores=store, by_layer=True, asked_early=True)
    assert output.invalid_block_ids == {21}
    assert engine.worker._worker._opened.space(0, "").contains(keys_of(3)) == [True, True, False]


def test_with_several_groups_a_step_waits_for_no_load(halves: Any) -> None:
    engine = halves(groups=2, layerwise=True)
    assert not engine.scheduler._scheduler._opened.by_layer


def test_a_block_stored_again_is_a_hit_again(halves: Any, disk: SimDisk) -> None:
    engine = halves()
    keys = stored(engine, 1)
    engine.tell(engine.step(loads=(keys, [20])))
    manager = engine.scheduler._scheduler.manager
    space = engine.worker._worker._opened.space(0, "")
    manager.failed.add(keys)
    engine.worker._worker._failed.add(keys)
    space.delete(keys)
    engine.tell(engine.step(stores=(keys, [1])))
    assert len(manager.failed) == 0


def test_after_a_reset_this_engine_finds_nothing_and_the_next_one_all(halves: Any, disk: SimDisk) -> None:
    engine = halves()
    stored(engine, 2)
    assert engine.scheduler.reset_cache() is True
    one = request(2)
    engine.scheduler.on_new_request(one)
    assert engine.scheduler.get_num_new_matched_tokens(one, 0) == (0, False)
    other = halves()
    other.scheduler.on_new_request(one)
    assert other.scheduler.get_num_new_matched_tokens(one, 0) == (32, True)


class Unread:
    """A space of whose blocks this process has not read yet."""

    def contains(self, key: bytes) -> bool:
        return False


def told_by(engine: Halves, keys: list[bytes], *reports: ConnectorWorkerMetadata) -> list[LookupResult]:
    """What a scheduler finds that knows of these only what its workers say: their reports, and that all are done."""
    scheduler = engine.scheduler._scheduler
    scheduler.manager._spaces = [Unread(), Unread()]
    for report in reports:
        scheduler.update(KVConnectorOutput(kv_connector_worker_meta=report))
    scheduler.manager.complete_store(keys, None)
    return [scheduler.manager.lookup(key, None) for key in keys]


@pytest.mark.parametrize(("mode", "found"), [("shared", LookupResult.HIT), ("owner", LookupResult.MISS)])
def test_with_workers_of_other_processes_their_word_is_a_hit(make_pool: Any, mode: str, found: LookupResult) -> None:
    engine = Halves(make_pool(), mode=mode)
    try:
        assert told_by(engine, keys_of(2)) == [found, found]
        engine.scheduler.reset_cache()
        assert len(engine.scheduler._scheduler.manager.told) == 0
    finally:
        engine.close()


def test_a_block_that_one_worker_did_not_store_or_load_is_not_told(make_pool: Any) -> None:
    engine = Halves(make_pool(), mode="shared")
    keys = keys_of(3)
    try:
        one, other = ConnectorWorkerMetadata(not_stored_keys=keys[:1]), ConnectorWorkerMetadata(failed_keys=keys[2:])
        assert told_by(engine, keys, one.aggregate(ConnectorWorkerMetadata())) == [
            *(LookupResult.MISS, LookupResult.HIT, LookupResult.HIT)
        ]
        engine.scheduler._scheduler.update(KVConnectorOutput(kv_connector_worker_meta=other))
        lookup = engine.scheduler._scheduler.manager.lookup
        assert [lookup(key, None) for key in keys] == [LookupResult.MISS, LookupResult.HIT, LookupResult.MISS]
    finally:
        engine.close()


def test_a_worker_names_the_blocks_it_does_not_store(halves: Any, disk: SimDisk) -> None:
    engine = halves()
    disk.fault("error", op="write", times=ALWAYS)
    output = engine.step(stores=(keys_of(1), [1]))
    disk.clear_faults()
    assert output.kv_connector_worker_meta.not_stored_keys == keys_of(1)


def test_what_workers_told_is_forgotten_after_a_while() -> None:
    now = [0.0]
    told = ToldKeys(lambda: now[0])
    told.complete([b"key"])
    assert b"key" in told
    now[0] = TOLD_S
    assert b"key" not in told


def test_both_roles_share_one_pool_until_both_are_shut_down(disk: SimDisk) -> None:
    engine = Halves(disk.path)
    pool = engine.worker._worker._opened.pool
    assert pool == engine.scheduler._scheduler._opened.pool
    engine.worker.shutdown()
    assert not engine.scheduler._scheduler._opened.pool.closed
    engine.scheduler.shutdown()
    assert engine.scheduler._scheduler._opened.pool.closed


@pytest.mark.parametrize(
    ("parallel", "said"),
    [
        ({"world_size": 2, "tensor_parallel_size": 2}, "2 workers open one pool"),
        ({"data_parallel_size": 2}, "2 data parallel engines open one pool"),
        ({"distributed_executor_backend": "mp"}, "of the executor 'mp', open one pool"),
    ],
    ids=str,
)
def test_an_engine_of_several_processes_is_refused_in_owner_mode(
    parallel: dict[str, Any], said: str, make_pool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = vllm_config({"path": make_pool(), "revision": "r1"}, **parallel)
    with caplog.at_level(logging.ERROR, logger="vllm.kvstore"):
        for role in KVConnectorRole:
            with pytest.raises(ConfigError, match=said):
                KVStoreConnector(config, role, cache_config(1))
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 2
    assert all('mode must be "shared"' in error and "\n" not in error for error in errors)


def test_what_vllm_asks_of_the_class() -> None:
    assert supports_hma(KVStoreConnector)
    assert KVStoreConnector.requires_piecewise_for_cudagraph({"layerwise": True})
    assert not KVStoreConnector.requires_piecewise_for_cudagraph({})


def test_delivery_is_not_required_and_ranks_have_spaces_of_their_own(halves: Any) -> None:
    engine = halves()
    assert engine.worker.requires_kv_delivery is False
    opened = engine.worker._worker._opened
    identities = [opened.space(0, "").identity, opened.space(1, "").identity]
    assert [identity.pop("rank") for identity in identities] == [0, 1]
    assert identities[0] == identities[1]
    assert (identities[0]["door"], identities[0]["portable"]) == ("connector", False)
