# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A run as JSON in fio's own schema, with the bins of json+, so that what reads fio's files reads these.

Reads are gets, prefetches and lookups, writes are puts. ``clat_ns`` and ``lat_ns`` are both how long the call took that
a block was in, which is when its caller has it; submission is not timed, so ``slat_ns`` is empty. The threads of a job
are one entry, as with ``group_reporting``. "job options" tells rw in fio's words; what was really asked is under
"kvbench", with all that fio has no place for:

    kvbench.machine                        of the document: kernel, processor, devices, revision
    jobs[].kvbench.engine, rw, options     of a job, as they were written
    jobs[].kvbench.place                   of engines whose devices are different and alike
    jobs[].kvbench.why_not, failed         when there are no figures
    jobs[].kvbench.verified, wrong, misses blocks; lost: misses of what the engine was to keep
    jobs[].kvbench.cpu_s_per_gb            of the engine alone; usr_cpu and sys_cpu are the same time
    jobs[].kvbench.write_amplification     bytes to the device for each byte put, where the engine knows
    jobs[].kvbench.series                  interval_s, and bytes a second of each interval, read and write
    jobs[].kvbench.turns                   seconds, read_bytes and write_bytes of each turn
    jobs[].kvbench.facts                   what the engine says about itself: version, path taken, its statistics
"""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from typing import Any

import kvstore
from kvstore.bench.machine import machine
from kvstore.bench.rows import BASELINE, percentile
from kvstore.bench.run import JobResult
from kvstore.bench.tally import SERIES_INTERVAL_S, Latencies, Side

__all__ = ["PERCENTILES", "document"]

#: fio's.
PERCENTILES = (1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99)
_FIO_RW = {"get": "randread", "put": "write", "getput": "randrw", "prefetch": "randread", "lookup": "randread"}
_LATENCY_BOUNDS = {
    "latency_ns": (1, (2, 4, 10, 20, 50, 100, 250, 500, 750, 1000)),
    "latency_us": (1000, (2, 4, 10, 20, 50, 100, 250, 500, 750, 1000)),
    "latency_ms": (1000_000, (2, 4, 10, 20, 50, 100, 250, 500, 750, 1000, 2000)),
}


def document(results: Sequence[JobResult], command: str) -> dict[str, Any]:
    """The whole file."""
    now = time.time()
    devices = {device["path"]: device for result in results for device in result.devices}
    return {
        "fio version": f"kvbench-{kvstore.__version__}",
        "timestamp": int(now),
        "timestamp_ms": int(now * 1000),
        "time": time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(now)),
        "global options": {},
        "jobs": [job(result) for result in results],
        "disk_util": [],
        "kvbench": {"command": command, "machine": machine() | {"devices": list(devices.values())}},
    }


def job(result: JobResult) -> dict[str, Any]:
    """One entry of ``jobs``."""
    spec, tally = result.spec, result.tally
    thread_ms = tally.thread_seconds * 1000
    several = len(spec.engine) > 1
    return {
        "jobname": f"{spec.name}-{result.engine}" if several else spec.name,
        "groupid": 0,
        "job_start": int(result.began_at * 1000),
        "error": _error(result),
        "eta": 0,
        "elapsed": int(tally.seconds) + 1,
        "job options": _in_fios_words(result),
        "read": side(tally.read, tally.seconds),
        "write": side(tally.write, tally.seconds),
        "trim": side(Side(), 0.0),
        "sync": {"total_ios": 0, "lat_ns": latency(Latencies())},
        "job_runtime": round(thread_ms),
        "usr_cpu": 100_000 * result.cpu.usr / thread_ms if thread_ms else 0.0,
        "sys_cpu": 100_000 * result.cpu.sys / thread_ms if thread_ms else 0.0,
        "ctx": 0,
        "majf": 0,
        "minf": 0,
        "iodepth_level": _depths(spec.iodepth, (1, 2, 4, 8, 16, 32)),
        "iodepth_submit": _depths(_call_blocks(result), (0, 4, 8, 16, 32, 64)),
        "iodepth_complete": _depths(_call_blocks(result), (0, 4, 8, 16, 32, 64)),
        **_latency_shares([tally.read.latencies, tally.write.latencies]),
        "latency_depth": spec.iodepth,
        "latency_target": 0,
        "latency_percentile": 100.0,
        "latency_window": 0,
        "kvbench": _own(result),
    }


def _in_fios_words(result: JobResult) -> dict[str, str]:
    """What was asked for."""
    spec = result.spec
    return {
        "name": spec.name,
        "filename": ":".join(result.paths),
        "rw": _FIO_RW[spec.rw],
        "bs": str(max(spec.block_sizes)),
        "iodepth": str(spec.iodepth),
        "iodepth_batch_submit": str(_call_blocks(result)),
        "numjobs": str(spec.numjobs),
        "size": str(spec.size),
        "ioengine": result.engine,
        "runtime": f"{spec.runtime:g}",
    }


def _call_blocks(result: JobResult) -> int:
    """Blocks that are begun together; fio begins one whenever one is done."""
    return 1 if result.engine == BASELINE else result.spec.batch_blocks


def _error(result: JobResult) -> int:
    """An errno, as with fio; 0 when all is well."""
    if result.ok:
        return 0
    return errno.EILSEQ if result.tally.wrong_count else errno.ENODATA if result.lost else errno.EIO


def _own(result: JobResult) -> dict[str, Any]:
    spec, tally = result.spec, result.tally
    own: dict[str, Any] = {"engine": result.engine, "rw": spec.rw, "options": dict(spec.given)}
    if spec.given.get("filename") == "ram":
        own["place"] = "memory"  # each engine has a device of its own there, and all are alike
    if result.why_not or result.failed:
        own["why_not" if result.why_not else "failed"] = result.why_not or result.failed
    cpu_s = result.cpu.usr + result.cpu.sys
    # The gets that use what was staged are taken off, which cannot be told from what other threads do meanwhile.
    cpu_known = bool(tally.bytes) and not (spec.rw == "prefetch" and spec.numjobs > 1)
    return own | {
        "block_sizes": list(spec.block_sizes),
        "shape": spec.shape or None,
        "verify": spec.verify,
        "verified": tally.verified,
        "wrong": tally.wrong_count,
        "wrong_blocks": tally.wrong,
        "misses": tally.read.misses + tally.write.misses,
        "lost": result.lost,
        "bytes": tally.bytes,
        "seconds": tally.seconds,
        "cpu_s": cpu_s,
        "cpu_s_per_gb": cpu_s / (tally.bytes / 1e9) if cpu_known else None,
        "write_amplification": result.facts.get("write_amplification"),
        "path": result.facts.get("path"),
        "series": {
            "interval_s": SERIES_INTERVAL_S,
            "read_bytes_per_s": _series(tally.read, tally.seconds),
            "write_bytes_per_s": _series(tally.write, tally.seconds),
        },
        "turns": result.turns,
        "facts": result.facts,
    }


def side(counted: Side, seconds: float) -> dict[str, Any]:
    """``read``, ``write`` or ``trim`` of a job."""
    bytes_per_s = counted.bytes / seconds if seconds else 0.0
    per_interval = [value / SERIES_INTERVAL_S for value in counted.series[: int(seconds / SERIES_INTERVAL_S)]]
    mean = sum(per_interval) / len(per_interval) if per_interval else 0.0
    deviation = (sum((x - mean) ** 2 for x in per_interval) / len(per_interval)) ** 0.5 if per_interval else 0.0
    to_ios = counted.blocks / counted.bytes if counted.bytes else 0.0
    figures = latency(counted.latencies)
    return {
        "io_bytes": counted.bytes,
        "io_kbytes": counted.bytes >> 10,
        "bw_bytes": round(bytes_per_s),
        "bw": round(bytes_per_s) >> 10,
        "iops": counted.blocks / seconds if seconds else 0.0,
        "runtime": round(seconds * 1000) if counted.blocks else 0,
        "total_ios": counted.blocks,
        "short_ios": counted.misses,
        "drop_ios": 0,
        "slat_ns": latency(Latencies()),
        "clat_ns": figures,
        "lat_ns": figures,
        "bw_min": round(min(per_interval, default=0)) >> 10,
        "bw_max": round(max(per_interval, default=0)) >> 10,
        "bw_agg": 100.0 if counted.bytes else 0.0,
        "bw_mean": mean / 1024,
        "bw_dev": deviation / 1024,
        "bw_samples": len(per_interval),
        "iops_min": round(min(per_interval, default=0) * to_ios),
        "iops_max": round(max(per_interval, default=0) * to_ios),
        "iops_mean": mean * to_ios,
        "iops_stddev": deviation * to_ios,
        "iops_samples": len(per_interval),
    }


def latency(counted: Latencies) -> dict[str, Any]:
    """Figures, and where there are any, percentiles and bins; fio's converter fails on bins that are empty."""
    figures: dict[str, Any] = {
        "min": counted.min,
        "max": counted.max,
        "mean": counted.mean,
        "stddev": counted.stddev,
        "N": counted.count,
    }
    if counted.count:
        bins = counted.bins()
        figures["percentile"] = {f"{at:.6f}": min(percentile(bins, at), counted.max) for at in PERCENTILES}
        figures["bins"] = {str(value): count for value, count in bins.items()}
    return figures


