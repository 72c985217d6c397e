# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Conformance of buffers: whatever memory is given, exactly its bytes are stored and exactly the out is written.

Method: memory at chosen addresses with a page behind it that faults, canaries around every segment, the same bytes put
and read back through differently cut segments.
"""

from __future__ import annotations

import array
import ctypes
import random

import numpy as np
import pytest
from python_support import MIB, PAGE, random_bytes, wait_until

import kvstore
from kvstore import errors

LENGTHS = [1, 63, 512, 4095, 4096, 4097, 3 * PAGE + 1, 3 * PAGE + 2048, 3 * PAGE + 4095, MIB + 1, MIB + 4095]
CANARY = 0xA5


def cut(nbytes: int, parts: int, seed: int) -> list[int]:
    """Lengths of up to ``parts`` segments, at least 1 byte each, that sum to ``nbytes``."""
    parts = min(parts, nbytes)
    places = sorted(random.Random(seed).sample(range(1, nbytes), parts - 1))
    return [end - start for start, end in zip([0, *places], [*places, nbytes], strict=True)]


def lay_out(arena, lengths, misalignment):
    """One view per length, each at a page start + misalignment, with canaries between; and the arena."""
    pages = [(misalignment + length) // PAGE + 2 for length in lengths]
    memory = arena(sum(pages))
    memory.fill(CANARY)
    starts = [sum(pages[:i]) * PAGE for i in range(len(pages))]
    return memory, [memory.at(start + misalignment, length) for start, length in zip(starts, lengths, strict=True)]


@pytest.mark.parametrize("segments", [1, 2, 64])
@pytest.mark.parametrize("misalignment", [0, 64])
def test_every_length_survives_the_round_trip_and_nothing_else_is_written(space, arena, segments, misalignment):
    for seed, nbytes in enumerate(LENGTHS):
        value = random_bytes(nbytes, seed)
        lengths = cut(nbytes, segments, seed)
        key = b"%d-%d-%d" % (segments, misalignment, nbytes)

        source, views = lay_out(arena, lengths, misalignment)
        start = 0
        for view in views:
            view.cast("B")[:] = value[start : start + len(view)]
            start += len(view)
        assert space.put(key, views if segments > 1 else views[0]).status == "stored"

        lengths = cut(nbytes, segments, seed + 1000)
        target, views = lay_out(arena, lengths, misalignment)
        assert space.get(key, views if segments > 1 else views[0]) == nbytes
        assert b"".join(view.tobytes() for view in views) == value
        untouched = target.at(0, target.nbytes).tobytes().count(CANARY) - value.count(CANARY)
        assert untouched == target.nbytes - nbytes, f"{key!r}: bytes beside the segments were written"
        del views, view
        source.close()
        target.close()


def test_neither_put_nor_get_touches_the_page_behind_the_buffer(space, arena):
    memory = arena(2 * MIB // PAGE)
    for nbytes in [*LENGTHS, *(2 * PAGE + k for k in (2, 511, 513, 1024, 4032))]:
        value = random_bytes(nbytes, nbytes)
        view = memory.before_guard(nbytes)
        view.cast("B")[:] = value
        key = b"guarded-%d" % nbytes
        assert space.put(key, view).nbytes == nbytes
        memory.fill(0)
        assert space.get(key, view) == nbytes
        assert view.tobytes() == value


def test_an_out_longer_than_the_block_keeps_its_tail(space):
    space.put(b"short", b"abc")
    out = bytearray(b"\xff" * 10000)
    assert space.get(b"short", out) == 3
    assert out == b"abc" + b"\xff" * 9997


def test_segments_of_the_out_need_not_be_those_of_the_value(space):
    value = random_bytes(100_000, 7)
    space.put(b"cut", [value[:1], value[1:50_000], value[50_000:]])
    outs = [bytearray(n) for n in (40_000, 0, 59_999, 1)]
    assert space.get(b"cut", outs) == 100_000
    assert b"".join(outs) == value


def test_512_segments_are_one_block(space):
    value = random_bytes(512 * 100, 8)
    space.put(b"many", [value[i : i + 100] for i in range(0, len(value), 100)])
    out = bytearray(len(value))
    assert space.get(b"many", out) == len(value)
    assert out == value


def test_memory_of_the_pool_moves_without_staging(pool, space):
    value, out = pool.alloc("2MiB"), pool.alloc("2MiB")
    assert value.ptr % PAGE == 0
    numbers = np.frombuffer(value, dtype=np.uint64)
    numbers[:] = np.arange(numbers.size)
    staged = pool.stats()["bytes_staged"]
    space.put(b"zero copy", value)
    assert space.get(b"zero copy", out) == value.nbytes
    assert bytes(out) == bytes(value)
    assert pool.stats()["bytes_staged"] == staged


# ---- every kind of object ----

BYTES = bytes(range(48))


class DLPackOnly:
    """A tensor known by DLPack alone, as of a library that is not imported here."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **arguments):
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class OldDLPack(DLPackOnly):
    """An exporter of before DLPack 1.0, which does not know max_version."""

    def __dlpack__(self, stream=None):
        return self._array.__dlpack__()


