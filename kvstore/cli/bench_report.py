# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Make a page, pictures and tables of results: of `kvstore bench`, and of fio itself.

  kvstore bench report result.json fio.json --out report

Several files of the same jobs are repetitions: medians are shown, with the slowest and the fastest. Rows are compared
at equal operation, block size, depth, threads, place and machine. The folder gets report.html, which has everything in
it, tables.md and the pictures.
"""

from __future__ import annotations

import argparse
import importlib.util

from kvstore.cli.exits import EXIT_OK
from kvstore.cli.output import print_json
from kvstore.errors import ConfigError

HELP = "a page, pictures and tables of results of bench"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this verb."""
    parser.add_argument("results", nargs="+", metavar="RESULT", help="JSON of kvstore bench, or of fio (json, json+)")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="made when missing; files in it are replaced")


def run(options: argparse.Namespace) -> int:
    """Read, draw, write, and say what was written."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("matplotlib is missing: pip install 'nvme-kvstore[bench]'")
    from kvstore.bench.report import write_report

    written = [str(path) for path in write_report(options.results, options.out)]
    if options.json:
        print_json({"files": written})
    else:
        print("\n".join(written))
    return EXIT_OK
