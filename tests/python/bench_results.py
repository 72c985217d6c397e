# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Result files made up for tests of what reads them: six engines, five sizes, two depths, gets and puts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ENGINES = {"kvstore": 0.95, "fio": 1.0, "preadv": 0.8, "lmcache-raw": 0.55, "lmcache-fs": 0.3, "rocksdb": 0.15}
SIZES = (65_536, 262_144, 1 << 20, 8 << 20, 32 << 20)
DEPTHS = (1, 16)
MACHINE = {"kernel": "6.12.9", "cpu": "AMD EPYC 9654", "cores": "96", "revision": "abc1234", "load": "0.1 0.2 0.3"}
DEVICE = {
    "path": "/dev/nvme1n1", "place": "nvme1n1", "disk": "nvme1n1", "model": "SAMSUNG MZQL23T8", "firmware": "GDC5602Q",
    "write_cache": "write back", "scheduler": "none", "in_use": "20 %",
}  # fmt: skip


def side(bytes_per_s: float = 0.0, block_bytes: int = 1, bins: Mapping[int, int] | None = None) -> dict[str, Any]:
    """``read`` or ``write`` of a job that ran for 5 s."""
    blocks = round(bytes_per_s * 5 / block_bytes)
    latency: dict[str, Any] = {"bins": {str(ns): count for ns, count in (bins or {}).items()}} if bins else {}
    return {
        "bw_bytes": round(bytes_per_s),
        "io_bytes": blocks * block_bytes,
        "total_ios": blocks,
        "iops": bytes_per_s / block_bytes,
        "runtime": 5000,
        "clat_ns": latency,
    }


def job(engine: str, rw: str, block_bytes: int, iodepth: int, speed: float, **own: Any) -> dict[str, Any]:
    """A job of kvbench; ``own`` goes into its kvbench object."""
    draw = random.Random(f"{engine} {rw} {block_bytes} {iodepth}")
    bytes_per_s = speed * 7e9 * (1 - 2.718 ** (-iodepth * (block_bytes + 150_000) / 1.2e6))
    mean_ns = block_bytes * iodepth / bytes_per_s * 1e9
    bins: dict[int, int] = {}
    for _ in range(1000):
        ns = float(f"{mean_ns * draw.lognormvariate(0, 0.25) * (8 if draw.random() < 0.01 else 1):.2g}")
        bins[int(ns)] = bins.get(int(ns), 0) + 1
    series = [round(bytes_per_s * draw.gauss(1, 0.04)) for _ in range(10)]
    direction = "write" if rw == "put" else "read"
    return {
        "jobname": f"{rw}-{block_bytes}-{iodepth}-{engine}",
        "error": 0,
        "job options": {
            "filename": "/dev/nvme1n1", "rw": "write" if rw == "put" else "randread", "bs": str(block_bytes),
            "iodepth": str(iodepth), "numjobs": "1", "size": str(1 << 30), "ioengine": engine,
        },
        "read": side(),
        "write": side(),
        direction: side(bytes_per_s, block_bytes, bins),
        "usr_cpu": 20 / speed,
        "sys_cpu": 10 / speed,
        "job_runtime": 5000,
        "kvbench": {
            "engine": engine,
            "rw": rw,
            "options": {},
            "block_sizes": [block_bytes],
            "verify": "stamp",
            "series": {"interval_s": 0.5, f"{direction}_bytes_per_s": series},
            "facts": {"stats": {"occupied_bytes": 3, "capacity_bytes": 4}},
            **own,
        },
    }  # fmt: skip


def document(jobs: Iterable[Mapping[str, Any]], machine: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A result of kvbench."""
    facts = {**MACHINE, **(machine or {}), "devices": [DEVICE]}
    own = {"command": "kvstore bench bench/jobs/sizes.fio --engine=all", "machine": facts}
    return {"fio version": "kvbench-0.1.0", "timestamp": 1, "time": "Mon", "jobs": list(jobs), "kvbench": own}


def all_jobs() -> list[dict[str, Any]]:
    """Every engine in every cell."""
    return [
        job(engine, rw, size, depth, speed * (1.4 if (engine, size) == ("preadv", SIZES[1]) else 1))
        for rw in ("get", "put")
        for size in SIZES
        for depth in DEPTHS
        for engine, speed in ENGINES.items()
    ]


def write(path: Path, made: Mapping[str, Any]) -> Path:
    """Into a file."""
    path.write_text(json.dumps(made))
    return path


def fio_document(**options: str) -> dict[str, Any]:
    """A result of fio itself, of one job of random reads of 1 MiB with 16 in flight."""
    given = {
        "name": "a", "rw": "randread", "bs": "1M", "iodepth": "16", "ioengine": "io_uring", "direct": "1",
        "size": "1g", "filename": "/dev/nvme1n1",
    } | options  # fmt: skip
    made = {
        "jobname": "a", "groupid": 0, "error": 0, "job options": given, "usr_cpu": 10.0, "sys_cpu": 20.0,
        "job_runtime": 5000, "read": side(2e9, 1 << 20, {1_000_000: 98, 2_000_000: 2}), "write": side(),
    }  # fmt: skip
    return {"fio version": "fio-3.33", "timestamp": 1, "time": "Mon", "jobs": [made]}