class FakeTensor:
    """torch.Tensor by its methods."""

    def __init__(self, array, device="cpu", contiguous=True):
        self._array = array
        self.device = type("device", (), {"type": device, "__str__": lambda self: f"{self.type}:0"})()
        self.nbytes = array.nbytes
        self._contiguous = contiguous

    def data_ptr(self):
        return self._array.ctypes.data

    def is_contiguous(self):
        return self._contiguous


def numpy_bytes():
    return np.frombuffer(bytearray(BYTES), dtype=np.uint8)


OBJECTS = {
    "bytearray": lambda: bytearray(BYTES),
    "memoryview": lambda: memoryview(bytearray(BYTES)),
    "memoryview-2d": lambda: memoryview(bytearray(BYTES)).cast("B", (6, 8)),
    "ctypes": lambda: (ctypes.c_ubyte * 48)(*BYTES),
    "ctypes-view": lambda: memoryview((ctypes.c_ubyte * 48)(*BYTES)),
    "array": lambda: array.array("H", BYTES),
    "numpy": lambda: numpy_bytes(),
    "numpy-2d": lambda: numpy_bytes().view(np.float32).reshape(3, 4),
    "numpy-datetime": lambda: numpy_bytes().view("M8[s]"),
    "dlpack": lambda: DLPackOnly(numpy_bytes()),
    "dlpack-2d": lambda: DLPackOnly(numpy_bytes().view(np.int16).reshape(4, 6)),
    "dlpack-old": lambda: OldDLPack(numpy_bytes()),
    "tensor": lambda: FakeTensor(numpy_bytes()),
    "segments": lambda: [bytearray(BYTES[:1]), memoryview(bytearray(BYTES[1:]))],
    "tuple-of-segments": lambda: (bytearray(BYTES[:20]), numpy_bytes()[20:]),
}


def as_bytes(value) -> bytes:
    if isinstance(value, (list, tuple)):
        return b"".join(map(as_bytes, value))
    if isinstance(value, (DLPackOnly, FakeTensor)):
        return value._array.tobytes()
    return memoryview(value).tobytes() if not isinstance(value, np.ndarray) else value.tobytes()


def zero(value) -> None:
    for part in value if isinstance(value, (list, tuple)) else [value]:
        part = part._array if isinstance(part, (DLPackOnly, FakeTensor)) else part
        np.frombuffer(part.view(np.uint8) if isinstance(part, np.ndarray) else part, dtype=np.uint8)[:] = 0


@pytest.mark.parametrize("kind", OBJECTS)
def test_every_kind_of_buffer_is_a_value_and_an_out(file_space, kind):
    made = OBJECTS[kind]()
    assert file_space.put(kind.encode(), made).nbytes == len(BYTES)
    zero(made)
    assert as_bytes(made) == bytes(len(BYTES))
    assert file_space.get(kind.encode(), made) == len(BYTES)
    assert as_bytes(made) == BYTES


def test_pointer_and_length_are_a_value_and_an_out(file_space):
    memory = numpy_bytes()
    pair = (memory.ctypes.data, memory.nbytes)
    file_space.put(b"pointer", pair)
    memory[:] = 0
    assert file_space.get(b"pointer", [pair]) == len(BYTES)
    assert memory.tobytes() == BYTES


