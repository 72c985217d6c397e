# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks of GPU memory as cupy, torch and the bare driver give them, on a real GPU: right bytes, in the streams' order.

Method: scripts/gpu-check runs these and wants each of them to have passed; with ``--fakes`` those of the bare driver
run on tests/fakes. What only a fake can show (late copies, faults, refusals) is in tests/python/test_gpu.py.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

NBYTES = 3 * 1024 * 1024 + 4096 + 12
DATA = np.frombuffer(random.Random(11).randbytes(NBYTES), dtype=np.uint8)
ZEROS = np.zeros(NBYTES, dtype=np.uint8)


def test_a_block_comes_back_into_gpu_memory(space, arrays):
    stream = arrays.stream()
    assert space.put(b"block", arrays.array(DATA, stream), stream=stream).nbytes == NBYTES
    out = arrays.array(ZEROS, stream)
    assert space.get(b"block", out, stream=stream) == NBYTES
    assert np.array_equal(arrays.data(out, stream), DATA)


def test_blocks_go_between_gpu_and_host_memory_in_one_batch(space, arrays):
    stream = arrays.stream()
    keys = [b"from the gpu", b"from the host"]
    assert all(space.put_many(keys, [arrays.array(DATA, stream), DATA], stream=stream).wait())
    host, device = ZEROS.copy(), arrays.array(ZEROS, stream)
    assert all(space.get_many(keys, [host, device], stream=stream).wait())
    assert np.array_equal(host, DATA)
    assert np.array_equal(arrays.data(device, stream), DATA)


def test_a_put_reads_only_what_its_stream_has_written(space, arrays):
    stream = arrays.stream()
    source = arrays.array(DATA, stream)
    arrays.fill_late(source, 7, stream)
    assert space.put_many([b"late"], [source], stream=stream).wait()[0].status == "stored"
    out = ZEROS.copy()
    assert space.get(b"late", out) == NBYTES
    assert np.all(out == 7)


def test_a_get_writes_after_what_its_stream_was_doing(space, arrays):
    stream = arrays.stream()
    space.put(b"block", DATA)
    out = arrays.array(ZEROS, stream)
    arrays.fill_late(out, 9, stream)
    assert space.get_many([b"block"], [out], stream=stream).wait()[0].status == "hit"
    assert np.array_equal(arrays.data(out, stream), DATA)


def test_what_follows_a_get_on_its_stream_sees_the_block(space, arrays):
    stream = arrays.stream()
    space.put(b"block", DATA)
    out = arrays.array(ZEROS, stream)
    job = space.get_many([b"block"], [out], stream=stream)
    after = arrays.copy(out, stream)
    assert np.array_equal(arrays.data(after, stream), DATA)
    assert job.wait()[0].status == "hit"


def test_a_miss_lets_the_stream_go_on(space, arrays):
    stream = arrays.stream()
    out = arrays.array(DATA, stream)
    assert space.get_many([b"nobody put this"], [out], stream=stream).wait()[0].status == "miss"
    assert arrays.data(out, stream).nbytes == NBYTES
