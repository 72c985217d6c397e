# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: blocks of a paged KV cache come back in other places, whole or layer by layer, and what is wrong is named.

Method: a cache of a few layers in host memory, and the real store on a simulated disk.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import kvstore
from kvstore._transfer import Block, HostTransfer, Region
from kvstore.errors import ConfigError
from kvstore.testing import SimDisk

LAYERS = ["a", "b", "c"]
LAYER_BYTES = 8192
KEYS = [b"key-1", b"key-2"]


class Cached:
    """A cache with a transfer between it and a pool."""

    def __init__(self, path: str, **settings: bool) -> None:
        self.pool = kvstore.open(path)
        self.space = self.pool.space(engine="test", model="none")
        self.layers = np.zeros((len(LAYERS), 16, LAYER_BYTES), dtype=np.uint8)
        regions = [
            Region((name,), int(self.layers[number].ctypes.data), LAYER_BYTES, LAYER_BYTES)
            for number, name in enumerate(LAYERS)
        ]
        self.transfer = HostTransfer(self.space, {0: regions}, self.layers, **settings)

    def store(self, numbers: list[int]) -> None:
        for number in numbers:
            self.layers[:, number] = np.random.default_rng(number).integers(0, 256, LAYER_BYTES, dtype=np.uint8)
        self.transfer.store(1, [Block(key, 0, number) for key, number in zip(KEYS, numbers, strict=True)])
        assert self.ended(1) == [True, True]

    def ended(self, tag: int) -> list[bool]:
        self.transfer.wait([tag])
        (done,) = self.transfer.poll()
        assert done.tag == tag
        return done.good

    def close(self) -> None:
        assert self.transfer.close(10)
        self.pool.close()


@pytest.fixture
def disk() -> Iterator[SimDisk]:
    made = SimDisk("64MiB")
    kvstore.format(made.path, region_bytes="4MiB", min_block_bytes=4096)
    yield made
    made.remove()


@pytest.fixture
def cached(disk: SimDisk) -> Iterator[Cached]:
    made = Cached(disk.path, by_layer=True)
    yield made
    made.close()


def places(*numbers: int) -> list[Block]:
    return [Block(key, 0, number) for key, number in zip(KEYS, numbers, strict=True)]


def test_blocks_come_back_in_other_places(cached: Cached) -> None:
    cached.store([3, 7])
    cached.transfer.load(2, places(11, 0))
    assert cached.ended(2) == [True, True]
    assert (cached.layers[:, [11, 0]] == cached.layers[:, [3, 7]]).all()


def test_a_layer_is_there_when_it_was_waited_for_and_read_by_itself(cached: Cached) -> None:
    cached.store([3, 7])
    cached.transfer.load_by_layer(2, places(11, 0))
    for number, layer in enumerate(LAYERS):
        cached.transfer.wait_layer(layer)
        assert (cached.layers[number, [11, 0]] == cached.layers[number, [3, 7]]).all()
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


def test_a_block_that_is_not_there_is_bad(cached: Cached) -> None:
    for tag, load in enumerate([cached.transfer.load, cached.transfer.load_by_layer]):
        load(tag, places(11, 0))
        assert cached.ended(tag) == [False, False]


def test_a_load_by_layer_that_is_refused_leaves_nothing_behind(disk: SimDisk) -> None:
    cached = Cached(disk.path, by_layer=True)
    cached.store([3, 7])
    cached.pool.close()
    with pytest.raises(kvstore.ClosedError):
        cached.transfer.load_by_layer(2, places(11, 0))
    assert cached.transfer.poll() == []
    assert cached.transfer.close(1)


def test_a_layout_that_has_blocks_in_pieces_is_refused(cached: Cached) -> None:
    with pytest.raises(ConfigError, match="VLLM_KV_CACHE_LAYOUT"):
        HostTransfer(cached.space, {0: [Region(("a",), 0, 4096, 8192)]})
    with pytest.raises(ConfigError, match="513 parts"):
        HostTransfer(cached.space, {0: [Region(("a",), 0, 4096, 4096)] * 513})
