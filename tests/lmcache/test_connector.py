# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the in-process connector keeps the contract of LMCache's RemoteBackend, and what it hands out is what was put.

Method: LMCache's own RemoteBackend, instrumented connector, CPU backend and event loop; every test ends with the CPU
memory it began with.
"""

from __future__ import annotations

import asyncio

import pytest
import torch
from lmcache.utils import CacheEngineKey, LayerCacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache_engine import (
    CHUNK,
    CPU_BYTES,
    Engine,
    bytes_of,
    config,
    content,
    engine,
    key_of,
    metadata,
)
from lmcache_helpers import eventually


def check(found, number, like=None):
    """Assert that an object has the content of ``number``, and drop it."""
    assert found is not None
    assert torch.equal(bytes_of(found), content(number, found.get_size()))
    if like is not None:
        assert found.get_memory_format() == like.get_memory_format()
        assert found.get_shapes() == like.get_shapes()
        assert found.get_dtypes() == like.get_dtypes()
    found.ref_count_down()


@pytest.mark.parametrize(("groups", "mla"), [(1, False), (2, False), (4, False), (1, True)], ids=["1", "2", "4", "mla"])
@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_whole_and_partial_chunks_come_back_as_they_were(pool_path, groups, mla, restart):
    keys = [key_of(i) for i in range(3)]
    meta = metadata(groups=groups, mla=mla)
    tokens = [CHUNK, CHUNK, 5]
    with engine(pool_path, meta) as first:
        likes = [first.object_of(i, tokens[i]) for i in range(3)]
        for obj in likes:
            obj.ref_count_up()
        first.put(keys, likes)
        shapes = [(obj.get_memory_format(), obj.get_shapes(), obj.get_dtypes()) for obj in likes]
        if not restart:
            for i, found in enumerate(first.backend.batched_get_blocking(keys)):
                check(found, i, likes[i])
        for obj in likes:
            obj.ref_count_down()
        assert first.used_bytes() == 0
    if restart:
        with engine(pool_path, metadata(groups=groups, mla=mla)) as second:
            assert second.backend.batched_contains(keys) == 3
            for i, found in enumerate(second.backend.batched_get_blocking(keys)):
                assert (found.get_memory_format(), found.get_shapes(), found.get_dtypes()) == shapes[i]
                check(found, i)
            assert second.used_bytes() == 0


def test_kv_layer_groups_may_be_registered_after_the_connector_is_made(pool_path):
    meta = metadata()
    with engine(pool_path, meta) as made:
        assert made.backend.batched_contains([key_of(0)]) == 0
        meta.kv_layer_groups_manager = metadata(groups=2).kv_layer_groups_manager
        made.put([key_of(0)], [made.object_of(0)])
        check(made.backend.get_blocking(key_of(0)), 0)


def test_contains_counts_the_leading_run(pool_path):
    with engine(pool_path) as made:
        keys = [key_of(i) for i in range(5)]
        made.put([keys[0], keys[1], keys[3]], [made.object_of(i) for i in (0, 1, 3)])
        assert made.backend.batched_contains(keys) == 2
        assert made.run(made.backend.batched_async_contains("lookup", keys, pin=True)) == 2
        assert [made.backend.contains(key) for key in keys] == [True, True, False, True, False]
        assert made.connector.exists_sync(keys[3])
        assert made.backend.batched_contains([]) == 0


def test_all_ways_to_get(pool_path):
    with engine(pool_path) as made:
        keys = [key_of(i) for i in range(4)]
        made.put([keys[0], keys[1], keys[3]], [made.object_of(i) for i in (0, 1, 3)])
        found = made.backend.batched_get_blocking(keys)
        assert [obj is None for obj in found] == [False, False, True, False]
        for i in (0, 1, 3):
            check(found[i], i)
        prefix = made.run(made.backend.batched_get_non_blocking("lookup", keys))
        assert len(prefix) == 2
        for i, obj in enumerate(prefix):
            check(obj, i)
        check(made.backend.get_blocking(keys[3]), 3)
        assert made.backend.get_blocking(keys[2]) is None
        assert made.run(made.backend.batched_get_non_blocking("lookup", [keys[2], keys[3]])) == []
        assert made.used_bytes() == 0


def test_the_single_put_path_keeps_reference_counts_right(pool_path):
    with engine(pool_path) as made:
        obj = made.object_of(1)
        future = made.backend.submit_put_task(key_of(1), obj)
        future.result(10)
        eventually(lambda: obj.get_ref_count() == 1)
        obj.ref_count_down()
        assert made.used_bytes() == 0
        check(made.backend.get_blocking(key_of(1)), 1)


def test_a_second_put_of_a_key_is_fine_and_the_first_value_wins(pool_path):
    with engine(pool_path) as made:
        made.put([key_of(1)], [made.object_of(1)])
        made.put([key_of(1), key_of(2)], [made.object_of(9), made.object_of(2)])
        check(made.backend.get_blocking(key_of(1)), 1)
        check(made.backend.get_blocking(key_of(2)), 2)


def test_remove_list_and_ping(pool_path):
    with engine(pool_path) as made:
        keys = [key_of(i, request_configs={"lmcache.tag.user": f"u{i}"}) for i in range(3)]
        made.put(keys, [made.object_of(i) for i in range(3)])
        made.connector._pool.flush()
        assert sorted(made.run(made.connector.list())) == sorted(key.to_string() for key in keys)
        assert CacheEngineKey.from_string(keys[0].to_string()) in keys
        assert made.backend.remove(keys[0])
        assert not made.backend.remove(keys[0])
        assert [made.backend.contains(key) for key in keys] == [False, True, True]
        assert made.connector.support_ping()
        assert made.run(made.connector.ping()) == 0


@pytest.mark.parametrize(
    "other",
    [
        key_of(1, model="other"),
        key_of(1, worker=1, world=2),
        key_of(1, world=2),
        key_of(2),
        key_of(1, request_configs={"lmcache.tag.user": "alice"}),
        CacheEngineKey("test/model", 1, 0, -(10**18) + 1, torch.float16),
        LayerCacheEngineKey("test/model", 1, 0, -(10**18) + 1, torch.bfloat16, None, 0),
    ],
    ids=["model", "worker", "world", "hash", "tag", "dtype", "layer"],
)
def test_a_change_of_any_part_of_the_key_is_a_miss(pool_path, other):
    with engine(pool_path) as made:
        made.put([key_of(1)], [made.object_of(1)])
        assert made.backend.contains(key_of(1))
        assert not made.backend.contains(other)


@pytest.mark.parametrize(
    "changed",
    [
        {"meta": metadata(groups=2)},
        {"meta": metadata(kv_dtype=torch.float16)},
        {"meta": metadata(chunk_size=32)},
        {"meta": metadata(mla=True)},
        {"settings": {"identity": {"revision": "b"}}},
        {"settings": {}},
    ],
    ids=["groups", "dtype", "chunk", "mla", "revision", "no revision"],
)
def test_a_change_of_layout_or_identity_is_a_miss(pool_path, changed):
    settings = {"identity": {"revision": "a"}}
    with engine(pool_path, settings=settings) as made:
        made.put([key_of(1)], [made.object_of(1)])
    with engine(pool_path, **{"settings": settings, **changed}) as made:
        assert not made.backend.contains(key_of(1))
        assert made.run(made.connector.list()) == [] or "settings" not in changed
    with engine(pool_path, settings=settings) as made:
        assert made.backend.contains(key_of(1))


@pytest.mark.parametrize("chunk_hash", [0, -1, 1, 2**63, -(2**63), 2**255, b"\x00" * 32, b"x"])
def test_every_kind_of_hash_is_a_key(pool_path, chunk_hash):
    with engine(pool_path) as made:
        key = key_of(0, chunk_hash=chunk_hash)
        made.put([key], [made.object_of(3)])
        check(made.backend.get_blocking(key), 3)
        made.connector._pool.flush()
        assert made.run(made.connector.list()) == [key.to_string()]


def test_layers_are_objects_of_their_own(pool_path):
    with engine(pool_path, use_layerwise=True) as made:
        keys = key_of(1).split_layers(3)
        objects = []
        for number in range(3):
            obj = made.cpu.allocate(torch.Size([7, 2, 128]), torch.bfloat16, MemoryFormat.KV_T2D)
            bytes_of(obj).copy_(content(number, obj.get_size()))
            objects.append(obj)
        made.put(keys, objects)
        for number, found in enumerate(made.backend.batched_get_blocking(keys)):
            assert found.get_shape() == torch.Size([7, 2, 128])
            assert found.get_memory_format() is MemoryFormat.KV_T2D
            check(found, number)
        assert not made.backend.contains(key_of(1))


def test_serialized_bytes_of_any_length_come_back(pool_path):
    from lmcache.v1.memory_management import BytesBufferMemoryObj

    made_config = config(pool_path)
    made_config.remote_serde = "cachegen"
    with engine(pool_path) as plain:
        connector_class = type(plain.connector)
        made = connector_class(plain.loop, plain.cpu, made_config, metadata(), "kvstore")
        payload = bytes(range(256)) * 5 + b"tail"
        plain.run(made.put(key_of(1), BytesBufferMemoryObj(payload)))
        found = plain.run(made.get(key_of(1)))
        assert bytes(found.byte_array) == payload
        plain.run(made.close())


def test_an_object_of_another_layout_is_not_stored(pool_path):
    with engine(pool_path) as made:
        odd = made.cpu.allocate(torch.Size([3, 5]), torch.float32, MemoryFormat.KV_2LTD)
        made.put([key_of(1), key_of(2)], [odd, made.object_of(2)])
        assert [made.backend.contains(key_of(i)) for i in (1, 2)] == [False, True]
        assert made.used_bytes() == 0


def test_meta_names_layout_and_tokens(pool_path):
    from kvstore.lmcache.layout import Layout, unpack_meta

    with engine(pool_path) as made:
        made.put([key_of(1)], [made.object_of(1, 5)])
        made.connector._pool.flush()
        (block,) = made.connector._pool.blocks()
        index, tokens = unpack_meta(block.meta)
        layout = Layout.parse(block.space["layouts"][index])
        assert (str(layout), tokens) == ("KV_2LTD bfloat16[2,4,T,128]", 5)
        assert block.nbytes == 5 * layout.token_bytes
        assert block.space["kv_dtype"] == "bfloat16"


def test_chain_positions_are_learnt_from_lookups(pool_path):
    with engine(pool_path) as made:
        keys = [key_of(i) for i in range(6)]
        made.backend.batched_contains(keys)
        made.backend.batched_contains(keys[3:])  # the rest, when LMCache has the start in RAM
        made.put([keys[4], keys[2]], [made.object_of(4), made.object_of(2)])
        made.connector._pool.flush()
        assert sorted(block.depth for block in made.connector._pool.blocks()) == [2, 4]


def test_full_cpu_memory_is_a_miss_and_blocks_nothing(pool_path):
    with engine(pool_path) as made:
        keys = [key_of(i) for i in range(3)]
        made.put(keys, [made.object_of(i) for i in range(3)])
        size = made.metadata.get_shapes(CHUNK)[0].numel() * 2
        hog = made.cpu.allocate(torch.Size([CPU_BYTES - 2 * size]), torch.uint8, MemoryFormat.KV_2LTD)
        found = made.backend.batched_get_blocking(keys)
        assert [obj is None for obj in found] == [False, False, True]
        for i in range(2):
            check(found[i], i)
        hog.ref_count_down()
        check(made.backend.get_blocking(keys[2]), 2)
        assert made.used_bytes() == 0


def three_stored(made):
    keys = [key_of(i) for i in range(3)]
    made.put(keys, [made.object_of(i) for i in range(3)])
    return keys


def test_a_load_over_the_time_limit_is_a_miss_and_leaks_nothing(disk):
    with engine(disk.path, blocking_timeout_secs=1) as made:
        keys = three_stored(made)
        disk.hold(made.connector._pool)
        assert made.backend.batched_get_blocking(keys) == [None] * 3
        assert made.used_bytes() > 0  # the device may still write there
        disk.let_go()
        eventually(lambda: made.used_bytes() == 0)
        for i, found in enumerate(made.backend.batched_get_blocking(keys)):
            check(found, i)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_cancelled_load_gives_its_buffers_back_when_the_device_is_done(disk, when):
    with engine(disk.path, blocking_timeout_secs=30) as made:
        keys = three_stored(made)
        disk.hold(made.connector._pool)
        future = asyncio.run_coroutine_threadsafe(made.connector.batched_get(keys), made.loop)
        disk.wait_for_held()
        if when == "after":
            made.loop.call_soon_threadsafe(disk.let_go)
        future.cancel()
        disk.let_go_after(0.1)
        eventually(lambda: made.used_bytes() == 0)


def test_close_with_a_load_in_flight_waits_for_it(disk):
    with engine(disk.path, blocking_timeout_secs=30) as made:
        keys = three_stored(made)
        disk.hold(made.connector._pool)
        future = asyncio.run_coroutine_threadsafe(made.connector.batched_get(keys), made.loop)
        disk.wait_for_held()
        disk.let_go_after(0.5)
        made.run(made.connector.close())
        assert not disk.holds
        for obj in future.result(10):
            if obj is not None:
                obj.ref_count_down()
        assert made.used_bytes() == 0


def test_two_instances_on_two_pools(make_pool):
    paths = {name: make_pool(name=f"{name}.img") for name in ("a", "b")}
    with engine(paths["a"], name="kvstore.a") as first, engine(paths["b"], name="kvstore.b") as second:
        first.put([key_of(1)], [first.object_of(1)])
        assert first.backend.contains(key_of(1))
        assert not second.backend.contains(key_of(1))


def test_mla_ranks_share_what_rank_0_stored(pool_path):
    with engine(pool_path, metadata(mla=True, world_size=2, worker_id=0)) as made:
        made.put([key_of(1, world=2)], [made.object_of(1)])
    with engine(pool_path, metadata(mla=True, world_size=2, worker_id=1)) as made:
        key = key_of(1, world=2, worker=1)
        assert made.backend.contains(key)
        check(made.backend.get_blocking(key), 1)


def test_the_legacy_external_url(pool_path):
    url = f"external://localhost:0/kvstore.lmcache/?connector_name=KVStoreConnector&path={pool_path}&identity.rev=a"
    made_config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK, local_cpu=False, max_local_cpu_size=0.1, remote_url=url, remote_serde="naive"
    )
    made = Engine(made_config, metadata(), plugin_name=None)
    try:
        made.put([key_of(1)], [made.object_of(1)])
        check(made.backend.get_blocking(key_of(1)), 1)
        made.connector._pool.flush()
        (block,) = made.connector._pool.blocks()
        assert block.space["rev"] == "a"
    finally:
        made.close()


def test_paths_may_name_the_rank(make_pool, tmp_path):
    path = make_pool(name="pool-3.img")
    with engine(str(tmp_path / "pool-{worker_id}.img"), metadata(world_size=4, worker_id=3)) as made:
        assert made.connector._door.path == (path,)


def test_a_bad_setting_is_named_and_the_engine_goes_on_without(pool_path, caplog):
    with engine(pool_path, settings={"verify": "sometimes"}) as made:
        assert made.backend.connection is None
        assert made.backend.batched_contains([key_of(1)]) == 0
