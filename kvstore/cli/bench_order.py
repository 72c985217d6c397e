# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Measure how long a request waits when many ask at once: in order, with fair sharing, and by rivals.

  kvstore bench order
  kvstore bench order --filename=/mnt/nvme/order.img --engine=preadv,raw_block-io_uring,file-per-key

All requests are submitted together; a request is complete when its last block is there. The mean of that is told, and
its ratio to that of fair sharing, where all requests progress alike. docs/bench.md has more.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

from kvstore.cli.exits import EXIT_BAD, EXIT_OK
from kvstore.cli.output import be_writable, print_json, print_table, write_result
from kvstore.errors import ConfigError
from kvstore.sizes import format_size, parse_size

if TYPE_CHECKING:
    from kvstore.bench.order import OrderSpec, Served

HELP = "how long requests wait that ask at once"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this verb."""
    parser.add_argument(
        "--filename", default="kvbench-order.img", metavar="PATH", help="file or device; ',' between those of "
        "the engines, kvstore's first, which otherwise get files of their own; ram: in memory (needs root)"
    )  # fmt: skip
    parser.add_argument("--engine", default="", metavar="A,B", help="rivals; all: whatever can run")
    parser.add_argument("--requests", type=int, default=16, metavar="N", help="that ask at once (16)")
    parser.add_argument("--blocks", type=int, default=32, metavar="N", help="of a request (32)")
    parser.add_argument("--bs", default="1m", metavar="SIZE", help="of a block (1m)")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="medians are told (5)")
    parser.add_argument("--randseed", type=int, default=1, metavar="N", help="of contents (1)")
    parser.add_argument("--overwrite", action="store_true", help="what is at the filename may be overwritten")
    parser.add_argument("--output", metavar="FILE", help="write the JSON there, too")


def run(options: argparse.Namespace) -> int:
    """Measure, and tell."""
    from kvstore.bench.order import measure_order

    spec = _spec(options)
    if options.output:
        be_writable(options.output)
    results = measure_order(spec)
    made = document(spec, results)
    if options.output:
        write_result(json.dumps(made, indent=2), options.output)
    if options.json:
        print_json(made)
    else:
        _print(spec, results)
    return EXIT_BAD if any(one.wrong or one.failed for one in results) else EXIT_OK


def _spec(options: argparse.Namespace) -> OrderSpec:
    from kvstore.bench.engines import ENGINES
    from kvstore.bench.order import OrderSpec

    for name in ("requests", "blocks", "repetitions"):
        if not 1 <= getattr(options, name) <= 4096:
            raise ConfigError(f"--{name} is {getattr(options, name)}: allowed are 1 to 4096")
    engines = [name for name in ENGINES if name != "fio"] if options.engine == "all" else options.engine.split(",")
    return OrderSpec(
        filename=options.filename,
        engines=tuple(name for name in engines if name),
        requests=options.requests,
        blocks=options.blocks,
        block_bytes=parse_size(options.bs),
        repetitions=options.repetitions,
        seed=options.randseed,
        overwrite=options.overwrite,
    )


def document(spec: OrderSpec, results: list[Served]) -> dict[str, Any]:
    """The result as JSON values."""
    from kvstore.bench.machine import machine
    from kvstore.bench.order import GOAL

    devices = {device["path"]: device for one in results for device in one.devices}
    return {
        "measurement": "order",
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": f"kvstore {shlex.join(sys.argv[1:])}",
        "filename": spec.filename,
        "requests": spec.requests,
        "blocks": spec.blocks,
        "block_bytes": spec.block_bytes,
        "repetitions": spec.repetitions,
        "seed": spec.seed,
        "goal": GOAL,
        "reached": results[0].ratio <= GOAL,
        "machine": machine() | {"devices": list(devices.values())},
        "served": [
            {"engine": one.engine, "how": one.how, "why_not": one.why_not, "failed": one.failed, "wrong": one.wrong}
            if not one.is_measured
            else {
                "engine": one.engine,
                "how": one.how,
                "mean_s": one.mean_s,
                "last_s": one.last_s,
                "mean_of_last": one.mean_of_last,
                "ratio": one.ratio,
                "bytes_per_s": spec.total_bytes / one.last_s,
                "completions_s": one.completions_s,
                "verified": one.verified,
                "wrong": one.wrong,
                "facts": one.facts,
            }
            for one in results
        ],
    }


def _print(spec: OrderSpec, results: list[Served]) -> None:
    from kvstore.bench.order import GOAL, MARGIN

    print(
        f"{spec.requests} requests of {spec.blocks} blocks of {format_size(spec.block_bytes)} at once, "
        f"{spec.repetitions} repetitions in turn"
    )
    rows = [
        [one.engine, one.how, f"{one.mean_s * 1e3:.0f}", f"{one.last_s * 1e3:.0f}",
         f"{one.mean_of_last:.2f}", f"{one.ratio:.2f}", f"{spec.total_bytes / one.last_s / 1e9:.2f}",
         f"{one.verified:,}", f"{len(one.wrong):,}"]
        for one in results if one.is_measured
    ]  # fmt: skip
    print_table(["engine", "served", "mean ms", "last ms", "of last", "of fair", "GB/s", "verified", "wrong"], rows)
    for one in results:
        if not one.is_measured:
            print(f"{one.engine}: " + (one.why_not or f"failed: {one.failed}"))
    in_order, fair = results[:2]
    if fair.last_s > in_order.last_s * (1 + MARGIN):
        print(
            f"fair sharing takes {fair.last_s / in_order.last_s:.2f} times as long for all together: its jobs of one "
            "block cost time of their own, which flatters the ratios; take larger blocks (--bs)"
        )
    reached = "reached" if results[0].ratio <= GOAL else "not reached"
    print(f"in order, requests wait {results[0].ratio:.2f} of fair sharing; goal {GOAL:.2f}: {reached}")
