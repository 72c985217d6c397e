# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Verify a pool: read every descriptor, read every payload and compare its checksum.

Opens read-only unless --repair is given, so it may check a pool in use. A block that its owner reclaims meanwhile is
not taken for a damaged one. With --repair the pool must be in owner mode and not in use; blocks that are damaged or
cannot be read are dropped: they become misses. Blocks that were deleted in shared mode are checked too: only the
metadata engine knows of that.

  kvstore check pool.img
  kvstore check /dev/disk/by-id/nvme-eui.0025… --sample 10000
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

import kvstore
from kvstore.cli.arguments import add_paths, count
from kvstore.cli.exits import EXIT_BAD, EXIT_OK
from kvstore.cli.output import make_console, print_json
from kvstore.cli.verification import Tally, Verdict, drop, sample, still_there, verify
from kvstore.sizes import format_size

HELP = "verify every block of a pool"

_LISTED_TEXT = 20
_LISTED_JSON = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this verb."""
    add_paths(parser)
    parser.add_argument("--sample", type=count, metavar="N", help="only N blocks, chosen at random")
    parser.add_argument("--repair", action="store_true", help="drop blocks that are damaged or cannot be read")


def run(options: argparse.Namespace) -> int:
    """Check, report."""
    with kvstore.open(options.paths, read_only=not options.repair) as pool:
        stats, shared_mode = pool.stats(), bool(pool.superblocks()[0]["shared_mode"])
        started = time.monotonic()
        tally = _check(pool, options)
        seconds = time.monotonic() - started
    if tally.bad and not options.repair:
        bad = still_there(options.paths, tally.bad)
        tally.stale += len(tally.bad) - len(bad)
        tally.bad = bad
    report = _report(tally, stats, seconds) | {"shared_mode": shared_mode}
    if options.json:
        print_json(report)
    else:
        _print_report(report, tally, repaired=options.repair)
    return EXIT_OK if report["ok"] else EXIT_BAD


def _check(pool: kvstore.Pool, options: argparse.Namespace) -> Tally:
    stats = pool.stats()
    total, total_bytes = int(stats["blocks"]), int(stats["live_bytes"])
    blocks = pool.blocks()
    if options.sample and options.sample < total:
        total_bytes = total_bytes * options.sample // total
        blocks = sample(blocks, total, options.sample)
    tally = Tally()
    with _progress(shown=not options.json) as progress:
        bar = progress.add_task("checking", total=total_bytes)
        for verdict in verify(pool, blocks):
            tally.blocks += 1
            tally.stale += verdict.outcome == "stale"
            tally.bytes += verdict.block.nbytes
            progress.update(bar, advance=verdict.block.nbytes)
            if verdict.is_bad:
                tally.bad.append(verdict)
                if options.repair:
                    tally.dropped += drop(pool, verdict.block)
    if options.repair:
        pool.flush()
    return tally


def _progress(*, shown: bool) -> Progress:
    console = make_console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    )


def _report(tally: Tally, stats: dict[str, Any], seconds: float) -> dict[str, Any]:
    corrupt = sum(verdict.outcome == "corrupt" for verdict in tally.bad)
    metadata = {
        "metadata_blocks_damaged": stats["recovery_blocks_skipped"],
        "metadata_copies_damaged": stats["recovery_copies_damaged"],
        "regions_unreadable": stats["recovery_regions_quarantined"],
        "superblock_copies_damaged": stats["superblock_copies_damaged"],
    }
    return {
        "ok": not tally.bad and not any(metadata.values()),
        "blocks": stats["blocks"],
        "checked_blocks": tally.blocks,
        "checked_bytes": tally.bytes,
        "corrupt_blocks": corrupt,
        "unreadable_blocks": len(tally.bad) - corrupt,
        "reclaimed_meanwhile": tally.stale,
        "dropped_blocks": tally.dropped,
        **metadata,
        "seconds": seconds,
        "bad": [_bad_dict(verdict) for verdict in tally.bad[:_LISTED_JSON]],
    }


def _bad_dict(verdict: Verdict) -> dict[str, Any]:
    block = verdict.block
    return {
        "outcome": verdict.outcome,
        "device": block.device,
        "region": block.region,
        "slot": block.slot,
        "generation": block.generation,
        "offset_bytes": block.offset_bytes,
        "nbytes": block.nbytes,
        "key": block.key.hex(),
        "space": block.space,
        "error": verdict.error,
    }


def _print_report(report: dict[str, Any], tally: Tally, *, repaired: bool) -> None:
    console = make_console()
    for bad in report["bad"][:_LISTED_TEXT]:
        where = f"device {bad['device']} region {bad['region']} slot {bad['slot']} (offset {bad['offset_bytes']:,})"
        reason = f": {bad['error']}" if bad["error"] else ""
        console.print(f"{bad['outcome']}: {where}, {bad['nbytes']:,} bytes, key {bad['key']}{reason}")
    if len(tally.bad) > _LISTED_TEXT:
        console.print(f"… and {len(tally.bad) - _LISTED_TEXT:,} more; --json lists them")
    if report["metadata_blocks_damaged"]:
        console.print(
            f"damaged: {report['metadata_blocks_damaged']:,} blocks of metadata. The blocks they described are misses;"
            " their regions are reclaimed in time"
        )
    if report["metadata_copies_damaged"]:
        console.print(
            f"damaged: {report['metadata_copies_damaged']:,} copies of paired metadata. Their twins serve; what"
            " only the damaged one said is lost: the last deletes may be undone, the last blocks be misses"
        )
    if report["regions_unreadable"]:
        console.print(f"damaged: both headers of {report['regions_unreadable']:,} regions; what they held are misses")
    if report["superblock_copies_damaged"]:
        console.print(
            f"damaged: {report['superblock_copies_damaged']} superblock copies"
            + ("; rewritten" if repaired else "; the next open for writing rewrites them")
        )
    rate = report["checked_bytes"] / report["seconds"] / 1e9 if report["seconds"] else 0.0
    console.print(
        f"checked {report['checked_blocks']:,} of {report['blocks']:,} blocks,"
        f" {format_size(report['checked_bytes'])} in {report['seconds']:.1f} s ({rate:.2f} GB/s)"
    )
    if report["ok"]:
        console.print("all good")
    elif repaired:
        console.print(f"{len(tally.bad):,} bad blocks, {report['dropped_blocks']:,} dropped")
    elif tally.bad:
        mend = "Drop them with --repair"
        if report["shared_mode"]:
            mend += (
                " when the openers have closed and `kvstore unshare` has ended shared mode, or let them be reclaimed"
            )
        console.print(f"{len(tally.bad):,} bad blocks; reading them is a miss. {mend}")
