# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A small paged cache with a transfer between it and a pool: in host memory, or in the memory of a fake GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gpu_support import FakeGpu

import kvstore
from kvstore._device_transfer import DeviceTransfer
from kvstore._transfer import Block, HostTransfer, Region, Transfer

LAYERS = ["a", "b", "c"]
LAYER_BYTES = 8192
BLOCKS = 16
KEYS = [b"key-1", b"key-2"]
#: Where the cache is, and how its blocks go: ``few`` has one extent, so that every block waits for the one before.
WAYS = ["host", "extents", "few", "straight"]
_SENTINEL = 0xEE


def places(*numbers: int) -> list[Block]:
    return [Block(key, 0, number) for key, number in zip(KEYS, numbers, strict=True)]


class Cached:
    """A cache with a transfer between it and a pool. ``layers`` are its bytes, as the engine's kernels see them."""

    def __init__(self, path: str, way: str, gpu: FakeGpu | None, *, gpu_direct: str = "off", **settings: Any) -> None:
        self.pool = kvstore.open(path, gpu_direct=gpu_direct)  # type: ignore[arg-type]
        self.space = self.pool.space(engine="test", model="none")
        self.way, self.gpu, self._settings = way, gpu, settings
        shape = (len(LAYERS), BLOCKS, LAYER_BYTES)
        bytes_there = np.full(shape, _SENTINEL, dtype=np.uint8)
        if gpu is None:
            self.layers = bytes_there
            address = int(self.layers.ctypes.data)
        else:
            self.array = gpu.array(bytes_there)
            self.stream = gpu.stream()
            self.layers = self.array.host_view().reshape(shape)
            address = self.array.pointer
        self.regions = [
            Region((name,), address + number * BLOCKS * LAYER_BYTES, LAYER_BYTES, LAYER_BYTES, BLOCKS)
            for number, name in enumerate(LAYERS)
        ]
        self.transfer: Transfer = self.again(self.regions)
        self._touched: set[int] = set()

    def again(self, regions: list[Region]) -> Transfer:
        """Another transfer of the same kind."""
        if self.gpu is None:
            return HostTransfer(self.space, {0: regions}, self.layers, **self._settings)
        return DeviceTransfer(
            self.space,
            {0: regions},
            self.array,
            stream=lambda: self.stream,
            straight_bytes=4096 if self.way == "straight" else 1 << 20,
            extents_bytes=1 << 16 if self.way == "few" else 1 << 20,
            **self._settings,
        )

    def fill(self, number: int) -> None:
        self.layers[:, number] = np.random.default_rng(number).integers(
            0, 256, (len(LAYERS), LAYER_BYTES), dtype=np.uint8
        )

    def store(self, numbers: list[int]) -> None:
        for number in numbers:
            self.fill(number)
        self.transfer.store(1, places(*numbers))
        assert self.ended(1) == [True, True]

    def ended(self, tag: int) -> list[bool]:
        self.transfer.wait([tag])
        (done,) = self.transfer.poll()
        assert done.tag == tag
        return done.good

    def come_to_here(self) -> None:
        """Until the engine's stream has done all that it was given."""
        if self.gpu is not None:
            self.gpu.synchronize(self.stream)

    def same(self, numbers: list[int], others: list[int], layer: int | slice = slice(None)) -> bool:
        return bool((self.layers[layer, numbers] == self.layers[layer, others]).all())

    def untouched_but(self, numbers: Iterable[int]) -> bool:
        rest = sorted(set(range(BLOCKS)) - set(numbers))
        return bool((self.layers[:, rest] == _SENTINEL).all())

    def close(self) -> None:
        assert self.transfer.close(10)
        self.pool.close()
