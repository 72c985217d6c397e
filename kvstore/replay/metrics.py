# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What a replay means for a pool: bytes, drive writes per day, bandwidth, time to the first token. docs/replay.md."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from kvstore.errors import ConfigError
from kvstore.replay.prefill import Prefill
from kvstore.replay.simulate import Admission, Result
from kvstore.replay.trace import Trace

__all__ = ["Serving", "block_figures", "byte_figures", "ttft_figures"]

_DAY_S = 86400
_PEAK_WINDOW_S = 10


@dataclass(frozen=True, slots=True)
class Serving:
    """The machine that would have computed what was a hit."""

    prefill: Prefill
    operations_per_s: float  # of all its GPUs, as reached
    read_bytes_per_s: float  # of the pool


def block_figures(trace: Trace, result: Result, capacity_blocks: int, admission: Admission) -> dict[str, Any]:
    """What needs no size of a block."""
    return {
        "trace": trace.name,
        "requests": len(trace.requests),
        "seconds": trace.seconds,
        "block_tokens": trace.block_tokens,
        "lookups": trace.lookups,
        "blocks_unique": trace.blocks_unique,
        "policy": result.policy,
        "admission": admission.value,
        "capacity_blocks": capacity_blocks,
        "capacity_share": capacity_blocks / trace.blocks_unique,
        "prefix_hit": result.prefix_hit,
        "block_hit": result.block_hit,
        "writes_per_lookup": result.writes_per_lookup,
        "write_amplification": result.write_amplification,
        "blocks_put": result.blocks_put,
        "blocks_copied": result.blocks_copied,
    }


def byte_figures(trace: Trace, result: Result, capacity_blocks: int, block_bytes: int) -> dict[str, Any]:
    """Endurance and bandwidth, for blocks of one size; a partial block counts as a whole one.

    Raises
    ------
    ConfigError : all requests came at one time, so there are no rates.
    """
    seconds = trace.seconds
    if seconds == 0:
        raise ConfigError(f"all requests of {trace.name} came at one time: bytes a second and a day need more")
    read = sum(served.run for served in result.served)
    per_day = result.blocks_written * block_bytes * _DAY_S / seconds
    capacity_bytes = capacity_blocks * block_bytes
    return {
        "block_bytes": block_bytes,
        "capacity_bytes": capacity_bytes,
        "bytes_put": result.blocks_put * block_bytes,
        "bytes_written": result.blocks_written * block_bytes,
        "bytes_written_per_day": round(per_day),
        # Of a cache that is full and turns over this is a day over the time that a block stays.
        "drive_writes_per_day": per_day / capacity_bytes,
        "read_gb_per_s": read * block_bytes / seconds / 1e9,
        "read_gb_per_s_peak": _peak(trace, [served.run for served in result.served]) * block_bytes / 1e9,
        "write_gb_per_s": result.blocks_written * block_bytes / seconds / 1e9,
        "write_gb_per_s_peak": _peak(trace, [served.written for served in result.served]) * block_bytes / 1e9,
    }


def ttft_figures(trace: Trace, result: Result, block_bytes: int, serving: Serving) -> dict[str, Any]:
    """Time to the first token saved, without queueing and without overlap of loading and computing."""
    computed_s = saved_s = 0.0
    declined = 0
    for request, served in zip(trace.requests, result.served, strict=True):
        computed_s += serving.prefill.operations(0, request.tokens) / serving.operations_per_s
        hit_tokens = min(served.run * trace.block_tokens, request.tokens)
        gain_s = serving.prefill.operations(0, hit_tokens) / serving.operations_per_s
        gain_s -= served.run * block_bytes / serving.read_bytes_per_s
        declined += gain_s < 0
        saved_s += max(gain_s, 0.0)
    requests = len(trace.requests)
    return {
        "prefill": asdict(serving.prefill),
        "operations_per_s": serving.operations_per_s,
        "read_bytes_per_s": serving.read_bytes_per_s,
        "ttft_computed_s": computed_s / requests,
        "ttft_saved_s": saved_s / requests,
        "loads_declined": declined,
    }


def _peak(trace: Trace, blocks: list[int]) -> float:
    """Blocks a second in the busiest window, or in the whole of a shorter trace."""
    if 0 < trace.seconds < _PEAK_WINDOW_S:
        return sum(blocks) / trace.seconds
    windows: defaultdict[int, int] = defaultdict(int)
    first_s = trace.requests[0].time_s
    for request, count in zip(trace.requests, blocks, strict=True):
        windows[int((request.time_s - first_s) // _PEAK_WINDOW_S)] += count
    return max(windows.values()) / _PEAK_WINDOW_S
