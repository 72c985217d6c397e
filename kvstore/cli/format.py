# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Make a pool of devices or files. Everything on them is lost.

Says what it will do first. Refuses a device that is mounted or held, and one that holds anything (a partition table, a
file system, another store) unless --force is given.

  kvstore format /dev/disk/by-id/nvme-eui.0025… --block-bytes 32MiB
  kvstore format pool.img --size 4GiB
"""

from __future__ import annotations

import argparse
from typing import Any

import kvstore
from kvstore.cli.arguments import add_paths, size
from kvstore.cli.exits import EXIT_OK, EXIT_REFUSED
from kvstore.cli.output import make_console, print_json, print_table
from kvstore.sizes import format_size

HELP = "make a pool of devices or files"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this verb."""
    add_paths(parser)
    parser.add_argument("--size", type=size, metavar="SIZE", help="of a file to make or grow, sparse, such as 4GiB")
    parser.add_argument(
        "--region-bytes", type=size, metavar="SIZE", help="unit of reuse; chosen from block and device size by default"
    )
    parser.add_argument(
        "--block-bytes", type=size, metavar="SIZE", help="size of the blocks that will be put; helps to choose regions"
    )
    parser.add_argument(
        "--min-block-bytes",
        type=size,
        metavar="SIZE",
        help="smallest block to be efficient with; 256KiB by default",
    )
    parser.add_argument("--force", action="store_true", help="overwrite what is there")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")


def run(options: argparse.Namespace) -> int:
    """Plan, say so, format."""
    sizes = {
        "size": options.size,
        "region_bytes": options.region_bytes,
        "block_bytes": options.block_bytes,
        "min_block_bytes": options.min_block_bytes,
    }
    plans = kvstore.plan_format(options.paths, force=options.force, **sizes)
    occupied = [plan for plan in plans if plan["found"]]
    report: dict[str, Any] = {"formatted": False, "devices": [_planned(plan) for plan in plans]}
    if not options.json:
        _print_plan(plans, overwrite=options.force)
    if options.dry_run:
        refused = bool(occupied) and not options.force
        if options.json:
            print_json(report)
        elif refused:
            make_console(stderr=True).print(f"would be refused without --force: {occupied[0]['path']} is not empty")
        return EXIT_REFUSED if refused else EXIT_OK

    superblocks = kvstore.format(options.paths, force=options.force, **sizes)
    report |= {"formatted": True, "pool_uuid": superblocks[0]["pool_uuid"]}
    for device, superblock in zip(report["devices"], superblocks, strict=True):
        device["store_uuid"] = superblock["store_uuid"]
    if options.json:
        print_json(report)
    else:
        make_console().print(f"formatted: pool {superblocks[0]['pool_uuid']}")
    return EXIT_OK


def _planned(plan: dict[str, Any]) -> dict[str, Any]:
    geometry = plan["geometry"]
    return {
        "path": plan["path"],
        "found": plan["found"],
        "geometry": geometry,
        "capacity_bytes": geometry["region_bytes"] * geometry["region_count"],
        "metadata_bytes": geometry["entry_bytes"] * geometry["region_count"],
    }


def _print_plan(plans: list[dict[str, Any]], *, overwrite: bool) -> None:
    rows = []
    for plan in plans:
        geometry, planned = plan["geometry"], _planned(plan)
        found = plan["found"] or "nothing"
        rows.append(
            (
                plan["path"],
                format_size(geometry["device_bytes"]),
                f"{geometry['region_count']:,} of {format_size(geometry['region_bytes'])}",
                format_size(planned["capacity_bytes"]),
                format_size(planned["metadata_bytes"]),
                f"{found} (will be overwritten)" if plan["found"] and overwrite else found,
            )
        )
    print_table(("device", "size", "regions", "for blocks", "for metadata", "there now"), rows)
