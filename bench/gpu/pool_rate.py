# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""How fast a pool reads blocks straight into GPU memory, verified there; the same lines as kvstore_gpu_bench prints.

    python bench/gpu/pool_rate.py PATH BLOCKS LEAST_MS

PATH is what ``kvstore_gpu_bench bounce`` left there: blocks of 4 MiB. Two jobs of 16 are always under way, each on a
stream of its own, on GPU 0.
"""

from __future__ import annotations

import inspect
import json
import statistics
import sys
import time
from pathlib import Path

import kvstore
from kvstore.errors import KvStoreError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "gpu"))

from gpu_arrays import Driver, DriverArray

BLOCK_BYTES = 4 << 20
JOB_BLOCKS = 16
JOBS = 2


def read_all(space: kvstore.Space, blocks: int, memory: list[DriverArray], streams: list[int]) -> None:
    pending: list[kvstore.Job | None] = [None] * JOBS
    for turn, first in enumerate(range(JOB_BLOCKS, JOB_BLOCKS + blocks, JOB_BLOCKS)):
        slot = turn % JOBS
        if (before := pending[slot]) is not None and not all(before.wait()):
            raise RuntimeError("a block was not read")
        keys = [b"block %d" % number for number in range(first, min(first + JOB_BLOCKS, JOB_BLOCKS + blocks))]
        outs = [(memory[slot].pointer + i * BLOCK_BYTES, BLOCK_BYTES) for i in range(len(keys))]
        pending[slot] = space.get_many(keys, outs, stream=streams[slot])
    if not all(all(job.wait()) for job in pending if job is not None):
        raise RuntimeError("a block was not read")


def measure(path: str, blocks: int, least_s: float) -> tuple[float, str]:
    """GB/s, the median of five after one that does not count; and which way the bytes took."""
    driver = Driver()
    memory = [driver.allocate(JOB_BLOCKS * BLOCK_BYTES) for _ in range(JOBS)]
    streams = [driver.stream() for _ in range(JOBS)]
    rates: list[float] = []
    with kvstore.open(path, gpu_direct="on") as pool:
        space = pool.space(engine="gpu-bench")
        read_all(space, blocks, memory, streams)
        while len(rates) < 5:
            rounds, begin = 0, time.perf_counter()
            while time.perf_counter() - begin < least_s / 5:
                read_all(space, blocks, memory, streams)
                rounds += 1
            rates.append(rounds * blocks * BLOCK_BYTES / (time.perf_counter() - begin) / 1e9)
        stats = pool.stats()
    ways = {way: int(stats[f"bytes_{way}"]) for way in ("direct", "compat", "bounced")}
    shares = ", ".join(f"{nbytes / max(sum(ways.values()), 1):.0%} {way}" for way, nbytes in ways.items() if nbytes)
    return statistics.median(rates), f"{shares}, verified"


def main() -> None:
    path, blocks, least_ms = sys.argv[1:]
    rate: float | None = None
    if "gpu_direct" not in inspect.signature(kvstore.open).parameters:
        note = "pools of this build know no gpu_direct"
    else:
        try:
            rate, note = measure(path, int(blocks), int(least_ms) / 1000)
        except (KvStoreError, OSError, RuntimeError) as error:
            note = str(error)
    print(json.dumps({"name": "pool_direct_get", "gb_per_s": rate, "note": note}))


if __name__ == "__main__":
    main()
