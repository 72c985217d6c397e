# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: what only a cache in GPU memory has: order with the engine's stream in both directions, extents that are given
back exactly once, failures of CUDA that are a miss, other layouts.

Method: the fake GPU (tests/fakes), whose streams are stopped by gates and run late. What every transfer does is in
test_transfer.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gpu_support import FakeGpu
from transfer_support import BLOCKS, KEYS, LAYER_BYTES, LAYERS, Cached, places

import kvstore
from kvstore._device_transfer import DeviceTransfer
from kvstore._transfer import Block, HostTransfer, Region
from kvstore.errors import ConfigError
from kvstore.gpu import DeviceExtents, OwnStream, PagedCache, StreamMark
from kvstore.testing import SimDisk

Make = Callable[..., Cached]
WAYS = ["extents", "few", "straight"]


@pytest.fixture
def make(disk: SimDisk, gpu: FakeGpu) -> Iterator[Make]:
    made: list[Cached] = []

    def one(way: str = "extents", **settings: Any) -> Cached:
        made.append(Cached(disk.path, way, gpu, **settings))
        return made[-1]

    yield one
    for cached in made:
        cached.close()


def device_transfer(cached: Cached) -> DeviceTransfer:
    assert isinstance(cached.transfer, DeviceTransfer)
    return cached.transfer


def all_free(cached: Cached) -> bool:
    extents = device_transfer(cached)._extents
    return extents is None or extents.free == extents.count


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


# ---- order ----


@pytest.mark.parametrize("way", WAYS)
def test_a_store_takes_the_bytes_that_the_engine_is_still_computing(make: Make, gpu: FakeGpu, way: str) -> None:
    cached = make(way)
    cached.fill(3)
    cached.fill(7)
    gate = gpu.lib.fake_cuda_gate(cached.stream)
    cached.array.fill_on(cached.stream, 0x5A)
    began = time.monotonic()
    cached.transfer.store(1, places(3, 7))
    assert time.monotonic() - began < 5
    assert cached.transfer.poll() == []
    gpu.lib.fake_cuda_open_gate(gate)
    assert cached.ended(1) == [True, True]
    out = bytearray(len(LAYERS) * LAYER_BYTES)
    for key in KEYS:
        assert cached.space.get(key, out) == len(out)
        assert set(out) == {0x5A}


@pytest.mark.parametrize("way", WAYS)
def test_a_load_touches_the_cache_only_when_the_engine_has_come_to_it(make: Make, gpu: FakeGpu, way: str) -> None:
    cached = make(way)
    cached.store([3, 7])
    before = cached.layers[:, [11, 0]].copy()
    gate = gpu.lib.fake_cuda_gate(cached.stream)  # the engine still computes with what the blocks hold
    cached.transfer.load(2, places(11, 0))
    if way == "extents":  # reads do not wait for the engine, what they change does
        until(lambda: cached.pool.stats()["bytes_got"] == 2 * len(LAYERS) * LAYER_BYTES)
    assert cached.transfer.poll() == []
    assert (cached.layers[:, [11, 0]] == before).all()
    gpu.lib.fake_cuda_open_gate(gate)
    assert cached.ended(2) == [True, True]
    assert cached.same([11, 0], [3, 7])


def test_reads_do_not_wait_for_the_engine_however_many_there_are(make: Make, gpu: FakeGpu) -> None:
    cached = make()
    cached.store([3, 7])
    gate = gpu.lib.fake_cuda_gate(cached.stream)
    for tag in range(2, 14):  # more than there are lanes
        cached.transfer.load(tag, places(tag, 15)[:1])
    until(lambda: cached.pool.stats()["bytes_got"] == 12 * len(LAYERS) * LAYER_BYTES)
    assert cached.transfer.poll() == []
    gpu.lib.fake_cuda_open_gate(gate)
    cached.transfer.wait(range(2, 14))
    assert all(done.good == [True] for done in cached.transfer.poll())
    assert all(cached.same([number], [3]) for number in range(2, 14))