def test_rows_of_one_array_are_the_values_and_outs_of_a_batch(file_space):
    values = np.arange(8 * 5000, dtype=np.uint32).reshape(8, 5000)
    keys = np.frombuffer(random_bytes(8 * 32, 4), dtype=np.uint8).reshape(8, 32)
    assert all(file_space.put_many(keys, values).wait())
    outs = np.zeros_like(values)
    assert all(file_space.get_many([row.tobytes() for row in keys], outs).wait())
    assert np.array_equal(outs, values)


def test_torch_cpu_tensors_of_any_type(file_space):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for dtype in (torch.uint8, torch.bfloat16, torch.float8_e4m3fn):
        value = torch.arange(64).to(dtype).reshape(8, 8)
        key = str(dtype).encode()
        assert file_space.put(key, value).nbytes == value.nbytes
        out = torch.zeros(8, 8, dtype=dtype)
        assert file_space.get(key, out) == value.nbytes
        assert torch.equal(out.view(torch.uint8), value.view(torch.uint8))
    with pytest.raises(errors.ConfigError, match="value is not contiguous"):
        file_space.put(b"t", torch.zeros(4, 4).t())
    with pytest.raises(errors.ConfigError, match="lazy view"):
        file_space.put(b"t", torch.zeros(2, dtype=torch.complex64).conj())
    with pytest.raises(errors.UnsupportedError, match="device memory"):
        file_space.put(b"t", torch.zeros(2, device="meta"))


# ---- refusals ----

READ_ONLY = np.frombuffer(BYTES, dtype=np.uint8)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (np.zeros((4, 4))[:, 1], errors.ConfigError, r"values\[1\] is not contiguous"),
        (np.zeros((4, 4)).T, errors.ConfigError, r"values\[1\] is not contiguous"),
        (memoryview(bytes(10))[::2], errors.ConfigError, r"values\[1\] is not contiguous"),
        (DLPackOnly(np.zeros((4, 4)).T), errors.ConfigError, r"values\[1\] is not contiguous"),
        (FakeTensor(np.zeros(4), contiguous=False), errors.ConfigError, r"values\[1\] is not contiguous"),
        ([b"a", np.zeros((4, 4)).T], errors.ConfigError, r"values\[1\] segment 1 is not contiguous"),
        (
            FakeTensor(np.zeros(4), device="cuda"),
            errors.UnsupportedError,
            r"values\[1\] is in device memory \(cuda:0\)",
        ),
        (FakeTensor(np.zeros(4), device="xpu"), errors.UnsupportedError, r"\(xpu:0\): only CUDA devices are reached"),
        (b"", errors.ConfigError, r"values\[1\] is empty"),
        ([b"", b""], errors.ConfigError, r"values\[1\] is empty"),
        ([], errors.ConfigError, r"values\[1\] has 0 segments, allowed are 1 to 512"),
        ([b"a"] * 513, errors.ConfigError, r"values\[1\] has 513 segments, allowed are 1 to 512"),
        ("text", TypeError, r"values\[1\] is a str"),
        (5, TypeError, r"values\[1\] is a int"),
        (None, TypeError, r"values\[1\] is a NoneType"),
        ([[b"a"]], TypeError, r"values\[1\] segment 0 is a list"),
        ((1, 2, 3), TypeError, r"values\[1\] is a tuple, but not \(pointer, nbytes\)"),
        ((0, 8), errors.ConfigError, "null pointer"),
        ((-8, 8), errors.ConfigError, r"values\[1\] pointer is -8"),
        ((8, -8), errors.ConfigError, r"values\[1\] nbytes is -8"),
        ((8, 1 << 64), errors.ConfigError, r"values\[1\] nbytes is 18446744073709551616"),
        (((1 << 64) - 1, 8), errors.ConfigError, "beyond the address space"),
    ],
)
def test_what_is_no_value_is_refused_by_name(file_space, value, error, message):
    with pytest.raises(error, match=message):
        file_space.put_many([b"good", b"bad"], [b"value", value])
    assert file_space.contains([b"good", b"bad"]) == [False, False]


