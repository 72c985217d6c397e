# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Make a shared pool an owner-mode one again. Its blocks stay.

Refused while the metadata engine knows of an opener that lives, or that may still write (kvstore peers shows them), and
when it holds nothing of the pool: then the openers use another one, which --engine has to name.
What the engine holds of the pool is void afterwards, and is set up anew when the pool is shared again.
"""

from __future__ import annotations

import argparse

import kvstore
from kvstore.cli.arguments import add_engine, add_paths
from kvstore.cli.exits import EXIT_OK
from kvstore.cli.output import make_console, print_json

HELP = "make a shared pool an owner-mode one again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this verb."""
    add_paths(parser)
    add_engine(parser)
    parser.add_argument(
        "--engine-is-lost",
        action="store_true",
        help="nothing is left of what the engine held, and no host has the pool open",
    )


def run(options: argparse.Namespace) -> int:
    """Ask the engine, then open and close the pool as its only owner."""
    kvstore.unshare(options.paths, engine=options.engine, engine_is_lost=options.engine_is_lost)
    if options.json:
        print_json({"shared_mode": False})
    else:
        make_console().print("the pool is in owner mode")
    return EXIT_OK