@pytest.mark.parametrize("way", ["extents", "straight"])
def test_a_layer_is_waited_for_by_the_engines_stream_and_not_by_the_host(
    make: Make, gpu: FakeGpu, disk: SimDisk, way: str
) -> None:
    cached = make(way, by_layer=True)
    cached.store([3, 7])
    disk.fault("stuck", op="read", times=1)
    cached.transfer.load_by_layer(2, places(11, 0))
    for layer in LAYERS:
        cached.transfer.wait_layer(layer)  # returns while the device is stuck
    mark = StreamMark(0, cached.stream)
    until(lambda: disk.stuck_count > 0)
    assert not mark.has_happened()
    disk.release_stuck()
    until(mark.has_happened)
    assert cached.same([11, 0], [3, 7])
    assert cached.ended(2) == [True, True]


# ---- extents ----


@pytest.mark.parametrize("load", ["load", "load_by_layer"])
def test_jobs_that_find_no_extent_wait_in_order_and_all_end(make: Make, gpu: FakeGpu, load: str) -> None:
    cached = make("few", by_layer=True)
    cached.store([3, 7])
    gate = gpu.lib.fake_cuda_gate(cached.stream)
    for tag in (2, 3):
        getattr(cached.transfer, load)(tag, places(2 * tag + 4, 2 * tag + 5))
    assert cached.transfer.poll() == []
    assert not all_free(cached)
    gpu.lib.fake_cuda_open_gate(gate)
    cached.transfer.wait([3])
    assert [done.tag for done in cached.transfer.poll()] == [2, 3]
    assert cached.same([8, 9, 10, 11], [3, 7, 3, 7])
    assert all_free(cached)


def test_an_extent_is_never_given_back_twice(gpu: FakeGpu) -> None:
    extents = DeviceExtents(0, 1000, 200_000)
    assert (extents.count, extents.nbytes) == (3, 3 * 65536)
    taken = [extents.take() for _ in range(3)]
    assert None not in taken
    assert extents.take() is None
    assert all(address is not None and address % 65536 == 0 for address in taken)
    assert isinstance(taken[0], int)
    extents.give_back(taken[0])
    with pytest.raises(ValueError, match="is not taken"):
        extents.give_back(taken[0])
    with pytest.raises(ConfigError, match="give 65,536 or more"):
        DeviceExtents(0, 1000, 65535)


def test_a_close_that_cannot_wait_longer_says_so_and_keeps_the_memory(make: Make, gpu: FakeGpu) -> None:
    cached = make()
    cached.store([3, 7])
    gate = gpu.lib.fake_cuda_gate(cached.stream)
    cached.transfer.load(2, places(11, 0))
    assert not cached.transfer.close(0.05)
    assert device_transfer(cached).owner is not None
    gpu.lib.fake_cuda_open_gate(gate)
    assert cached.ended(2) == [True, True]


# ---- failures ----

