# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays in GPU memory as three libraries make them: the driver alone, cupy, torch; so that a test is written once.

``Driver`` is what is left without any library, and runs on the fake driver of tests/fakes too. Each has

    stream()                   a stream of its own
    array(data, stream)        bytes in GPU memory, written on the stream
    fill_late(array, byte, stream)   on the stream, behind work that takes tens of milliseconds
    copy(source, stream)       another array, copied on the stream
    data(array, stream)        its bytes, once the stream has come to its end
"""

from __future__ import annotations

import ctypes
import os
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_WORK_BYTES = 64 << 20
_WORK_REPEATS = 300  # 64 MiB each: 10 ms on an H100, 60 ms of the fake's delays


class DriverArray:
    """``__cuda_array_interface__`` version 3 and nothing else."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.pointer, self.nbytes = pointer, nbytes
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
        }


class Driver:
    """CUDA's driver API, by ctypes."""

    def __init__(self) -> None:
        name = os.environ.get("KVSTORE_LIBCUDA") or "libcuda.so.1"
        self.lib = ctypes.CDLL(name)
        self._call("cuInit", 0)
        self.context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        # The fake's work is the CPU's, and each piece of it is late by itself.
        self.scratch = self.allocate(4096 if hasattr(self.lib, "fake_cuda_view") else _WORK_BYTES)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.lib, name)(*arguments)
        assert code == 0, f"{name} gave {code}"

    def _in_context(self, name: str, *arguments: Any) -> None:
        popped = ctypes.c_void_p()
        self._call("cuCtxPushCurrent_v2", self.context)
        try:
            self._call(name, *arguments)
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(popped))

    def allocate(self, nbytes: int) -> DriverArray:
        pointer = ctypes.c_uint64()
        self._in_context("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        return DriverArray(pointer.value, nbytes)

    def _set(self, array: DriverArray, byte: int, stream: int) -> None:
        self._in_context(
            "cuMemsetD8Async",
            ctypes.c_uint64(array.pointer),
            ctypes.c_ubyte(byte),
            ctypes.c_size_t(array.nbytes),
            ctypes.c_void_p(stream),
        )

    def stream(self) -> int:
        made = ctypes.c_void_p()
        self._in_context("cuStreamCreate", ctypes.byref(made), 1)
        return int(made.value or 0)

    def array(self, data: Bytes, stream: int) -> DriverArray:
        made = self.allocate(data.nbytes)
        self._in_context(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(made.pointer),
            ctypes.c_void_p(data.ctypes.data),
            ctypes.c_size_t(data.nbytes),
            ctypes.c_void_p(stream),
        )
        return made

    def fill_late(self, array: DriverArray, byte: int, stream: int) -> None:
        for _ in range(_WORK_REPEATS):
            self._set(self.scratch, 0, stream)
        self._set(array, byte, stream)

    def copy(self, source: DriverArray, stream: int) -> Any:
        # To the host, which waits for the stream: memory that is not pinned.
        found = np.zeros(source.nbytes, dtype=np.uint8)
        self._in_context(
            "cuMemcpyDtoHAsync_v2",
            ctypes.c_void_p(found.ctypes.data),
            ctypes.c_uint64(source.pointer),
            ctypes.c_size_t(source.nbytes),
            ctypes.c_void_p(stream),
        )
        return found

    def data(self, array: Any, stream: int) -> Bytes:
        self._in_context("cuStreamSynchronize", ctypes.c_void_p(stream))
        found: Bytes = array if isinstance(array, np.ndarray) else self.copy(array, stream)
        return found


class Cupy:
    """cupy."""

    def __init__(self) -> None:
        self.cupy: Any = import_module("cupy")
        self.scratch = [self.cupy.zeros(_WORK_BYTES, dtype=self.cupy.uint8) for _ in range(2)]
        self.cupy.cuda.Device().synchronize()

    def stream(self) -> Any:
        return self.cupy.cuda.Stream(non_blocking=True)

    def array(self, data: Bytes, stream: Any) -> Any:
        with stream:
            made = self.cupy.empty(data.nbytes, dtype=self.cupy.uint8)
            made.set(data, stream=stream)
        return made

    def fill_late(self, array: Any, byte: int, stream: Any) -> None:
        with stream:
            for _ in range(_WORK_REPEATS):
                self.cupy.copyto(self.scratch[0], self.scratch[1])
            array.data.memset_async(byte, array.nbytes, stream)

    def copy(self, source: Any, stream: Any) -> Any:
        with stream:
            return source.copy()

    def data(self, array: Any, stream: Any) -> Bytes:
        stream.synchronize()
        found: Bytes = array.get(stream=stream)
        return found


class Torch:
    """torch on ``cuda``."""

    def __init__(self) -> None:
        self.torch: Any = import_module("torch")
        if not self.torch.cuda.is_available():
            raise ImportError("this torch was built without CUDA, or finds no GPU")
        self.scratch = [self.torch.zeros(_WORK_BYTES, dtype=self.torch.uint8, device="cuda") for _ in range(2)]
        self.torch.cuda.synchronize()

    def stream(self) -> Any:
        return self.torch.cuda.Stream()

    def array(self, data: Bytes, stream: Any) -> Any:
        with self.torch.cuda.stream(stream):
            return self.torch.from_numpy(data.copy()).to("cuda")

    def fill_late(self, array: Any, byte: int, stream: Any) -> None:
        with self.torch.cuda.stream(stream):
            for _ in range(_WORK_REPEATS):
                self.scratch[0].copy_(self.scratch[1])
            array.fill_(byte)

    def copy(self, source: Any, stream: Any) -> Any:
        with self.torch.cuda.stream(stream):
            return source.clone()

    def data(self, array: Any, stream: Any) -> Bytes:
        stream.synchronize()
        found: Bytes = array.cpu().numpy()
        return found


LIBRARIES: dict[str, type[Driver] | type[Cupy] | type[Torch]] = {"driver": Driver, "cupy": Cupy, "torch": Torch}
