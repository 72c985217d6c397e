# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The fake libcuda.so.1 of tests/fakes from Python, and array objects on it as GPU libraries make them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

FAKES = Path(__file__).resolve().parents[1] / "fakes"
CORE = Path(__file__).resolve().parents[2] / "csrc"
CUDA_DEVICE = 2  # DLPack's number


def build_fake(folder: Path) -> str | None:
    """Compile the fake driver; None where there is no compiler."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return None
    library = folder / "libcuda.so.1"
    # The CPU references of the core's kernels are what the fake runs.
    sources = [FAKES / "libcuda.cpp", CORE / "gpu" / "reference_move.cpp", CORE / "base" / "status.cpp"]
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden", "-I", CORE]
    subprocess.run([compiler, *flags, "-o", library, *sources], check=True)
    return str(library)


def build_fake_cufile(folder: Path) -> str | None:
    """Compile the fake cuFile, which uses the fake driver of the process; None where there is no compiler."""
    return _build_shared(folder / "libcufile.so.0", FAKES / "libcufile.cpp")


def build_proc_modules(folder: Path) -> str | None:
    """Compile what gives a process /proc/modules by LD_PRELOAD; None where there is no compiler."""
    return _build_shared(folder / "proc_modules.so", FAKES / "proc_modules.cpp")


def _build_shared(library: Path, source: Path) -> str | None:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        return None
    subprocess.run([compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
    return str(library)


class FakeGpu:
    """What a GPU library does with the driver, and what tests tell the fake."""

    def __init__(self, library: str) -> None:
        self.lib = ctypes.CDLL(library)
        self.lib.fake_cuda_view.restype = ctypes.c_void_p
        self.lib.fake_cuda_view.argtypes = [ctypes.c_uint64]
        self.lib.fake_cuda_gate.restype = ctypes.c_uint64
        self.lib.fake_cuda_gate.argtypes = [ctypes.c_void_p]
        self.lib.fake_cuda_open_gate.argtypes = [ctypes.c_uint64]
        self.lib.fake_cuda_fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]
        self.lib.cuMemsetD8Async.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p]
        self.lib.cuMemcpyDtoHAsync_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.lib, name)(*arguments)
        assert code == 0, f"{name} gave {code}"

    def on(self, device: int, name: str, *arguments: Any) -> None:
        """Call with the context of a device current."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxPushCurrent_v2", context)
        try:
            self.call(name, *arguments)
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(context))

    def stream(self, device: int = 0) -> int:
        made = ctypes.c_void_p()
        self.on(device, "cuStreamCreate", ctypes.byref(made), 1)
        assert made.value
        return made.value

    def synchronize(self, stream: int, device: int = 0) -> None:
        self.on(device, "cuStreamSynchronize", ctypes.c_void_p(stream))

    def array(self, data: np.ndarray[Any, Any], device: int = 0) -> FakeArray:
        pointer = ctypes.c_uint64()
        self.on(device, "cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(data.nbytes, 1)))
        made = FakeArray(self, pointer.value, data, device)
        made.host_view()[:] = data.reshape(-1).view(np.uint8)
        return made


class FakeArray:
    """Memory of the fake GPU. `host_view` is what a kernel would see; the pointer itself cannot be touched."""

    def __init__(self, gpu: FakeGpu, pointer: int, like: np.ndarray[Any, Any], device: int) -> None:
        self.gpu, self.pointer, self.device = gpu, pointer, device
        self.shape, self.typestr, self.nbytes = like.shape, like.dtype.str, like.nbytes

    def host_view(self) -> np.ndarray[Any, Any]:
        address = self.gpu.lib.fake_cuda_view(self.pointer)
        return np.frombuffer((ctypes.c_ubyte * self.nbytes).from_address(address), dtype=np.uint8)

    def fill_on(self, stream: int, byte: int) -> None:
        self.gpu.on(self.device, "cuMemsetD8Async", self.pointer, byte, self.nbytes, stream)


class CudaArray:
    """As cupy and numba show their arrays: ``__cuda_array_interface__`` version 3."""

    def __init__(self, array: FakeArray, stream: int | None = None, offset: int = 0, **changed: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": array.typestr,
            "data": (array.pointer + offset, False),
            "strides": None,
            "stream": stream,
            **changed,
        }


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class DLPackArray:
    """As torch shows its CUDA tensors: ``__dlpack__`` lets the stream of who asks wait for its own."""

    def __init__(self, array: FakeArray, stream: int | None = None, device: int | None = None) -> None:
        self.array, self.stream = array, stream
        self.device = array.device if device is None else device
        self.asked: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA_DEVICE, self.device

    def __dlpack__(self, stream: int | None = None) -> Any:
        self.asked.append(stream)
        if self.stream is not None:
            event = ctypes.c_void_p()
            gpu, device = self.array.gpu, self.array.device
            gpu.on(device, "cuEventCreate", ctypes.byref(event), 2)
            gpu.on(device, "cuEventRecord", event, ctypes.c_void_p(self.stream))
            gpu.on(device, "cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)
        self._shape = (ctypes.c_int64 * 1)(self.array.nbytes)
        self._tensor = _Tensor(
            self.array.pointer, CUDA_DEVICE, self.device, 1, 1, 8, 1, ctypes.addressof(self._shape), None, 0, None, None
        )
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self._tensor), b"dltensor", None)


class TorchTensor(DLPackArray):
    """``torch.Tensor`` on a CUDA device, by its methods."""

    def __init__(self, array: FakeArray, stream: int | None = None) -> None:
        super().__init__(array, stream)
        self.number = self.device
        self.device = type("device", (), {"type": "cuda", "__str__": lambda self: "cuda:0"})()
        self.nbytes = array.nbytes

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA_DEVICE, self.number

    def __dlpack__(self, stream: int | None = None) -> Any:
        shown, self.device = self.device, self.number
        try:
            return super().__dlpack__(stream)
        finally:
            self.device = shown

    def data_ptr(self) -> int:
        return self.array.pointer

    def is_contiguous(self) -> bool:
        return True
