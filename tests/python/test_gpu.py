# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks of GPU memory from Python: every way to show it, ordered with streams, several GPUs, refusals by name.

Method: a fake driver whose copies are late and whose memory the host cannot touch (tests/fakes), and array objects of
our own. That an event is really needed, tests/cpp/gpu shows by taking it away.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from gpu_support import CudaArray, DLPackArray, TorchTensor
from python_support import random_bytes

import kvstore
from kvstore import errors

NBYTES = 2 * 1024 * 1024 + 4096 + 12
DATA = np.frombuffer(random_bytes(NBYTES, 7), dtype=np.uint8)


SHOWN = {
    "cuda-array": lambda array, stream: (CudaArray(array, stream), None),
    "cuda-array-and-stream": lambda array, stream: (CudaArray(array), stream),
    "dlpack": lambda array, stream: (DLPackArray(array, stream), None),
    "dlpack-and-stream": lambda array, stream: (DLPackArray(array, stream), stream),
    "tensor": lambda array, stream: (TorchTensor(array, stream), None),
    "tensor-and-stream": lambda array, stream: (TorchTensor(array, stream), type("S", (), {"cuda_stream": stream})()),
    "pointer": lambda array, stream: ((array.pointer, array.nbytes), type("S", (), {"ptr": stream})()),
}


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize("device", [0, 1])
def test_every_way_to_show_gpu_memory_is_a_value_and_an_out(file_space, gpu, shown, device):
    source = gpu.array(DATA, device)
    value, stream = SHOWN[shown](source, gpu.stream(device))
    assert file_space.put(b"block", value, stream=stream).nbytes == NBYTES
    target = gpu.array(np.zeros_like(DATA), device)
    out, stream = SHOWN[shown](target, gpu.stream(device))
    assert file_space.get(b"block", out, stream=stream) == NBYTES
    assert np.array_equal(target.host_view(), DATA)


@pytest.mark.parametrize("shown", SHOWN)
def test_a_put_waits_for_what_writes_its_memory(file_space, gpu, shown):
    source, stream = gpu.array(DATA), gpu.stream()
    gate = gpu.lib.fake_cuda_gate(stream)
    source.fill_on(stream, 7)
    value, given = SHOWN[shown](source, stream)
    job = file_space.put_many([b"late"], [value], stream=given)
    with pytest.raises(errors.WaitTimeout):
        job.wait(timeout_s=0.05)
    gpu.lib.fake_cuda_open_gate(gate)
    assert job.wait()[0].status == "stored"
    out = np.zeros_like(DATA)
    file_space.get(b"late", out)
    assert np.all(out == 7)


def test_what_follows_a_get_on_its_stream_sees_the_block_and_nobody_waits_on_the_host(file_space, gpu):
    file_space.put(b"block", DATA)
    target, after = gpu.array(np.zeros_like(DATA)), gpu.stream()
    stopped = gpu.stream()
    gate = gpu.lib.fake_cuda_gate(stopped)  # keeps the job from its end
    other = gpu.array(np.zeros_like(DATA))
    outs = [CudaArray(target, after), CudaArray(other, stopped)]
    job = file_space.get_many([b"block", b"block"], outs)
    seen = np.zeros_like(DATA)
    gpu.on(0, "cuMemHostRegister_v2", seen.ctypes.data_as(ctypes.c_void_p), seen.nbytes, 0)
    gpu.on(0, "cuMemcpyDtoHAsync_v2", seen.ctypes.data, target.pointer, NBYTES, after)
    with pytest.raises(errors.WaitTimeout):
        job.wait(timeout_s=0.05)
    gpu.lib.fake_cuda_open_gate(gate)
    gpu.synchronize(after)
    assert np.array_equal(seen, DATA)
    assert all(job.wait())
    gpu.call("cuMemHostUnregister", seen.ctypes.data_as(ctypes.c_void_p))


def test_a_miss_lets_the_stream_go_on(file_space, gpu):
    target, stream = gpu.array(DATA), gpu.stream()
    assert file_space.get_many([b"nobody put this"], [CudaArray(target, stream)]).wait()[0].status == "miss"
    gpu.synchronize(stream)
    assert file_space.get(b"nobody put this", CudaArray(target, stream)) is None
    gpu.synchronize(stream)


def test_blocks_of_host_and_two_gpus_travel_in_one_batch_and_in_segments(file_space, gpu):
    values = [DATA, CudaArray(gpu.array(DATA, 0)), CudaArray(gpu.array(DATA, 1))]
    keys = [b"host", b"gpu 0", b"gpu 1"]
    assert all(file_space.put_many(keys, values).wait())
    targets = [gpu.array(np.zeros_like(DATA), device) for device in (1, 0)]
    parts = np.zeros(NBYTES, dtype=np.uint8)
    # An address that is no multiple of anything, the rest in a second segment.
    first, second = gpu.array(np.zeros(NBYTES + 1, dtype=np.uint8)), gpu.array(np.zeros(NBYTES, dtype=np.uint8))
    segments = [
        CudaArray(first, None, 1, shape=(1000,)),
        CudaArray(second, None, 0, shape=(NBYTES - 1000,)),
    ]
    outs = [CudaArray(targets[0]), CudaArray(targets[1]), parts, segments]
    assert all(file_space.get_many([*keys, b"gpu 0"], outs).wait())
    assert all(np.array_equal(one, DATA) for one in [targets[0].host_view(), targets[1].host_view(), parts])
    assert np.array_equal(first.host_view()[1:1001], DATA[:1000])
    assert np.array_equal(second.host_view()[: NBYTES - 1000], DATA[1000:])
    assert first.host_view()[0] == 0
    assert not first.host_view()[1001:].any()


