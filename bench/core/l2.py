# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""LMCache's own ``lmcache bench l2``, run on kvstore and on its built-in ``raw_block``, alternating, on one device.

CPU time is of the whole ``lmcache`` process less that of one that moves a single block: import and set-up are the same
for all. What is left still holds the benchmark's own work, filling and first touching its buffers, once for everyone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import kvstore
from kvstore.bench.machine import machine
from kvstore.bench.places import loop_on_memory

KVSTORE = "kvstore"
ENGINES = (KVSTORE, "raw_block posix", "raw_block io_uring")


@dataclasses.dataclass
class Run:
    """One ``lmcache bench l2``: megabytes a second, and the CPU seconds of the process."""

    store_mb_per_s: float
    load_mb_per_s: float
    cpu_s: float


@dataclasses.dataclass
class Measured:
    """Every repetition of an engine at one block size, and the CPU seconds of those that moved a single block."""

    runs: list[Run] = dataclasses.field(default_factory=list)
    idle_cpu_s: list[float] = dataclasses.field(default_factory=list)


def adapter_json(engine: str, path: str, block_bytes: int) -> str:
    """The value of ``--l2-adapter`` for one engine."""
    if engine == KVSTORE:
        door = {"type": "plugin", "module_path": "kvstore.lmcache", "class_name": "KVStoreL2Adapter"}
        return json.dumps(door | {"adapter_params": {"path": path}})
    io_engine = engine.split()[-1]
    slot_bytes = block_bytes + 4096  # its header stands before the payload
    return json.dumps({"type": "raw_block", "device_path": path, "slot_bytes": slot_bytes, "io_engine": io_engine})


def children_cpu_s() -> float:
    """CPU seconds of every child that has ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def bench_l2(adapter: str, block_bytes: int, depth: int, rounds: int) -> Run:
    """Run ``lmcache bench l2`` once on an empty store."""
    with tempfile.NamedTemporaryFile(suffix=".json") as output:
        command = [str(Path(sys.executable).parent / "lmcache"), "bench", "l2", "--l2-adapter", adapter]
        command += ["--num-keys", str(depth), "--data-size-kb", str(block_bytes // 1024), "--rounds", str(rounds)]
        command += ["--l1-align-bytes", "4096", "--format", "json", "--output", output.name, "--quiet"]
        before = children_cpu_s()
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
        cpu_s = children_cpu_s() - before
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        metrics = json.loads(Path(output.name).read_text())["metrics"]
    by_name = {value["operation"]: value for name, value in metrics.items() if name.startswith("op_")}
    for name in ("Store", "Load"):
        if by_name[name]["total_success"] != by_name[name]["total_keys"]:
            raise RuntimeError(f"{name}: {by_name[name]['total_success']} of {by_name[name]['total_keys']} succeeded")
    return Run(by_name["Store"]["throughput_avg_mbps"], by_name["Load"]["throughput_avg_mbps"], cpu_s)


def empty(engine: str, path: str, block_bytes: int) -> None:
    """Let no key of the run before be there: who finds a key present writes nothing."""
    if engine == KVSTORE:
        kvstore.format(path, block_bytes=block_bytes, force=True)
        return
    with Path(path).open("r+b") as device:
        device.write(bytes(1024 * 1024))
        os.fsync(device.fileno())


def measure(device: str, block_bytes: int, depth: int, repetitions: int, rounds: int) -> dict[str, Measured]:
    """Every engine in turn, so that a slow minute of the machine falls on all; each time also with one block only."""
    measured = {engine: Measured() for engine in ENGINES}
    for _ in range(repetitions):
        for engine in ENGINES:
            adapter = adapter_json(engine, device, block_bytes)
            empty(engine, device, block_bytes)
            measured[engine].idle_cpu_s.append(bench_l2(adapter, block_bytes, depth=1, rounds=1).cpu_s)
            empty(engine, device, block_bytes)
            measured[engine].runs.append(bench_l2(adapter, block_bytes, depth, rounds))
    return measured


def row_of(engine: str, block_bytes: int, depth: int, rounds: int, measured: Measured) -> dict[str, Any]:
    """What is kept of an engine at one block size; prints it."""
    moved_gb = 2 * rounds * depth * block_bytes / 1e9
    runs = measured.runs
    cpu_s = statistics.median(run.cpu_s for run in runs) - statistics.median(measured.idle_cpu_s)
    store, load = (
        statistics.median(speeds) / 1e3
        for speeds in ([run.store_mb_per_s for run in runs], [run.load_mb_per_s for run in runs])
    )
    cells = f"store {store:6.2f} GB/s  load {load:6.2f} GB/s  {cpu_s / moved_gb:.3f} CPU-s/GB"
    print(f"{block_bytes // 1024:6d} KiB x{depth:<3d} {engine:20s} {cells}", flush=True)
    return {
        "engine": engine,
        "block_kib": block_bytes // 1024,
        "depth": depth,
        "cpu_s_per_gb": cpu_s / moved_gb,
        "runs": [dataclasses.asdict(run) for run in runs],
        "idle_cpu_s": measured.idle_cpu_s,
    }


def main(argv: list[str]) -> int:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(prog="bench-core l2", description=__doc__)
    parser.add_argument("--sizes-kib", default="256,1024,8192")
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", help="keep every repetition here")
    arguments = parser.parse_args(argv)
    depth, rows = arguments.depth, []
    with loop_on_memory(4 << 30) as device:
        for block_bytes in (int(size_kib) * 1024 for size_kib in arguments.sizes_kib.split(",")):
            rounds = max(4, (1 << 30) // (block_bytes * depth))
            measured = measure(device, block_bytes, depth, arguments.repetitions, rounds)
            rows += [row_of(engine, block_bytes, depth, rounds, measured[engine]) for engine in ENGINES]
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))
    return 0
