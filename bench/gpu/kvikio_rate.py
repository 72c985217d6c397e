# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""How fast KvikIO reads a file or namespace into GPU memory, unverified; the same lines as kvstore_gpu_bench prints.

    python bench/gpu/kvikio_rate.py PATH BYTES LEAST_MS

16 reads of 4 MiB in flight, as kvstore_gpu_bench has them of cuFile. Without /proc/modules KvikIO is told not to open
cuFile, which would spin for ever.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

READS = 16
READ_BYTES = 4 << 20


def measure(path: str, nbytes: int, least_s: float) -> tuple[float, str]:
    """GB/s, the median of five after one that does not count; and the way that was taken."""
    if not Path("/proc/modules").exists():
        os.environ["KVIKIO_COMPAT_MODE"] = "ON"
    cupy, kvikio = import_module("cupy"), import_module("kvikio")
    defaults = import_module("kvikio.defaults")
    defaults.set({"num_threads": READS})
    arrays = [cupy.empty(READ_BYTES, dtype=cupy.uint8) for _ in range(READS)]
    cupy.cuda.Device().synchronize()
    offsets = range(0, nbytes // READ_BYTES * READ_BYTES, READ_BYTES)

    def read_all(handle: Any) -> None:
        pending: list[Any] = []
        for turn, offset in enumerate(offsets):
            if len(pending) == READS:
                assert pending.pop(0).get() == READ_BYTES
            pending.append(handle.pread(arrays[turn % READS], file_offset=offset))
        assert all(future.get() == READ_BYTES for future in pending)

    rates = []
    with kvikio.CuFile(path, "r") as handle:
        read_all(handle)
        while len(rates) < 5:
            rounds, begin = 0, time.perf_counter()
            while time.perf_counter() - begin < least_s / 5:
                read_all(handle)
                rounds += 1
            rates.append(rounds * len(offsets) * READ_BYTES / (time.perf_counter() - begin) / 1e9)
        way = "compat" if defaults.is_compat_mode_preferred() else "cuFile"
    return statistics.median(rates), f"KvikIO {kvikio.__version__}, {way}, unverified"


def main() -> None:
    path, nbytes, least_ms = sys.argv[1:]
    try:
        rate, note = measure(path, int(nbytes), int(least_ms) / 1000)
    except (ImportError, OSError, RuntimeError) as error:  # what is missing, or what KvikIO and cupy say of the GPU
        print(json.dumps({"name": "kvikio_get", "gb_per_s": None, "note": str(error)}))
    else:
        print(json.dumps({"name": "kvikio_get", "gb_per_s": rate, "note": note}))


if __name__ == "__main__":
    main()
