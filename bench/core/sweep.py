# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the default window suits every block size: batch gets at 64 KiB to 192 MiB, the default next to others."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import kvstore
from bench.facts import facts
from kvstore.bench.content import Buffers, Content
from kvstore.bench.places import loop_on_memory

MIB = 1 << 20
SIZES = (MIB // 16, MIB // 4, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 192 * MIB)
WINDOWS = (None, 4 * MIB, 16 * MIB, 64 * MIB, 128 * MIB)
ARENA_BYTES = 512 * MIB
MOVED_BYTES = 1024 * MIB


def gb_per_s(device: str, window: int | None, keys: list[bytes], buffers: Buffers, content: Content) -> float:
    """One repetition: the same batch again and again, for about a gigabyte. Every block is looked at, untimed."""
    size = buffers.rows.shape[1]
    views, sizes = buffers.views(size), [size] * len(keys)
    seconds = 0.0
    repetitions = max(2, MOVED_BYTES // (size * len(keys)))
    with kvstore.open(device, window_bytes=window) as pool:
        space = pool.space(engine="bench")
        space.get_many(keys, views).wait()
        for _ in range(repetitions):
            content.spoil(buffers, len(keys))
            begun = time.perf_counter()
            hits = all(space.get_many(keys, views).wait())
            seconds += time.perf_counter() - begun
            if not hits or any(content.check(buffers, range(len(keys)), sizes, "stamp")):
                raise RuntimeError("a block that was put is missing, or wrong")
    return repetitions * size * len(keys) / 1e9 / seconds


def main(argv: list[str]) -> int:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(prog="bench-core sweep", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", help="keep every repetition here")
    arguments = parser.parse_args(argv)
    rows = []
    with loop_on_memory(6 << 30) as device:
        for size in SIZES:
            kvstore.format(device, block_bytes=size, min_block_bytes=min(size, MIB // 4), force=True)
            count = max(2, min(16, ARENA_BYTES // size))
            content, buffers = Content(size, seed=1), Buffers(count, size)
            content.fill(buffers)
            content.stamp(buffers, range(count))
            keys = [os.urandom(32) for _ in range(count)]
            with kvstore.open(device) as pool:
                pool.space(engine="bench").put_many(keys, buffers.views(size)).wait()
            runs: dict[int | None, list[float]] = {window: [] for window in WINDOWS}
            for _ in range(arguments.repetitions):
                for window in WINDOWS:
                    runs[window].append(gb_per_s(device, window, keys, buffers, content))
            medians = {window: statistics.median(values) for window, values in runs.items()}
            ratio = medians[None] / max(medians.values())
            print(
                f"{size // 1024:7d} KiB  default {medians[None]:5.2f} GB/s, {ratio:.2f} of the best window", flush=True
            )
            rows += [{"block_bytes": size, "window_bytes": window, "gb_per_s": runs[window]} for window in WINDOWS]
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"machine": facts("scripts/bench-core"), "rows": rows}, indent=1))
    return 0
