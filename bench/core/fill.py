# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Puts three times what the store holds, and shows each tenth's speed: reclaim must not be felt, nothing may fail."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import kvstore
from kvstore import parse_size


def main(argv: list[str]) -> int:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(prog="bench-core fill", description=__doc__)
    parser.add_argument("--size", default="2GiB")
    parser.add_argument("--block", default="1MiB")
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--folder", default=".")
    arguments = parser.parse_args(argv)
    block_bytes = parse_size(arguments.block)
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="kvstore-bench-") as folder:
        path = str(Path(folder) / "pool.img")
        kvstore.format(path, size=arguments.size, block_bytes=block_bytes, region_bytes=max(block_bytes * 16, 16 << 20))
        with kvstore.open(path) as pool:
            space = pool.space(engine="bench")
            arena = memoryview(pool.alloc(arguments.depth * block_bytes)).cast("B")
            views = [arena[i * block_bytes : (i + 1) * block_bytes] for i in range(arguments.depth)]
            batches = 3 * parse_size(arguments.size) // (arguments.depth * block_bytes)
            begun, failed, stored = time.perf_counter(), 0, 0
            for batch in range(batches):
                keys = [b"%d.%d" % (batch, i) for i in range(arguments.depth)]
                done = sum(bool(result) for result in space.put_many(keys, views).wait())
                failed, stored = failed + len(keys) - done, stored + done
                if (batch + 1) % max(batches // 10, 1) == 0:
                    seconds, begun = time.perf_counter() - begun, time.perf_counter()
                    moved, stored = stored * block_bytes / 1e9, 0
                    stats = pool.stats()
                    print(
                        f"{batch + 1:6} batches  {moved / seconds:5.2f} GB/s  {stats['blocks']:.0f} blocks  "
                        f"{stats['regions_reclaimed']:.0f} regions reclaimed  {failed} failed",
                        flush=True,
                    )
            stats = pool.stats()
            written = stats["bytes_written_payload"] + stats["bytes_written_metadata"]
            print(f"bytes written / bytes put: {written / stats['bytes_put']:.4f}")
            views.clear()
            arena.release()
    return 1 if failed else 0
