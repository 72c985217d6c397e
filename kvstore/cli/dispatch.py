# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The command line. One module per verb, each with ``add_arguments`` and ``run``; :func:`main` dispatches.

Every verb takes ``--json``: then standard output is JSON and nothing else, an error too. Progress and hints go to
standard error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import kvstore
from kvstore.cli import check, doctor, dump, format, info, peers, unshare
from kvstore.cli.exits import EXIT_INTERRUPTED, EXIT_TEXT, exit_status
from kvstore.cli.output import print_error
from kvstore.errors import KvStoreError

__all__ = ["main"]

_VERBS = (format, info, check, dump, peers, unshare, doctor)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = argparse.ArgumentParser(
        prog="kvstore",
        description="Pools of KV cache blocks on raw NVMe devices.",
        epilog=EXIT_TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kvstore {kvstore.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for module in _VERBS:
        name = module.__name__.rpartition(".")[2]
        verb = verbs.add_parser(
            name,
            help=module.HELP,
            description=module.__doc__,
            epilog=EXIT_TEXT,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(verb)
        verb.add_argument("--json", action="store_true", help="print JSON")
        verb.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb.

    Parameters
    ----------
    arguments : without the program's name; those of the process by default.

    Returns
    -------
    the exit status, see ``kvstore --help``.
    """
    options = build_parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()  # so that a reader that went away is noticed here
        return status
    except KvStoreError as error:
        print_error(error, as_json=options.json)
        return exit_status(error)
    except BrokenPipeError:
        # `kvstore dump … | head`: the interpreter's own flush at exit must not complain a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_INTERRUPTED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
