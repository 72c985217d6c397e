# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: blocks of a paged KV cache come back in other places, whole or layer by layer, and what is wrong is named: the
same for every :class:`kvstore._transfer.Transfer`.

Method: a cache of a few layers in host memory, and in the memory of a fake GPU (tests/fakes) by each of its ways, and
the real store on a simulated disk. GPU memory has no other way yet than by host memory: ``bytes_bounced`` counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from transfer_support import KEYS, LAYER_BYTES, LAYERS, WAYS, Cached, places

import kvstore
from kvstore.errors import ConfigError
from kvstore.testing import SimDisk

Make = Callable[..., Cached]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(request: pytest.FixtureRequest, disk: SimDisk, way: str) -> Iterator[Make]:
    made: list[Cached] = []

    def one(**settings: Any) -> Cached:
        gpu = None if way == "host" else request.getfixturevalue("gpu")
        made.append(Cached(disk.path, way, gpu, **settings))
        return made[-1]

    yield one
    for cached in made:
        cached.close()


@pytest.fixture
def cached(make: Make) -> Cached:
    return make(by_layer=True)


def test_blocks_come_back_in_other_places(cached: Cached) -> None:
    cached.store([3, 7])
    cached.transfer.load(2, places(11, 0))
    assert cached.ended(2) == [True, True]
    assert cached.same([11, 0], [3, 7])
    assert cached.untouched_but({3, 7, 11, 0})


def test_the_bytes_of_a_gpu_are_counted(cached: Cached, way: str) -> None:
    cached.store([3, 7])
    cached.transfer.load(2, places(11, 0))
    assert cached.ended(2) == [True, True]
    moved = 0 if way == "host" else 2 * 2 * len(LAYERS) * LAYER_BYTES
    assert cached.pool.stats()["bytes_bounced"] == moved


def test_a_layer_is_there_when_it_was_waited_for_and_read_by_itself(cached: Cached) -> None:
    cached.store([3, 7])
    cached.transfer.load_by_layer(2, places(11, 0))
    for number, layer in enumerate(LAYERS):
        cached.transfer.wait_layer(layer)
        cached.come_to_here()
        assert cached.same([11, 0], [3, 7], layer=number)
    assert cached.ended(2) == [True, True]
    # Parts are verified alone: the payload was read once, with its page hashes, and not once for each layer.
    assert cached.pool.stats()["bytes_got"] == 2 * len(LAYERS) * LAYER_BYTES
    assert cached.pool.stats()["bytes_read_payload"] < 2 * 2 * len(LAYERS) * LAYER_BYTES


@pytest.mark.parametrize("layer", range(len(LAYERS)))
def test_a_block_is_bad_when_one_of_its_layers_cannot_be_read(cached: Cached, disk: SimDisk, layer: int) -> None:
    cached.store([3, 7])
    block = cached.space.describe(KEYS[:1])[0]
    assert block is not None
    first = block.offset_bytes + layer * LAYER_BYTES
    disk.fault("error", op="read", first_byte=first, last_byte=first + LAYER_BYTES - 1, times=1000)
    cached.transfer.load_by_layer(2, places(11, 0))
    assert cached.ended(2) == [False, True]
    cached.transfer.load(3, places(11, 0))
    assert cached.ended(3) == [False, True]
    assert cached.same([0], [7])


def test_a_block_that_is_not_there_is_bad(cached: Cached) -> None:
    for tag, load in enumerate([cached.transfer.load, cached.transfer.load_by_layer]):
        load(tag, places(11, 0))
        assert cached.ended(tag) == [False, False]


def test_several_jobs_end_each_once_and_with_their_own_bytes(cached: Cached) -> None:
    cached.store([3, 7])
    for tag in range(2, 8):
        (cached.transfer.load if tag % 2 else cached.transfer.load_by_layer)(tag, places(2 * tag, 2 * tag + 1))
    cached.transfer.wait(range(2, 8))
    done = cached.transfer.poll()
    assert sorted(one.tag for one in done) == list(range(2, 8))
    assert all(one.good == [True, True] for one in done)
    assert all(cached.same([2 * tag, 2 * tag + 1], [3, 7]) for tag in range(2, 8))
    assert cached.transfer.poll() == []


@pytest.mark.parametrize("load", ["load", "load_by_layer"])
def test_a_load_that_is_refused_leaves_nothing_behind(make: Make, load: str) -> None:
    cached = make(by_layer=True)
    cached.store([3, 7])
    cached.pool.close()
    with pytest.raises(kvstore.ClosedError):
        getattr(cached.transfer, load)(2, places(11, 0))
    assert cached.transfer.poll() == []
    assert cached.transfer.close(1)


def test_a_store_on_a_closed_pool_is_refused_or_reported(make: Make) -> None:
    cached = make()
    cached.pool.close()
    try:
        cached.transfer.store(1, places(3, 7))
    except kvstore.ClosedError:
        assert cached.transfer.poll() == []
    else:
        assert cached.ended(1) == [False, False]
    assert cached.transfer.close(10)


def test_a_layout_that_has_blocks_in_pieces_is_refused(cached: Cached) -> None:
    (region, *_) = cached.regions
    with pytest.raises(ConfigError, match=r"VLLM_KV_CACHE_LAYOUT|overlap"):
        cached.again([region._replace(stride=4096)])
    with pytest.raises(ConfigError, match="513 parts"):
        cached.again([region._replace(address=region.address + 8)] * 513)
