# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What sharing costs: throughput of 1, 2, 4 and 8 openers on one device beside one owner, time from put to hit, engine
requests per GB put, CPU.

A figure of several openers is all their bytes over the time from the first one's beginning to the last one's end. The
first row is owner mode, so that what shared mode itself costs can be seen. Medians over the repetitions.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kvstore
from bench.facts import facts
from kvstore import parse_size
from kvstore.bench.places import file_on_disk, loop_on_memory

ROOT = Path(__file__).resolve().parents[2]
VERIFIED_BLOCKS = 128  # by each opener, of all openers' blocks


class Child:
    """A process of bench.sharing.opener."""

    def __init__(self, **options: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.sharing.opener", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def tell(self, *command: Any) -> None:
        """Have it do something; :meth:`answer` waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Of the oldest command that was not answered yet. RuntimeError: it ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"an opener ended with {self._process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        """Have it close its pool, and wait for its end."""
        self.tell("close")
        self.answer()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()


def all_do(children: list[Child], *command: Any) -> list[Any]:
    """The same command to all at once."""
    for child in children:
        child.tell(*command)
    return [child.answer() for child in children]


@contextlib.contextmanager
def openers(path: str, mode: str, count: int, arguments: argparse.Namespace) -> Iterator[list[Child]]:
    """A pool formatted anew, open in so many processes."""
    made = kvstore.format(path, block_bytes=arguments.block, region_bytes=arguments.region, force=True)
    engine = f"sqlite:{arguments.state}/{made[0]['pool_uuid']}.sqlite" if mode == "shared" else None
    options = {"path": path, "mode": mode, "engine": engine, "block_bytes": arguments.block, "depth": arguments.depth}
    options["nonce"] = secrets.randbits(64)
    children = [Child(name=f"opener{i}", **options) for i in range(count)]
    try:
        for child in children:
            child.answer()
        yield children
        for child in children:
            child.end()
    except BaseException:
        for child in children:
            child.kill()
        raise


def together(answers: list[dict[str, float]]) -> dict[str, float]:
    """One repetition of all openers."""
    gigabytes = sum(one["bytes"] for one in answers) / 1e9
    seconds = max(one["ended"] for one in answers) - min(one["begun"] for one in answers)
    return {
        "gb_per_s": gigabytes / seconds,
        "gigabytes": gigabytes,
        "failed": sum(one["failed"] for one in answers),
        "cpu_s_per_gb": sum(one["cpu_s"] for one in answers) / gigabytes,
        "slowest_of_fastest": min(one["bytes"] / (one["ended"] - one["begun"]) for one in answers)
        / max(one["bytes"] / (one["ended"] - one["begun"]) for one in answers),
    }


def throughput(path: str, mode: str, count: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Put and get of so many openers, and what they asked of the engine meanwhile."""
    names = [f"opener{i}" for i in range(count)]
    blocks = max(arguments.bytes // arguments.block // count, arguments.depth)
    row: dict[str, Any] = {"mode": mode, "openers": count, "blocks_each": blocks}
    runs: dict[str, list[dict[str, float]]] = {"put": [], "get": []}
    with openers(path, mode, count, arguments) as children:
        all_do(children, "put", arguments.repetitions, arguments.depth)  # warms up
        before = sum(one.get("engine_requests", 0) for one in all_do(children, "stats"))
        begun = time.monotonic()
        for repetition in range(arguments.repetitions):
            runs["put"].append(together(all_do(children, "put", repetition, blocks)))
        seconds = time.monotonic() - begun
        after = sum(one.get("engine_requests", 0) for one in all_do(children, "stats"))
        put_gb = sum(run["gigabytes"] for run in runs["put"])
        row["engine_requests_per_gb_put"] = (after - before) / put_gb
        row["engine_requests_per_s"] = (after - before) / seconds
        all_do(children, "refresh")
        for _ in range(arguments.repetitions):
            last = arguments.repetitions - 1  # the blocks put last are there
            runs["get"].append(together(all_do(children, "get", names, last, blocks, blocks)))
        for wrong in all_do(children, "wrong", names, arguments.repetitions - 1, blocks, VERIFIED_BLOCKS):
            if wrong:
                raise RuntimeError(f"{mode} x{count}: {len(wrong)} blocks are wrong, the first: {wrong[0]}")
        row["verified"] = count * VERIFIED_BLOCKS
        stats = all_do(children, "stats")
        row["peer_reads"] = sum(one.get("peer_reads", 0) for one in stats)
        row["checksum_misses"] = sum(one["checksum_misses"] for one in stats)
    for rw, repetitions in runs.items():
        row[rw] = {name: statistics.median(run[name] for run in repetitions) for name in repetitions[0]}
        row[rw]["repetitions"] = repetitions
    return row


def visibility(path: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One opener puts a block, another one asks for it all the time: when is it a hit?"""
    rows = []
    with openers(path, "shared", 2, arguments) as (prefill, decode):
        for durable in (True, False):
            from_begin, from_end = [], []
            for number in range(arguments.visible):
                decode.tell("await_hit", number, durable)
                prefill.tell("put_one", number, durable)
                put, hit = prefill.answer(), decode.answer()
                from_begin.append((hit["ended"] - put["begun"]) * 1e3)
                from_end.append((hit["ended"] - put["ended"]) * 1e3)
            row: dict[str, Any] = {"durable": durable, "puts": arguments.visible}
            for name, values in (("from_begin_ms", from_begin), ("from_end_ms", from_end)):
                ordered = sorted(values)
                row[name] = {"p50": statistics.median(ordered), "p99": ordered[-(-len(ordered) * 99 // 100) - 1]}
            rows.append(row)
    return rows


def main() -> int:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(prog="bench-sharing", description=__doc__.split("\n\n")[0])
    parser.add_argument("--place", default="ram", choices=["ram", "disk"], help="loop device over tmpfs (root); a file")
    parser.add_argument("--openers", default="1,2,4,8")
    parser.add_argument("--block", default="1MiB", type=parse_size)
    parser.add_argument("--depth", type=int, default=16, help="blocks in flight of each opener")
    parser.add_argument("--bytes", default="2GiB", type=parse_size, help="moved by all together in a repetition")
    parser.add_argument("--device", default="6GiB", type=parse_size)
    parser.add_argument("--region", default="64MiB", type=parse_size)
    parser.add_argument("--visible", type=int, default=200, help="puts whose time to a hit is measured")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--folder", default=".", help="of the file on disk")
    parser.add_argument("--json", type=Path, help="write every repetition here")
    arguments = parser.parse_args()
    here = facts("scripts/bench-sharing")
    print(" | ".join(f"{key} {value}" for key, value in here.items()), flush=True)
    results: dict[str, Any] = {"machine": here, "place": arguments.place, "block_bytes": arguments.block, "rows": []}
    with contextlib.ExitStack() as stack:
        # The SQLite file is in the folder on disk: even where the device is memory, it is flushed for real.
        state = stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder, prefix="kvstore-bench-"))
        arguments.state = Path(state).resolve()
        where = loop_on_memory(arguments.device) if arguments.place == "ram" else None
        path = stack.enter_context(where or file_on_disk(arguments.device, state))
        for mode, count in [("owner", 1), *(("shared", int(text)) for text in arguments.openers.split(","))]:
            row = throughput(path, mode, count, arguments)
            results["rows"].append(row)
            print_row(row, results["rows"][0])
        results["visibility"] = visibility(path, arguments)
        for row in results["visibility"]:
            print(
                f"{'durable' if row['durable'] else 'ordinary'} put to hit elsewhere: "
                + ", ".join(f"{n} p50 {row[n]['p50']:.2f} p99 {row[n]['p99']:.2f}" for n in list(row)[2:]),
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    return 0


def print_row(row: dict[str, Any], owner: dict[str, Any]) -> None:
    """One line of the table."""
    text = f"{row['mode']:6} x{row['openers']}"
    for rw in ("put", "get"):
        figures = row[rw]
        share = figures["gb_per_s"] / owner[rw]["gb_per_s"]
        text += (
            f"  {rw} {figures['gb_per_s']:6.2f} GB/s {share:4.2f} of the owner {figures['cpu_s_per_gb']:.3f} CPU-s/GB"
        )
    failed = sum(run["failed"] for rw in ("put", "get") for run in row[rw]["repetitions"])
    text += f"  {row['engine_requests_per_gb_put']:.1f} engine requests/GB put"
    print(text + (f"  {failed} failed" if failed else ""), flush=True)


if __name__ == "__main__":
    sys.exit(main())
