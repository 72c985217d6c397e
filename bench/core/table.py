# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The table: engines by size and depth on one device; ``--json`` keeps every repetition.

Engines alternate within each repetition, so that a slow minute of the machine falls on all of them; the figure of a
cell is the median over repetitions.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from bench.core.engines import Engine, Measured, Work, all_engines
from kvstore.bench.machine import machine
from kvstore.bench.places import file_on_disk, loop_on_memory

KIB, MIB = 1024, 1024 * 1024
SIZES = {"64k": 64 * KIB, "256k": 256 * KIB, "1m": MIB, "8m": 8 * MIB, "32m": 32 * MIB}


def cell(
    place: str,
    paths: dict[str, str],
    rw: str,
    size: int,
    depth: int,
    arguments: argparse.Namespace,
    engines: list[Engine],
) -> list[dict]:
    """One row for each engine: medians over the repetitions."""
    population = max(arguments.working_set // size, depth)
    count = max(min(arguments.bytes_per_repetition // size, 4096) // depth, 2) * depth
    extra = {"region_bytes": max(4 * size, 16 * MIB), "device_bytes": arguments.device_bytes}
    work = {
        engine.name: Work(
            path=paths[engine.name],
            rw=rw,
            block_bytes=size,
            depth=depth,
            count=count,
            population=population,
            extra=extra,
        )
        for engine in engines
    }
    runs: dict[str, list[Measured]] = {engine.name: [] for engine in engines}
    failed: dict[str, str] = {}

    def attempt(engine: Engine, step: Callable[[], object]) -> None:
        if engine.name in failed:
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001 - a competitor that cannot run is a row that says so
            failed[engine.name] = f"{type(error).__name__}: {error}"

    for engine in engines:
        mine = work[engine.name]
        attempt(engine, lambda engine=engine, mine=mine: engine.open(mine))
        warm = dataclasses.replace(mine, count=min(count, 2 * depth))
        # Behind every block that the repetitions put: one put already would be present, and cost nothing.
        behind = -(-arguments.repetitions * count // warm.count)
        attempt(engine, lambda engine=engine, warm=warm, behind=behind: engine.repetition(warm, behind))
    for repetition in range(arguments.repetitions):
        for engine in engines:
            attempt(engine, lambda e=engine, n=repetition: runs[e.name].append(e.repetition(work[e.name], n)))
    for engine in engines:
        attempt(engine, engine.close)
    rows = []
    limit = statistics.median(run.gb_per_s for run in runs[engines[0].name])
    for engine in engines:
        row = {"place": place, "rw": rw, "block_bytes": size, "depth": depth, "engine": engine.name}
        if engine.name in failed:
            row["failed"] = failed[engine.name]
        else:
            for figure in ("gb_per_s", "p50_us", "p99_us", "cpu_s_per_gb"):
                row[figure] = statistics.median(getattr(run, figure) for run in runs[engine.name])
            row["of_fio"] = row["gb_per_s"] / limit
            row["repetitions"] = [dataclasses.asdict(run) for run in runs[engine.name]]
        rows.append(row)
        print_row(row)
    return rows


def print_row(row: dict) -> None:
    """One line of the table."""
    size = next(name for name, size in SIZES.items() if size == row["block_bytes"])
    head = f"{row['place']:5} {row['rw']} {size:>5} x{row['depth']:<3} {row['engine']:27}"
    if "failed" in row:
        print(f"{head} failed: {row['failed']}", flush=True)
        return
    print(
        f"{head} {row['gb_per_s']:6.2f} GB/s {row['of_fio']:5.2f} of fio  p50 {row['p50_us']:8.0f} us  "
        f"p99 {row['p99_us']:8.0f} us  {row['cpu_s_per_gb']:.3f} CPU-s/GB",
        flush=True,
    )


def main(argv: list[str]) -> int:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(prog="bench-core table", description=__doc__.split("\n\n")[0])
    parser.add_argument("--places", default="ram,disk", help="ram: loop device over tmpfs (root); disk: a file")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--depths", default="1,16")
    parser.add_argument("--rw", default="get,put")
    parser.add_argument("--engines", default="", help="only engines whose name contains one of these")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--folder", default=".", help="of the file on disk")
    parser.add_argument("--json", type=Path, help="write every repetition here")
    arguments = parser.parse_args(argv)
    arguments.device_bytes = 1536 * MIB
    arguments.working_set = 512 * MIB
    arguments.bytes_per_repetition = 512 * MIB
    engines = all_engines()
    if arguments.engines:
        wanted = arguments.engines.split(",")
        engines = engines[:1] + [engine for engine in engines[1:] if any(name in engine.name for name in wanted)]
    facts = machine() | {"date": time.strftime("%Y-%m-%d %H:%M"), "command": "scripts/bench-core " + " ".join(argv)}
    print(" | ".join(f"{key} {value}" for key, value in facts.items()), flush=True)
    rows: list[dict] = []
    for place in arguments.places.split(","):
        with contextlib.ExitStack() as stack:
            # One for each engine, all alike, so that none has to be formatted and filled again for every repetition.
            paths = {
                engine.name: stack.enter_context(
                    loop_on_memory(arguments.device_bytes)
                    if place == "ram"
                    else file_on_disk(arguments.device_bytes, arguments.folder)
                )
                for engine in engines
            }
            for rw in arguments.rw.split(","):
                for size in arguments.sizes.split(","):
                    for depth in arguments.depths.split(","):
                        rows += cell(place, paths, rw, SIZES[size], int(depth), arguments, engines)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1))
    return 0