KINDS = ["store", "load", "load_by_layer"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", [b"cuLaunchKernel", b"cuMemcpyBatchAsync_v2"])
def test_a_transfer_that_cuda_refuses_is_reported_and_the_next_one_works(
    make: Make, gpu: FakeGpu, kind: str, function: bytes
) -> None:
    cached = make(by_layer=True)
    if kind != "store":
        cached.store([3, 7])
    # Of the two the one that this build moves with.
    gpu.lib.fake_cuda_fail(function, 1, 0, 1)
    for tag in (2, 3):
        getattr(cached.transfer, kind)(tag, places(11, 0))
        good = cached.ended(tag)
        assert all_free(cached)
    assert good == [True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_of_cuda_names_the_call(make: Make, gpu: FakeGpu, kind: str) -> None:
    cached = make(by_layer=True)
    cached.store([3, 7])
    for function in (b"cuLaunchKernel", b"cuMemcpyBatchAsync_v2"):
        gpu.lib.fake_cuda_fail(function, 1, 0, 1)
    getattr(cached.transfer, kind)(2, places(11, 0))
    cached.transfer.wait([2])
    (done,) = cached.transfer.poll()
    assert done.good == [False, False]
    assert "CUDA_ERROR_INVALID_VALUE" in str(done.results[0].error)
    assert all_free(cached)


def test_a_context_that_is_gone_makes_every_block_bad_and_ends(make: Make, gpu: FakeGpu) -> None:
    cached = make()
    cached.store([3, 7])
    gate = gpu.lib.fake_cuda_gate(cached.stream)
    cached.transfer.load(2, places(11, 0))
    gpu.lib.fake_cuda_break(719)
    gpu.lib.fake_cuda_open_gate(gate)
    assert cached.ended(2) == [False, False]
    with pytest.raises(kvstore.KvStoreError, match="719"):
        cached.transfer.load(3, places(11, 0))
    assert cached.transfer.poll() == []
    gpu.lib.fake_cuda_break(0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_that_the_cache_has_not_is_refused_before_anything_is_moved(make: Make, kind: str) -> None:
    cached = make()
    for number in (BLOCKS, -1):
        with pytest.raises(ConfigError, match="the cache has 0 to 15"):
            getattr(cached.transfer, kind)(2, places(number, 0))
    assert cached.transfer.poll() == []
    assert all_free(cached)


# ---- layouts ----


def test_what_one_transfer_stored_another_loads(make: Make) -> None:
    cached = make("extents")
    cached.store([3, 7])
    host = np.zeros((len(LAYERS), 2, LAYER_BYTES), dtype=np.uint8)
    regions = [
        Region((name,), int(host[number].ctypes.data), LAYER_BYTES, LAYER_BYTES, 2)
        for number, name in enumerate(LAYERS)
    ]
    other = HostTransfer(cached.space, {0: regions}, host)
    other.load(1, places(0, 1))
    other.wait([1])
    assert other.poll()[0].good == [True, True]
    assert (host == cached.layers[:, [3, 7]]).all()
    assert other.close(10)


def test_the_way_of_a_group_follows_from_the_length_of_its_parts(make: Make) -> None:
    cached = make("extents")
    transfer = device_transfer(cached)
    assert transfer.ways == {0: "extents"}
    one = cached.regions[0]
    odd = [region._replace(address=region.address + 8, blocks=15) for region in cached.regions]
    for regions, way in [([one], "straight"), (odd, "straight"), (cached.regions[:2], "extents")]:
        again = cached.again(regions)
        assert isinstance(again, DeviceTransfer)
        assert again.ways == {0: way}
        assert again.extents_bytes == (0 if way == "straight" else 1 << 20)
        assert again.close(1)


def test_groups_of_other_sizes_share_the_extents_and_a_job(make: Make, gpu: FakeGpu) -> None:
    cached = make()
    half = [region._replace(nbytes=LAYER_BYTES // 2) for region in cached.regions[:2]]
    mixed = [half[0], cached.regions[2]]  # of two sizes: two kernels move a block
    transfer = DeviceTransfer(
        cached.space,
        {0: cached.regions, 1: half, 2: mixed, 3: cached.regions[:1]},
        stream=lambda: cached.stream,
        extents_bytes=3 << 16,
    )
    for number in range(BLOCKS):
        cached.fill(number)
    blocks = [Block(b"%d of %d" % (number, group), group, number) for group in range(4) for number in range(2)]
    transfer.store(1, blocks)
    transfer.wait([1])
    assert transfer.poll()[0].good == [True] * 8
    for block in blocks:
        out = bytearray(transfer.block_bytes(block.group))
        assert cached.space.get(block.key, out) == len(out)
        regions = {0: cached.regions, 1: half, 2: mixed, 3: cached.regions[:1]}[block.group]
        parts = [cached.layers[LAYERS.index(one.layers[0]), block.number, : one.nbytes].tobytes() for one in regions]
        assert bytes(out) == b"".join(parts)
    was = cached.layers[:, :2].copy()
    cached.layers[:, :2] = 0
    transfer.load(2, blocks)
    transfer.wait([2])
    assert transfer.poll()[0].good == [True] * 8
    assert (cached.layers[:, :2] == was).all()
    assert transfer.close(10)


def test_the_gpus_memory_that_blocks_cannot_take_is_named(make: Make) -> None:
    cached = make()
    with pytest.raises(ConfigError, match="65,535 bytes of GPU memory for extents of 24,576"):
        DeviceTransfer(cached.space, {0: cached.regions}, stream=lambda: cached.stream, extents_bytes=65535)
    host = np.zeros(64, dtype=np.uint8)
    with pytest.raises(ConfigError):
        DeviceTransfer(
            cached.space, {0: [Region(("a",), int(host.ctypes.data), 16, 16, 4)]}, stream=lambda: cached.stream
        )


# ---- PagedCache ----


@pytest.mark.parametrize("heads_first", [False, True])
def test_a_cache_by_strides_is_gathered_and_scattered(gpu: FakeGpu, heads_first: bool) -> None:
    layers, blocks, tokens, heads, head_bytes = 2, 6, 4, 2, 64
    shape = (layers, blocks, 2, *((heads, tokens) if heads_first else (tokens, heads)), head_bytes)
    array = gpu.array(np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8))
    there = array.host_view().reshape(shape)
    strides = there.strides
    cache = PagedCache(
        [array.pointer + layer * strides[0] + kv * strides[2] for layer in range(layers) for kv in range(2)],
        cache_blocks=blocks,
        block_tokens=tokens,
        heads=heads,
        head_bytes=head_bytes,
        block_stride=strides[1],
        token_stride=strides[4] if heads_first else strides[3],
        head_stride=strides[3] if heads_first else strides[4],
    )
    assert cache.run_bytes == (head_bytes if heads_first else tokens * heads * head_bytes)
    stream = OwnStream(0)
    nbytes = cache.extent_bytes(7)  # the last block is a partial one
    extent = gpu.array(np.zeros(nbytes, dtype=np.uint8))
    cache.gather([(extent.pointer, nbytes)], [[4, 1]], tokens=[7], stream=stream)
    gpu.synchronize(stream.ptr)
    in_order = np.swapaxes(there, 3, 4) if heads_first else there
    taken = np.concatenate([in_order[:, 4], in_order[:, 1]], axis=2)[:, :, :7]
    assert extent.host_view().tobytes() == np.ascontiguousarray(taken).tobytes()
    # A block that is there already is left out, and so is a layer.
    was = there.copy()
    cache.scatter([(extent.pointer, nbytes)], [[0, None]], tokens=[7], layers=(1, 1), stream=stream)
    gpu.synchronize(stream.ptr)
    assert (there[1, 0] == was[1, 4]).all()
    there[1, 0] = was[1, 0]
    assert (there == was).all()


def test_without_kernels_copies_move_the_same(gpu: FakeGpu) -> None:
    gpu.lib.fake_cuda_fail(b"cuModuleLoadData", 209, 0, 1)  # as a driver does that is older than the toolkit
    array = gpu.array(np.random.default_rng(2).integers(0, 256, (4, 64), dtype=np.uint8), device=1)
    there = array.host_view().reshape(4, 64).copy()
    cache = PagedCache([array.pointer], kv_count=1, cache_blocks=4, head_bytes=64, block_stride=64)
    stream = OwnStream(1)
    assert cache.kernels_missing
    assert cache.way(stream) == "copy_batch"
    extent = gpu.array(np.zeros(128, dtype=np.uint8), device=1)
    cache.gather([(extent.pointer, 64), (extent.pointer + 64, 64)], [[3], [1]], stream=stream)
    gpu.synchronize(stream.ptr, device=1)
    assert (extent.host_view().reshape(2, 64) == there[[3, 1]]).all()
    cache.scatter([(extent.pointer, 64)], [[0]], stream=stream)
    gpu.synchronize(stream.ptr, device=1)
    assert (array.host_view().reshape(4, 64)[0] == there[3]).all()


def test_a_transfer_that_would_miss_the_cache_is_refused(gpu: FakeGpu) -> None:
    array = gpu.array(np.zeros((4, 4096), dtype=np.uint8))
    cache = PagedCache([array.pointer], kv_count=1, cache_blocks=4, head_bytes=4096, block_stride=4096)
    extent = gpu.array(np.zeros(4096, dtype=np.uint8))
    for extents, blocks, message in [
        ([(extent.pointer, 4096)], [[4]], "the cache has 0 to 3"),
        ([(extent.pointer, 4095)], [[1]], "take 4096"),
        ([(extent.pointer + 8, 4096)], [[1]], "aligned to 16"),
        ([(extent.pointer, 4096)], [[1], [2]], "give as many of each"),
    ]:
        with pytest.raises(ConfigError, match=message):
            cache.gather(extents, blocks, stream=2)
    with pytest.raises(ConfigError, match="written twice"):
        cache.scatter([(extent.pointer, 4096)] * 2, [[1], [1]], stream=2)
    with pytest.raises(TypeError, match="stream is None"):
        cache.way(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not a multiple of 16"):
        PagedCache([array.pointer], kv_count=1, cache_blocks=4, head_bytes=4088, block_stride=4096)
