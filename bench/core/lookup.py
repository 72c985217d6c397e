# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What asking costs: ``match_prefix`` and ``contains`` of 1,000 keys from Python."""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import kvstore


def milliseconds(call: Callable[[], object], repetitions: int) -> float:
    """Median time of one call."""
    taken = []
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e3


def main(argv: list[str]) -> int:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(prog="bench-core lookup", description=__doc__)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=201)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=".", prefix="kvstore-bench-") as folder:
        path = str(Path(folder) / "pool.img")
        kvstore.format(path, size="512MiB", region_bytes="32MiB", min_block_bytes="64KiB")
        with kvstore.open(path) as pool:
            space = pool.space(engine="bench")
            keys = [os.urandom(32) for _ in range(arguments.keys)]
            assert all(space.put_many(keys, [b"x" * 4096] * len(keys), chain=True).wait())
            assert space.match_prefix(keys) == len(keys)
            for name, call in (("match_prefix", space.match_prefix), ("contains", space.contains)):
                taken = milliseconds(lambda call=call: call(keys), arguments.repetitions)  # type: ignore[misc]
                print(f"{name} of {len(keys)} keys: {taken:.3f} ms")
    return 0
