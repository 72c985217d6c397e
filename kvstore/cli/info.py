# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Say what a pool is and how full it is: superblocks, geometry, owner, regions by state, live and occupied bytes.

Opens read-only: claims nothing, writes nothing, and may look at a pool that is in use. What it then shows is the
moment of opening. Blocks that were deleted in shared mode count: only the metadata engine knows of that.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import kvstore
from kvstore.cli.arguments import add_paths
from kvstore.cli.exits import EXIT_OK
from kvstore.cli.output import date_text, percent, print_facts, print_json, print_table
from kvstore.sizes import format_size

HELP = "say what a pool is and how full it is"

_EXPERIMENTAL = 1
_STATES = ("free", "open", "sealed", "retiring", "quarantined")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this verb."""
    add_paths(parser)
    parser.add_argument("--spaces", action="store_true", help="also list the spaces; reads all metadata")


def run(options: argparse.Namespace) -> int:
    """Open read-only, look, print."""
    with kvstore.open(options.paths, read_only=True) as pool:
        report = describe(pool)
        if options.spaces:
            report["spaces"] = list(_spaces(pool))
    if options.json:
        print_json(report)
        return EXIT_OK
    print_facts(_facts(report))
    print()
    print_table(
        ("member", "device", "size", "logical block", "DMA alignment", "volatile cache", "identity"),
        [_device_row(device) for device in report["devices"]],
    )
    if options.spaces:
        print()
        print_table(
            ("blocks", "bytes", "space"),
            [(space["blocks"], format_size(space["bytes"]), json.dumps(space["space"])) for space in report["spaces"]],
        )
    return EXIT_OK


def describe(pool: kvstore.Pool) -> dict[str, Any]:
    """What a pool that was opened read-only says of itself, in the form that ``info --json`` prints."""
    stats, superblocks = pool.stats(), pool.superblocks()
    first = superblocks[0]
    regions = {state: int(stats[f"regions_{state}"]) for state in _STATES}
    # Recovery takes what it finds open for sealed, since nobody fills it in this process.
    regions["open"] = int(stats["recovery_regions_open_found"])
    regions["sealed"] -= regions["open"]
    return {
        "pool_uuid": first["pool_uuid"],
        "format_version": first["version"],
        "experimental": bool(first["incompat_flags"] & _EXPERIMENTAL),
        "shared_mode": first["shared_mode"],
        "formatted_seconds": first["formatted_seconds"],
        "clean": all(superblock["clean"] for superblock in superblocks),
        "opened_seconds": first["opened_seconds"],
        "owner": first["owner"],
        "blocks": stats["blocks"],
        "live_bytes": stats["live_bytes"],
        "occupied_bytes": stats["occupied_bytes"],
        "capacity_bytes": stats["capacity_bytes"],
        "regions": {"total": stats["regions"], **regions},
        "region_bytes": first["geometry"]["region_bytes"],
        "open_seconds": stats["recovery_seconds"],
        "open_bytes_read": stats["recovery_bytes_read"],
        "metadata_blocks_damaged": stats["recovery_blocks_skipped"],
        "metadata_copies_damaged": stats["recovery_copies_damaged"],
        "engine": stats["device_kind"],
        "devices": [
            device | {"superblock": superblock} for device, superblock in zip(pool.devices(), superblocks, strict=True)
        ],
    }


def _facts(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    kind = "shared mode" if report["shared_mode"] else "owner mode"
    experimental = ", experimental" if report["experimental"] else ""
    yield "pool", f"{report['pool_uuid']} (format {report['format_version']}{experimental}, {kind})"
    yield "formatted", date_text(report["formatted_seconds"])
    if report["shared_mode"]:
        yield "owner", "none: it is shared, by whom says `kvstore peers`"
        yield "last owner", _owner_text(report)
    else:
        yield "owner", _owner_text(report)
    capacity = report["capacity_bytes"]
    yield "blocks", f"{report['blocks']:,}, {format_size(report['live_bytes'])} live"
    occupied = f"{format_size(report['occupied_bytes'])} of {format_size(capacity)}"
    yield "occupied", f"{occupied} ({percent(report['occupied_bytes'], capacity)})"
    regions = report["regions"]
    states = ", ".join(f"{regions[state]:,} {state}" for state in _STATES if regions[state] or state != "retiring")
    yield "regions", f"{regions['total']:,} of {format_size(report['region_bytes'])}: {states}"
    opened = f"{report['open_seconds'] * 1e3:,.1f} ms, {format_size(report['open_bytes_read'])} read"
    yield "opened in", f"{opened}, engine {report['engine']}"
    damaged = report["metadata_blocks_damaged"] + report["metadata_copies_damaged"]
    if damaged:
        yield "damaged", f"{damaged:,} blocks of metadata; run kvstore check"


def _owner_text(report: dict[str, Any]) -> str:
    owner = report["owner"]
    if owner["epoch"] == 0:
        return "never opened"
    state = "closed cleanly" if report["clean"] else "in use, or not closed cleanly"
    return f"epoch {owner['epoch']}, host {owner['host']}, opened {date_text(report['opened_seconds'])}; {state}"


def _device_row(device: dict[str, Any]) -> tuple[object, ...]:
    superblock = device["superblock"]
    identity = device["nguid"] or device["eui64"] or device["serial"]
    place = f"{superblock['member_index'] + 1} of {len(superblock['members'])}"
    return (
        place,
        device["path"],
        format_size(device["size_bytes"]),
        device["logical_block_bytes"],
        device["dma_alignment_bytes"],
        "yes" if device["volatile_cache"] else "no",
        identity or ("a file" if device["is_regular_file"] else "none"),
    )


def _spaces(pool: kvstore.Pool) -> Iterator[dict[str, Any]]:
    sums: dict[str, list[int]] = {}
    for block in pool.blocks():
        total = sums.setdefault(block.space_json, [0, 0])
        total[0] += 1
        total[1] += block.nbytes
    for text, (blocks, nbytes) in sorted(sums.items()):
        yield {"space": json.loads(text), "blocks": blocks, "bytes": nbytes}