def _series(counted: Side, seconds: float) -> list[int]:
    """Bytes a second of each interval. The last one is shorter; one too short to tell a speed goes with that before."""
    moved = list(counted.series)
    lengths = [min(seconds - at * SERIES_INTERVAL_S, SERIES_INTERVAL_S) for at in range(len(moved))]
    if len(moved) > 1 and lengths[-1] < SERIES_INTERVAL_S / 10:
        moved[-2:] = [moved[-2] + moved[-1]]
        lengths[-2:] = [lengths[-2] + lengths[-1]]
    return [round(nbytes / length) if length > 0 else 0 for nbytes, length in zip(moved, lengths, strict=True)]


def _latency_shares(latencies: Sequence[Latencies]) -> dict[str, dict[str, float]]:
    """How many of 100 blocks took up to 2, 4, 10 … ns, us, ms."""
    total = sum(one.count for one in latencies)
    shares = {name: {str(bound): 0.0 for bound in bounds} for name, (_, bounds) in _LATENCY_BOUNDS.items()}
    shares["latency_ms"][">=2000"] = 0.0
    edges = [(bound * unit, name, str(bound)) for name, (unit, bounds) in _LATENCY_BOUNDS.items() for bound in bounds]
    for one in latencies:
        for value, count in one.bins().items():
            _, name, key = next((edge for edge in edges if value < edge[0]), (0, "latency_ms", ">=2000"))
            shares[name][key] += 100 * count / total
    return shares


def _depths(iodepth: int, bounds: Sequence[int]) -> dict[str, float]:
    """All calls have the same depth; fio counts it to the bound at or below it, and up to 4 together."""
    shares = {str(bound): 0.0 for bound in bounds} | {">=64": 0.0}
    at = max(bound for bound in bounds if bound <= max(iodepth, bounds[1] if bounds[0] == 0 else 1))
    shares[">=64" if iodepth >= 64 else str(at)] = 100.0
    return shares
