# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A run as text, in the form that fio's has, from the document that is also written as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvstore.sizes import format_size

__all__ = ["report"]

_PER_LINE = 4
_SIDES = (("read", "read"), ("write", "write"))


def report(document: dict[str, Any]) -> str:
    """Everything, job by job, and a line for each job at the end."""
    lines: list[str] = []
    for job in document["jobs"]:
        lines += [*_job(job), ""]
    lines.append("Run status:")
    for job in document["jobs"]:
        lines += list(_summary(job))
    return "\n".join(lines)


def _job(job: dict[str, Any]) -> Iterator[str]:
    own, options = job["kvbench"], job["job options"]
    sizes = ",".join(format_size(size) for size in own["block_sizes"])
    yield (
        f"{job['jobname']}: rw={own['rw']}, bs={sizes}, engine={own['engine']}, iodepth={options['iodepth']}"
        f"{_calls(options)}, numjobs={options['numjobs']}: err={job['error']:2}"
    )
    if "why_not" in own:
        yield f"  cannot run here: {own['why_not']}"
        return
    if "failed" in own:
        yield f"  failed: {own['failed']}"
    for name, label in _SIDES:
        if job[name]["total_ios"]:
            yield from _side(job[name], label)
    yield f"  cpu          : usr={job['usr_cpu']:.2f}%, sys={job['sys_cpu']:.2f}%{_per_gb(own)}"
    yield f"  blocks       : verified={own['verified']} ({own['verify']}), wrong={own['wrong']}, misses={own['misses']}"
    if own["facts"].get("verified_on_device"):
        yield f"  on the device: verified={own['facts']['verified_on_device']}, by a pass after the gets"
    for wrong in own["wrong_blocks"]:
        yield f"    wrong      : {wrong}"
    if own["write_amplification"]:
        yield f"  written      : {own['write_amplification']:.3f} bytes to the device for each byte put"
    if own["path"]:
        yield f"  path taken   : {own['path']}"


def _calls(options: dict[str, str]) -> str:
    """How they are called, where that is not one call after the other."""
    batch = options["iodepth_batch_submit"]
    return "" if batch in ("1", options["iodepth"]) else f" in calls of {batch}"


def _side(side: dict[str, Any], label: str) -> Iterator[str]:
    moved, seconds = side["io_bytes"], side["runtime"] / 1000
    yield (
        f"  {label}: IOPS={side['iops']:.0f}, BW={_speed(side['bw_bytes'])}({format_size(moved)}/{side['runtime']}msec)"
    )
    latency = side["clat_ns"]
    unit, divisor = _unit(latency["mean"])
    yield (
        f"    clat ({unit}): min={latency['min'] / divisor:.1f}, max={latency['max'] / divisor:.1f}, "
        f"avg={latency['mean'] / divisor:.2f}, stdev={latency['stddev'] / divisor:.2f}"
    )
    yield f"    clat percentiles ({unit}):"
    cells = [f"{float(at):5.2f}th=[{value / divisor:8.1f}]" for at, value in latency["percentile"].items()]
    for first in range(0, len(cells), _PER_LINE):
        yield "     | " + ", ".join(cells[first : first + _PER_LINE])
    if side["bw_samples"]:
        yield (
            f"   bw (  MiB/s): min={side['bw_min'] / 1024:.1f}, max={side['bw_max'] / 1024:.1f}, "
            f"avg={side['bw_mean'] / 1024:.1f}, stdev={side['bw_dev'] / 1024:.1f}, samples={side['bw_samples']}, "
            f"seconds={seconds:.1f}"
        )


def _summary(job: dict[str, Any]) -> Iterator[str]:
    own = job["kvbench"]
    for name, label in _SIDES:
        if job[name]["total_ios"]:
            p99 = job[name]["clat_ns"]["percentile"]["99.000000"]
            yield (
                f"  {label.upper():>5}: bw={_speed(job[name]['bw_bytes'])}, iops={job[name]['iops']:.0f}, "
                f"p99={p99 / 1000:.0f}us{_per_gb(own)}  {job['jobname']}"
            )
    if "why_not" in own or "failed" in own:
        yield f"   NONE: {own.get('why_not') or own['failed']}  {job['jobname']}"


def _speed(bytes_per_s: int) -> str:
    """Both units, as fio: ``7724MiB/s (8099MB/s)``."""
    return f"{bytes_per_s / 2**20:.0f}MiB/s ({bytes_per_s / 1e6:.0f}MB/s)"


def _per_gb(own: dict[str, Any]) -> str:
    return f", {own['cpu_s_per_gb']:.3f} CPU-s/GB" if own["cpu_s_per_gb"] is not None else ""


def _unit(nanoseconds: float) -> tuple[str, int]:
    return ("msec", 1_000_000) if nanoseconds >= 10_000_000 else ("usec", 1000)
