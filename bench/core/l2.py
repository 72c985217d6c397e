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

import kvstore
from kvstore.bench.machine import machine
from kvstore.bench.places import loop_on_memory

KVSTORE = "kvstore"


@dataclasses.dataclass
class Run:
    """One ``lmcache bench l2``: megabytes a second, and the CPU seconds of the process."""

    store_mb_per_s: float
    load_mb_per_s: float
    cpu_s: float


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


def main(argv: list[str]) -> int:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(prog="bench-core l2", description=__doc__)
    parser.add_argument("--sizes-kib", default="256,1024,8192")
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", help="keep every repetition here")
    arguments = parser.parse_args(argv)
    engines = (KVSTORE, "raw_block posix", "raw_block io_uring")
    rows = []
    with loop_on_memory(4 << 30) as device:
        for size_kib in map(int, arguments.sizes_kib.split(",")):
            block_bytes = size_kib * 1024
            rounds = max(4, (1 << 30) // (block_bytes * arguments.depth))
            runs: dict[str, list[Run]] = {engine: [] for engine in engines}
            idle: dict[str, list[float]] = {engine: [] for engine in engines}
            for _ in range(arguments.repetitions):
                for engine in engines:
                    adapter = adapter_json(engine, device, block_bytes)
                    empty(engine, device, block_bytes)
                    idle[engine].append(bench_l2(adapter, block_bytes, depth=1, rounds=1).cpu_s)
                    empty(engine, device, block_bytes)
                    runs[engine].append(bench_l2(adapter, block_bytes, arguments.depth, rounds))
            moved_gb = 2 * rounds * arguments.depth * block_bytes / 1e9
            for engine in engines:
                cpu_s = statistics.median(run.cpu_s for run in runs[engine]) - statistics.median(idle[engine])
                cpu = cpu_s / moved_gb
                rows.append(
                    {
                        "engine": engine,
                        "block_kib": size_kib,
                        "depth": arguments.depth,
                        "cpu_s_per_gb": cpu_s / moved_gb,
                    }
                )
                rows[-1] |= {"runs": [dataclasses.asdict(run) for run in runs[engine]], "idle_cpu_s": idle[engine]}
                store = statistics.median(run.store_mb_per_s for run in runs[engine]) / 1e3
                load = statistics.median(run.load_mb_per_s for run in runs[engine]) / 1e3
                cells = f"store {store:6.2f} GB/s  load {load:6.2f} GB/s  {cpu:.3f} CPU-s/GB"
                print(f"{size_kib:6d} KiB x{arguments.depth:<3d} {engine:20s} {cells}", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))
    return 0