@pytest.mark.parametrize("out", [BYTES, READ_ONLY, memoryview(BYTES), DLPackOnly(READ_ONLY)])
def test_a_read_only_out_is_refused(file_space, out):
    file_space.put(b"key", b"abc")
    # numpy itself refuses to export a read-only array by the DLPack of before 1.0.
    with pytest.raises((errors.ConfigError, BufferError), match=r"outs\[0\].*read-only|readonly"):
        file_space.get_many([b"key"], [out])


@pytest.mark.parametrize("pair", [(True, True), (True, 1), (4096, True), (False, 0)])
def test_a_bool_is_no_pointer_and_no_length(file_space, pair):
    for call in (
        lambda: file_space.put(b"key", pair),
        lambda: file_space.get(b"key", pair),
        lambda: file_space.put(b"key", [pair]),
        lambda: file_space.pool.register(pair),
    ):
        with pytest.raises(TypeError, match="is a bool, not an int"):
            call()


def test_a_too_short_out_says_what_is_needed(file_space):
    file_space.put(b"key", b"x" * 5000)
    with pytest.raises(errors.ConfigError, match=r"room for 4,999 bytes; the block has 5,000"):
        file_space.get(b"key", bytearray(4999))
    short, enough = file_space.get_many([b"key", b"key"], [bytearray(4999), bytearray(5000)]).wait()
    assert isinstance(short.error, errors.ConfigError)
    assert "4999" in str(short.error)
    assert "5000" in str(short.error)
    assert enough.status == "hit"
    with pytest.raises(errors.ConfigError, match=r"outs\[0\] has room for 10 bytes, nbytes asks for 11"):
        file_space.get_many([b"key"], [bytearray(10)], nbytes=11)


def test_an_exporter_that_fails_is_named(file_space):
    view = memoryview(bytearray(4))
    view.release()
    with pytest.raises(errors.ConfigError, match=r"value \(memoryview\) gives no plain memory: .*released"):
        file_space.put(b"key", view)


def test_a_bytearray_cannot_be_resized_while_its_job_runs(disk, sim_pool):
    space = sim_pool.space(engine="test")
    space.put(b"key", b"abc", durable=True)
    block = space.describe([b"key"])[0]
    disk.fault("stuck", op="read", first_byte=block.offset_bytes, last_byte=block.offset_bytes + 1)
    out = bytearray(3)
    job = space.get_many([b"key"], [out])
    with pytest.raises(BufferError):
        out.append(1)
    wait_until(lambda: disk.stuck_count, "the read is stuck")
    disk.release_stuck()
    assert job.wait(10)[0].status == "hit"
    out.append(1)


def test_public_types_are_exported():
    assert kvstore.Buffer is not None


@pytest.mark.parametrize(
    "objects",
    [
        np.array([{}], dtype=object),
        np.zeros(1, dtype=[("Offset", "i4"), ("thing", "O")]),
        (ctypes.py_object * 1)(5),
    ],
    ids=["array", "structured", "ctypes"],
)
def test_memory_that_holds_python_objects_is_refused(space, objects):
    with pytest.raises(TypeError, match="holds Python objects"):
        space.put(b"objects", objects)
    space.put(b"bytes", b"\x01" * 8)
    with pytest.raises(TypeError, match="holds Python objects"):
        space.get(b"bytes", objects)


def test_a_field_whose_name_has_an_o_is_memory_like_any_other(space):
    given = np.zeros(2, dtype=[("Offset", "i4"), ("O", "f4")])
    assert space.put(b"named", given).status == "stored"


def test_memory_that_cannot_be_touched_is_the_callers_error_and_not_the_devices(file_pool, arena):
    space = file_pool.space(engine="test")
    guard = (arena(1).base + PAGE, PAGE)
    before = file_pool.stats()
    for number in range(20):
        with pytest.raises(kvstore.ConfigError, match="EFAULT"):
            space.put(b"bad %d" % number, guard)
    assert space.put(b"good", b"x").status == "stored"
    after = file_pool.stats()
    assert after["write_errors"] == before["write_errors"]
    assert after["write_failures"] == before["write_failures"]
