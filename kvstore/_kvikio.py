# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""KvikIO as what reads a pool's devices into GPU memory, in the place of the store's own calls of cuFile.

Proof, verification and refusal are the store's, the same for both (docs/gpu.md). KvikIO opens cuFile by itself and asks
nothing first, so the store's own gate is passed before it is used. It decides for each read whether it copies through
host memory, and waits for the default stream before each, so that no stream can be held for a get. Its settings are
those of the process.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kvstore.errors import ConfigError

_THREADS = 16


class _Memory:
    """Memory by its address, as KvikIO takes it."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
        }


class KvikioReader:
    """What the core calls, from threads of its own.

    Raises
    ------
    ConfigError : KvikIO is not installed.
    """

    def __init__(self) -> None:
        try:
            self._kvikio: Any = import_module("kvikio")
            import_module("kvikio.defaults").set({"num_threads": _THREADS, "task_size": 16 << 20, "gds_threshold": 0})
        except ImportError as error:
            raise ConfigError(
                f"gpu_engine is 'kvikio', which cannot be imported ({error}): pip install 'nvme-kvstore[gpu]'"
            ) from error

    def open(self, descriptor: int) -> Any:
        """Open what a descriptor of this process refers to, whatever its name is by now."""
        return self._kvikio.CuFile(f"/proc/self/fd/{descriptor}", "r")

    def read(self, file: Any, pointer: int, nbytes: int, offset_bytes: int) -> int:
        """Read into device memory; how many bytes."""
        moved: int = file.pread(_Memory(pointer, nbytes), size=nbytes, file_offset=offset_bytes).get()
        return moved
