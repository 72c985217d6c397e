# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Show the openers of a shared pool: who is there, what each writes, who keeps others waiting, what if it died.

Asks the metadata engine and reads the superblock; changes nothing.

With --gone EPOCH it says instead, on your word, that this opener will never write again: its host is off, or cut off
from the devices. Its regions can then be reused at once instead of after the quarantine.

  kvstore peers pool.img
  kvstore peers /dev/disk/by-id/nvme-eui.0025… --engine etcd://10.0.0.1:2379,10.0.0.2:2379
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from kvstore import _core, cluster
from kvstore.cli.arguments import add_engine, add_paths, count
from kvstore.cli.exits import EXIT_OK
from kvstore.cli.output import date_text, print_facts, print_json, print_table
from kvstore.cluster.records import Opener, PoolState, declare_gone, read_state

HELP = "show the openers of a shared pool"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this verb."""
    add_paths(parser)
    add_engine(parser)
    parser.add_argument("--gone", type=count, metavar="EPOCH", help="this opener will never write again")


def run(options: argparse.Namespace) -> int:
    """Ask the engine, print."""
    pool_uuid = _core.read_superblock(options.paths[0])["pool_uuid"]
    engine = cluster.open_engine(
        options.engine, default_path=lambda: cluster.default_sqlite_path(options.paths, pool_uuid)
    )
    try:
        if options.gone is not None:
            declare_gone(engine, pool_uuid, options.gone)
        state = read_state(engine, pool_uuid)
    finally:
        engine.close()
    if options.json:
        print_json(_report(pool_uuid, state))
        return EXIT_OK
    regions = ", ".join(f"{number:,} {hold}" for hold, number in state.regions.items())
    print_facts(
        [
            ("pool", pool_uuid),
            (
                "engine",
                f"{options.engine}, revision {state.revision:,}, {state.keys:,} keys"
                if state.initialised
                else f"{options.engine}: it holds nothing of this pool; the next opener rebuilds it from the devices",
            ),
            ("regions", f"{regions}; all others as their headers say"),
        ]
    )
    print()
    print_table(
        ("epoch", "state", "host", "process", "writes", "retires", "behind", "if it died"),
        [_row(opener, state) for _, opener in sorted(state.openers.items())],
    )
    return EXIT_OK


def _report(pool_uuid: str, state: PoolState) -> dict[str, Any]:
    return {
        "pool_uuid": pool_uuid,
        "initialised": state.initialised,
        "revision": state.revision,
        "keys": state.keys,
        "regions": state.regions,
        "openers": [dataclasses.asdict(opener) for _, opener in sorted(state.openers.items())],
    }


def _row(opener: Opener, state: PoolState) -> tuple[object, ...]:
    if opener.live:
        said = "lives"
    elif opener.gone:
        said = "gone"
    else:
        said = f"no lease since {date_text(opener.lost_seconds)}" if opener.lost_seconds else "no lease"
    # It has not let go yet of what others want to reuse.
    behind = "yes" if opener.live and opener.read < state.retired_at else "no"
    return (
        opener.epoch,
        said,
        opener.host or "not known",
        opener.process_id or "not known",
        len(opener.owned),
        len(opener.retiring),
        behind,
        _fate(opener),
    )


def _fate(opener: Opener) -> str:
    count_text = f"{len(opener.owned):,} region{'' if len(opener.owned) == 1 else 's'}"
    if not opener.owned:
        return "nothing waits for it"
    if opener.gone:
        return f"{count_text} readable, reused in their turn"
    if opener.live:
        return f"{count_text} stay readable; reused when it is known to be gone"
    return f"{count_text} readable, not reused until it is known to be gone (--gone {opener.epoch})"
