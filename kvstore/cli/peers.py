# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Show the openers of a shared pool: who is there, what each writes, who keeps others waiting, what if it died.

Asks the metadata engine and reads the superblock; changes nothing, and makes no file of an engine that is not there.

With --gone EPOCH it says instead, on your word, that this opener will never write again: its host is off, or cut off
from the devices. Its regions can then be reused at once instead of after the quarantine.

  kvstore peers pool.img
  kvstore peers /dev/disk/by-id/nvme-eui.0025… --engine etcd://10.0.0.1:2379,10.0.0.2:2379
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from kvstore import _core, cluster
from kvstore.cli.arguments import add_engine, add_paths, count
from kvstore.cli.exits import EXIT_OK
from kvstore.cli.output import date_text, print_facts, print_json, print_table
from kvstore.cluster.processes import Whereabouts, find_process
from kvstore.cluster.records import Opener, PoolState, declare_gone, empty_state, read_state
from kvstore.errors import ConfigError

HELP = "show the openers of a shared pool"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this verb."""
    add_paths(parser)
    add_engine(parser)
    parser.add_argument("--gone", type=count, metavar="EPOCH", help="this opener will never write again")


def run(options: argparse.Namespace) -> int:
    """Ask the engine, print."""
    superblocks = [_core.read_superblock(path) for path in options.paths]
    pool_uuid: str = superblocks[0]["pool_uuid"]
    if not superblocks[0]["shared_mode"]:
        return _say_it_is_not_shared(options, pool_uuid)
    engine, state = _ask(options, pool_uuid)
    # What was set up before the pool had its last owner is void, as it is to an opener.
    is_current = state.initialised and state.epoch_floor == max(one["owner"]["epoch"] for one in superblocks)
    if options.json:
        print_json(_report(pool_uuid, state))
        return EXIT_OK
    regions = ", ".join(f"{number:,} {hold}" for hold, number in state.regions.items())
    holds = f"revision {state.revision:,}, {state.keys:,} keys"
    if not is_current:
        holds = "which holds nothing of this pool: openers use another one (--engine), or the next one rebuilds it"
    print_facts([
        ("pool", pool_uuid),
        ("engine", f"{engine}, {holds}"),
        ("regions", f"{regions}; all others as their headers say"),
    ])  # fmt: skip
    print()
    print_table(
        ("epoch", "state", "host", "process", "writes", "retires", "behind", "if it died"),
        [_row(opener, state) for _, opener in sorted(state.openers.items())],
    )
    return EXIT_OK


def _say_it_is_not_shared(options: argparse.Namespace, pool_uuid: str) -> int:
    if options.gone is not None:
        raise ConfigError("the pool is in owner mode: it is not shared, so there is no opener to be gone")
    if options.json:
        print_json(_report(pool_uuid, empty_state()) | {"shared_mode": False})
    else:
        mode = 'owner mode: it is not shared, and no engine knows of it; kvstore.open(…, mode="shared") makes it shared'
        print_facts([("pool", pool_uuid), ("mode", mode)])
    return EXIT_OK


def _ask(options: argparse.Namespace, pool_uuid: str) -> tuple[str, PoolState]:
    """The engine as a url that says where it is, and what it holds of the pool."""

    def default_path() -> str:
        return cluster.default_sqlite_path(options.paths, pool_uuid, make_folder=False)

    file = cluster.file_of_url(options.engine, default_path)
    url = options.engine if file is None else f"sqlite:{file}"
    is_there = file is None or Path(file).exists()
    if not is_there and options.gone is not None:
        raise ConfigError(f"there is no engine {url}: name the one that the openers use")
    if not is_there:
        return url, empty_state()
    with contextlib.closing(cluster.open_engine(url)) as engine:
        if options.gone is not None:
            declare_gone(engine, pool_uuid, options.gone)
        return url, read_state(engine, pool_uuid)


def _report(pool_uuid: str, state: PoolState) -> dict[str, Any]:
    return {
        "pool_uuid": pool_uuid,
        "shared_mode": True,
        "initialised": state.initialised,
        "revision": state.revision,
        "keys": state.keys,
        "regions": state.regions,
        "openers": [dataclasses.asdict(opener) for _, opener in sorted(state.openers.items())],
    }


def _row(opener: Opener, state: PoolState) -> tuple[object, ...]:
    is_gone = _process(opener) == "gone"
    if opener.live:
        said = "its lease runs on" if is_gone else "lives"
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
        f"{opener.process_id or 'not known'}{' (gone)' if is_gone else ''}",
        len(opener.owned),
        len(opener.retiring),
        behind,
        _fate(opener),
    )


def _process(opener: Opener) -> Whereabouts:
    return find_process(opener.boot, opener.process_namespace, opener.process_id, opener.process_start)


def _fate(opener: Opener) -> str:
    """What becomes of its regions: if it died, or, where it is dead, now."""
    count_text = f"{len(opener.owned):,} region{'' if len(opener.owned) == 1 else 's'}"
    stay = f"{count_text} {'stays' if len(opener.owned) == 1 else 'stay'} readable"
    if not opener.owned:
        return "nothing waits for it"
    if opener.gone:
        return f"{count_text} readable, reused in their turn"
    where = _process(opener)
    if where == "gone":
        when = "when its lease has ended" if opener.live else "in their turn by openers of this host"
        return f"its process is gone: {count_text} readable, reused {when}"
    if opener.live and where == "here":
        return f"{stay}; reused when its lease has ended"
    if opener.live:
        return f"{stay}; not reused until it is known to be gone"
    return f"{count_text} readable, not reused until it is known to be gone (--gone {opener.epoch})"
