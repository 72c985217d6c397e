# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Replay a trace of requests: what a cache of this size and policy would have hit, and what it would have written.

Simulates the policy, which takes a second or so. With --store it also runs the trace against the store itself, in a
file that it makes, with small payloads, and compares every block that it reads. docs/replay.md has the form of a trace
and says what each number means.

  kvstore replay trace.jsonl --capacity 10% --policy lru
  kvstore replay trace.jsonl --capacity 4TiB --shape qwen2.5-32b --json
  kvstore replay trace.jsonl --capacity 10% --policy store --store /dev/shm/replay.img
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from kvstore import replay
from kvstore.bench.shapes import load_shape, shape_names
from kvstore.cli.arguments import count, size
from kvstore.cli.exits import EXIT_BAD, EXIT_OK
from kvstore.cli.output import print_facts, print_json
from kvstore.errors import ConfigError
from kvstore.sizes import format_size

HELP = "replay a trace of requests against a policy, or against the store"

_ONE_100_GBE_PORT = 12_500_000_000
_OPERATIONS_PER_S = 445e12  # an H100 at 0.45 of its 989 Tflop/s


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this verb."""
    policies = "\n".join(f"  {name:22}{policy.about}" for name, policy in replay.POLICIES.items())
    parser.epilog = f"policies:\n{policies}\n\n{parser.epilog}"
    parser.add_argument("trace", metavar="TRACE", help="JSON lines, Mooncake's or the generic form")
    parser.add_argument("--capacity", default="10%", help="per cent of the trace's unique blocks (10%%), or bytes")
    parser.add_argument("--policy", default="store", choices=list(replay.POLICIES), metavar="NAME", help="see below")
    parser.add_argument(
        "--blocks-per-region", type=count, default=replay.BLOCKS_PER_REGION, metavar="N", help="unit of reuse (8)"
    )
    parser.add_argument(
        "--admit",
        default=replay.Admission.ALL.value,
        choices=[one.value for one in replay.Admission],
        help="which blocks are stored: all, or those that are not a partial last one",
    )
    blocks = parser.add_mutually_exclusive_group()
    blocks.add_argument("--block-bytes", type=size, metavar="SIZE", help="of one block: adds bytes, GB/s, drive writes")
    blocks.add_argument(
        "--shape",
        choices=shape_names(),
        metavar="MODEL",
        help=f"whose blocks they are, those of all its ranks together, and whose prefill: {', '.join(shape_names())}",
    )
    serving = parser.add_argument_group("time to the first token saved; needs --block-bytes or --shape")
    serving.add_argument(
        "--compute",
        choices=list(replay.MODELS),
        metavar="MODEL",
        help=f"whose prefill a hit saves: {', '.join(replay.MODELS)}",
    )
    serving.add_argument(
        "--operations-per-s", type=_rate, metavar="N", help="that the GPUs reach (445e12 for each rank of the shape)"
    )
    serving.add_argument(
        "--read-bytes-per-s", type=_rate, default=_ONE_100_GBE_PORT, metavar="N", help="of the pool (12.5e9)"
    )
    real = parser.add_argument_group("against the store itself")
    real.add_argument("--store", metavar="FILE", help="make a pool in this file and run the trace; the file is left")
    real.add_argument("--payload-bytes", type=size, metavar="SIZE", help="of a block there; as small as may be")


def run(options: argparse.Namespace) -> int:
    """Simulate, run, print."""
    trace = replay.read_trace(options.trace)
    block_bytes, serving = _model(options, trace)
    capacity = replay.capacity_blocks(trace, options.capacity, block_bytes)
    admission = replay.Admission(options.admit)
    policy = replay.make_policy(options.policy, capacity, trace=trace, blocks_per_region=options.blocks_per_region)
    result = replay.simulate(trace, policy, admission)
    report = replay.block_figures(trace, result, capacity, admission)
    report["blocks_per_region"] = options.blocks_per_region if policy.by_region else None
    if block_bytes is not None:
        report |= replay.byte_figures(trace, result, capacity, block_bytes)
        if serving is not None:
            report |= replay.ttft_figures(trace, result, block_bytes, serving)
    bad = False
    if options.store is not None:
        report["store"] = _run_store(options, trace, capacity, admission, block_bytes)
        bad = report["store"]["bytes_wrong"] != 0
    if options.json:
        print_json(report)
    else:
        print_facts(_facts(report))
    return EXIT_BAD if bad else EXIT_OK


def _model(options: argparse.Namespace, trace: replay.Trace) -> tuple[int | None, replay.Serving | None]:
    """Bytes of a block, and who would have computed it; what was not said is None."""
    block_bytes, compute, ranks = options.block_bytes, options.compute, 1
    if options.shape:
        shape = load_shape(options.shape)
        ranks = shape.tp_size
        block_bytes = shape.block_bytes(trace.block_tokens) * ranks
        name = shape.name.removesuffix(f"-tp{ranks}")
        compute = compute or (name if name in replay.MODELS else None)
    if block_bytes == 0:
        raise ConfigError("--block-bytes is 0")
    if compute and block_bytes is None:
        raise ConfigError("--compute needs --block-bytes or --shape")
    if not compute:
        return block_bytes, None
    operations_per_s = options.operations_per_s or _OPERATIONS_PER_S * ranks
    return block_bytes, replay.Serving(replay.MODELS[compute], operations_per_s, options.read_bytes_per_s)


def _run_store(
    options: argparse.Namespace,
    trace: replay.Trace,
    capacity: int,
    admission: replay.Admission,
    block_bytes: int | None,
) -> dict[str, Any]:
    done = replay.run_on_store(
        trace,
        options.store,
        capacity,
        options.blocks_per_region,
        payload_bytes=options.payload_bytes,
        admission=admission,
        reclaim_order=replay.POLICIES[options.policy].reclaim_order,
    )
    return {
        "prefix_hit": done.result.prefix_hit,
        "block_hit": done.result.block_hit,
        "writes_per_lookup": done.result.writes_per_lookup,
        "write_amplification": done.amplification(block_bytes or done.payload_bytes),
        "regions": done.regions,
        "blocks_per_region": done.blocks_per_region,
        "payload_bytes": done.payload_bytes,
        "bytes_wrong": done.bytes_wrong,
        "regions_reclaimed": done.stats["regions_reclaimed"],
    }


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e30:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return rate


def _facts(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield (
        "trace",
        (
            f"{report['trace']}: {report['requests']:,} requests in {report['seconds']:,.0f} s, {report['lookups']:,} "
            f"lookups of {report['blocks_unique']:,} blocks"
        ),
    )
    by_region = f", {report['blocks_per_region']} blocks a region" if report["blocks_per_region"] else ""
    yield "policy", f"{report['policy']}{by_region}, admits {report['admission']}"
    yield "capacity", f"{report['capacity_blocks']:,} blocks, {report['capacity_share']:.1%} of the unique ones"
    yield "prefix hit", _hits(report)
    if "block_bytes" in report:
        per_day = format_size(report["bytes_written_per_day"])
        yield "written", f"{per_day} a day, {report['drive_writes_per_day']:,.3g} drive writes a day"
        for way in ("read", "write"):
            mean, peak = report[f"{way}_gb_per_s"], report[f"{way}_gb_per_s_peak"]
            yield f"{way}s", f"{mean:.3g} GB/s on average, {peak:.3g} in the busiest 10 s"
    if "ttft_saved_s" in report:
        saved, computed = report["ttft_saved_s"], report["ttft_computed_s"]
        share = saved / computed
        yield "first token", f"{saved:.3f} s earlier a request, of {computed:.3f} s computing all ({share:.1%})"
    if "store" in report:
        yield "the store", _hits(report["store"])
        wrong = report["store"]["bytes_wrong"]
        yield "bytes read", "all as put" if wrong == 0 else f"{wrong:,} WRONG"


def _hits(report: dict[str, Any]) -> str:
    return (
        f"{report['prefix_hit']:.4f} (any block {report['block_hit']:.4f}), {report['writes_per_lookup']:.4f} writes a "
        f"lookup, write amplification {report['write_amplification']:.3f}"
    )
