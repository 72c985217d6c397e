# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: whatever fails while blocks move between a pool and a cache in GPU memory, a block said to be loaded has its
bytes, every job is reported once, and every extent comes back.

Method: seeded runs of stores and loads, whole and by layer, many at a time on few extents, with an engine that goes on
computing and with failures of the device and of CUDA; an oracle knows the bytes under each key. ``KVS_SEED=n`` runs
one.
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from gpu_support import FakeGpu
from transfer_support import BLOCKS, LAYER_BYTES, LAYERS, Cached

import kvstore
from kvstore._device_transfer import DeviceTransfer
from kvstore._transfer import Block
from kvstore.testing import SimDisk

SEEDS = [int(os.environ["KVS_SEED"])] if "KVS_SEED" in os.environ else range(12)
KEYS = 24
ROUNDS = 40
CUDA_MOVES = [b"cuLaunchKernel", b"cuMemcpyBatchAsync_v2"]  # with and without nvcc
CUDA_COPIES = [b"cuMemcpyHtoDAsync_v2", b"cuMemcpyDtoHAsync_v2"]


def bytes_under(key: int) -> np.ndarray:
    """What every store of a key stores: one value a key."""
    return np.random.default_rng(key).integers(0, 256, (len(LAYERS), LAYER_BYTES), dtype=np.uint8)


class Swarm:
    """One run."""

    def __init__(self, seed: int, disk: SimDisk, gpu: FakeGpu) -> None:
        self.random = random.Random(seed)
        self.disk, self.gpu = disk, gpu
        way = self.random.choice(["extents", "few", "few", "straight"])
        self.cached = Cached(disk.path, way, gpu, by_layer=self.random.random() < 0.7)
        self.fails = self.random.random() < 0.6
        self.tag = 0
        self.gates: list[int] = []
        self.stored: set[int] = set()
        # The cache blocks of each job that is not reported yet are nobody else's, as an engine keeps them.
        self.free = set(range(BLOCKS))
        self.running: dict[int, tuple[str, list[int], list[int]]] = {}
        self.reported: list[int] = []
        self.loaded = 0

    def run(self) -> None:
        for _ in range(ROUNDS):
            self.random.choice([self.submit, self.submit, self.submit, self.settle, self.compute, self.fail])()
        self.end()

    def submit(self) -> None:
        kind = self.random.choice(["store", "load", "load", "load_by_layer"])
        count = min(self.random.randint(1, 6), len(self.free))
        if count == 0:
            self.look()
            return
        numbers = self.random.sample(sorted(self.free), count)
        known = sorted(self.stored) if kind != "store" and self.random.random() < 0.8 else []
        keys = self.random.sample(known if len(known) >= count else range(KEYS), count)
        for key, number in zip(keys, numbers, strict=True):
            self.cached.layers[:, number] = bytes_under(key) if kind == "store" else 0
        self.tag += 1
        blocks = [Block(b"key-%d" % key, 0, number) for key, number in zip(keys, numbers, strict=True)]
        try:
            getattr(self.cached.transfer, kind)(self.tag, blocks)
        except kvstore.KvStoreError:
            assert self.fails
            return
        self.running[self.tag] = (kind, keys, numbers)
        self.free -= set(numbers)
        if kind == "load_by_layer":
            for layer in LAYERS:
                self.cached.transfer.wait_layer(layer)

    def compute(self) -> None:
        """The engine's stream stands still for a while, or goes on."""
        if self.gates:
            self.gpu.lib.fake_cuda_open_gate(self.gates.pop())
        elif self.cached.way != "few":  # where a layer may be waited for by the host, until extents are free
            self.gates.append(self.gpu.lib.fake_cuda_gate(self.cached.stream))

    def fail(self) -> None:
        if not self.fails:
            return
        if self.random.random() < 0.5:
            first = self.random.randrange(0, 64 << 20, 4096)
            self.disk.fault("error", op="read", first_byte=first, last_byte=first + (1 << 20), times=2)
        else:
            for call in self.random.choice([CUDA_MOVES, CUDA_MOVES, CUDA_COPIES]):
                self.gpu.lib.fake_cuda_fail(call, 1, self.random.randrange(3), 1)

    def settle(self) -> None:
        """Hear of what ended, or let all end."""
        if not self.gates and self.random.random() < 0.5:
            self.cached.transfer.wait(list(self.running))
        self.look()

    def look(self) -> None:
        for done in self.cached.transfer.poll():
            kind, keys, numbers = self.running.pop(done.tag)
            self.reported.append(done.tag)
            assert len(done.good) == len(done.results) == len(keys)
            for key, number, good in zip(keys, numbers, done.good, strict=True):
                if good and kind == "store":
                    self.stored.add(key)
                elif good:
                    self.loaded += 1
                    assert (self.cached.layers[:, number] == bytes_under(key)).all(), f"key {key} in block {number}"
            self.free |= set(numbers)

    def end(self) -> None:
        for gate in self.gates:
            self.gpu.lib.fake_cuda_open_gate(gate)
        self.cached.transfer.wait(list(self.running))
        self.look()
        assert not self.running
        assert len(self.reported) == len(set(self.reported))
        transfer = self.cached.transfer
        assert isinstance(transfer, DeviceTransfer)
        if transfer._extents is not None:
            assert transfer._extents.free == transfer._extents.count
        self.disk.clear_faults()
        self.gpu.lib.fake_cuda_reset()
        self.fails = False
        # All that was stored can be loaded, now that nothing fails.
        for key in sorted(self.stored):
            self.tag += 1
            transfer.load(self.tag, [Block(b"key-%d" % key, 0, 0)])
            transfer.wait([self.tag])
            (done,) = transfer.poll()
            if done.good[0]:
                assert (self.cached.layers[:, 0] == bytes_under(key)).all()
        self.cached.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_loaded_is_right_and_everything_ends(seed: int, disk: SimDisk, gpu: FakeGpu) -> None:
    print(f"KVS_SEED={seed}")
    Swarm(seed, disk, gpu).run()