def test_a_verified_part_lands_in_gpu_memory(file_space, gpu):
    file_space.put(b"parts", CudaArray(gpu.array(DATA)), page_hashes=True)
    target = gpu.array(np.zeros(70_000, dtype=np.uint8))
    assert file_space.get(b"parts", CudaArray(target), offset=1_000_001, nbytes=70_000) == 70_000
    assert np.array_equal(target.host_view(), DATA[1_000_001:1_070_001])


def test_dlpack_is_asked_for_the_stream_that_was_given(file_space, gpu):
    array, stream = DLPackArray(gpu.array(DATA)), gpu.stream()
    file_space.put(b"asked", array, stream=stream)
    assert array.asked == [stream]


def test_stats_say_how_the_bytes_went(tmp_path, gpu):
    path = str(tmp_path / "pool.img")
    kvstore.format(path, size="256MiB", region_bytes="8MiB")
    with kvstore.open(path) as pool:
        assert pool.stats()["bounce"] == "unused"
        pool.space(test="gpu").put(b"block", CudaArray(gpu.array(DATA)))
        assert pool.stats()["bytes_bounced"] == NBYTES
        assert pool.stats()["bounce"] == "pinned"


def test_memory_that_cannot_be_pinned_is_used_all_the_same(tmp_path, gpu):
    path = str(tmp_path / "pool.img")
    kvstore.format(path, size="256MiB", region_bytes="8MiB")
    gpu.lib.fake_cuda_fail(b"cuMemHostRegister_v2", 2, 0, 100)
    with kvstore.open(path) as pool:
        space = pool.space(test="gpu")
        space.put(b"block", CudaArray(gpu.array(DATA)))
        target = gpu.array(np.zeros_like(DATA))
        assert space.get(b"block", CudaArray(target)) == NBYTES
        assert np.array_equal(target.host_view(), DATA)
        assert "CUDA_ERROR_OUT_OF_MEMORY" in pool.stats()["bounce"]


# ---- refusals ----


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda gpu: CudaArray(gpu.array(DATA), gpu.stream(1)), "CUDA_ERROR_INVALID_HANDLE.*does the stream belong"),
        (lambda gpu: DLPackArray(gpu.array(DATA), device=1), "values.0. says that it is on GPU 1, CUDA that .* GPU 0"),
        (lambda gpu: CudaArray(gpu.array(DATA), 0), "stream 0"),
        (lambda gpu: CudaArray(gpu.array(DATA), data=(12345, False)), "whose memory 0x3039 is.*INVALID_VALUE"),
        (lambda gpu: CudaArray(gpu.array(DATA), strides=(2,)), "values.0. is not contiguous"),
        (lambda gpu: CudaArray(gpu.array(DATA), mask=object()), "has a mask"),
        (lambda gpu: CudaArray(gpu.array(DATA), typestr="|O8"), "of Python objects"),
        (lambda gpu: CudaArray(gpu.array(DATA), data=None), "no data"),
        (lambda gpu: [CudaArray(gpu.array(DATA)), DATA], "segment 1 is in other memory"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(file_space, gpu, make, message):
    with pytest.raises(errors.ConfigError, match=message):
        file_space.put_many([b"refused"], [make(gpu)])
    assert not file_space.contains(b"refused")


def test_nothing_is_read_into_what_is_read_only(file_space, gpu):
    array = gpu.array(DATA)
    with pytest.raises(errors.ConfigError, match=r"out \(CudaArray\) is read-only"):
        file_space.get(b"any", CudaArray(array, data=(array.pointer, True)))


def test_what_is_no_stream_is_refused(file_space, gpu):
    with pytest.raises(TypeError, match="stream is a str"):
        file_space.put(b"refused", CudaArray(gpu.array(DATA)), stream="s")


def test_gpu_memory_is_registered_only_where_gpu_direct_uses_it(file_pool, gpu):
    registration = file_pool.register(CudaArray(gpu.array(DATA)))
    assert not registration.registered
    assert registration.reason == "gpu_direct is off: GPU memory is used as it is"


def test_a_copy_that_fails_is_the_items_error_with_cudas_words(file_space, gpu):
    gpu.lib.fake_cuda_fail(b"cuMemcpyDtoHAsync_v2", 1, 0, 1)
    result = file_space.put_many([b"failed"], [CudaArray(gpu.array(DATA))]).wait()[0]
    assert result.code == "invalid"
    assert "cuMemcpyDtoHAsync gave CUDA_ERROR_INVALID_VALUE" in str(result.error)
    assert not file_space.contains(b"failed")
