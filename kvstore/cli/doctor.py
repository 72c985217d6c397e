# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Say what is wrong, or slower than it need be, and how to mend it.

Without a PATH the machine is looked at, with one also the device. Writes nothing. Calls into CUDA and cuFile only with
--gpu, in a process of its own.

  kvstore doctor /dev/disk/by-id/nvme-eui.0025…
  kvstore doctor --gpu 0 /dev/disk/by-id/nvme-eui.0025…
"""

from __future__ import annotations

import argparse
import dataclasses
from itertools import groupby

from rich.text import Text

from kvstore.cli.exits import EXIT_BAD, EXIT_OK
from kvstore.cli.output import make_console, print_json
from kvstore.doctor import Finding, examine
from kvstore.errors import ConfigError

HELP = "say what is wrong here, and how to mend it"

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_NAME_WIDTH = 14


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this verb."""
    parser.add_argument(
        "--gpu", type=int, metavar="N", help="also prove the way into that GPU's memory, with the pool at PATH"
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="device or file; name all devices of a pool")


def run(options: argparse.Namespace) -> int:
    """Examine, print line by line."""
    if options.gpu is not None and not options.paths:
        raise ConfigError("--gpu needs PATH: name all devices of a pool, which are read into the GPU's memory")
    findings = []
    for path, group in groupby(examine(options.paths, gpu=options.gpu), key=lambda finding: finding.path):
        if path and not options.json:
            make_console().print(f"\n{path}")
        for finding in group:
            findings.append(finding)
            if not options.json:
                _print_finding(finding)
    levels = [finding.level for finding in findings]
    if options.json:
        ok = "fail" not in levels
        print_json({"ok": ok, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        counts = f"{levels.count('ok')} ok, {levels.count('warn')} warnings, {levels.count('fail')} failed"
        make_console().print(f"\n{counts}")
    return EXIT_BAD if "fail" in levels else EXIT_OK


def _print_finding(finding: Finding) -> None:
    console = make_console()
    level = (f"{finding.level:<4}  ", _STYLES[finding.level])
    console.print(Text.assemble(level, (finding.check.ljust(_NAME_WIDTH), "bold"), finding.text))
    if finding.mend:
        console.print(f"{'':{_NAME_WIDTH + 6}}mend: {finding.mend}")
