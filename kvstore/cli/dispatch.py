# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The command line. One module per verb, each with ``add_arguments`` and ``run``; :func:`main` dispatches.

Every verb takes ``--json``: then standard output is JSON and nothing else, an error too. Progress and hints go to
standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

import kvstore
from kvstore.cli import (
    bench,
    bench_order,
    bench_report,
    bench_ttft,
    check,
    doctor,
    dump,
    format,
    info,
    peers,
    replay,
    unshare,
)
from kvstore.cli.exits import EXIT_DEVICE, EXIT_INTERRUPTED, EXIT_TEXT, exit_status
from kvstore.cli.output import print_error
from kvstore.errors import KvStoreError

__all__ = ["main"]

_MODULES = (format, info, check, dump, peers, unshare, doctor, bench, bench_order, bench_report, bench_ttft, replay)
#: By name, which may be two words: after `bench` alone there are job files.
_VERBS = {module.__name__.rpartition(".")[2].replace("_", " "): module for module in _MODULES}


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
    for name, module in _VERBS.items():
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
    _open_standard_streams()
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()  # so that a reader that went away or a full disk is noticed here
    except BrokenPipeError:
        _drop_output()  # `kvstore dump … | head`
        return EXIT_INTERRUPTED
    except OSError as error:
        _drop_output()
        where = "standard output" if error.filename is None else error.filename
        with contextlib.suppress(OSError):
            print(f"error: {where}: {error.strerror}", file=sys.stderr, flush=True)
        return EXIT_DEVICE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if " ".join(given[:2]) in _VERBS:
        given[:2] = [" ".join(given[:2])]
    options = build_parser().parse_args(given)
    try:
        status: int = options.run(options)
    except KvStoreError as error:
        print_error(error, as_json=options.json)
        status = exit_status(error)
    return status


def _open_standard_streams() -> None:
    """Whatever was closed (``kvstore … >&-``) goes nowhere, instead of to the file that is opened next."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")


def _drop_output() -> None:
    """The interpreter's own flush at exit must not complain a second time."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
