# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Measure puts and gets, in fio's habits: options of a job on the command line, or job files.

  kvstore bench                                      puts and gets a file of 1 GiB in this folder
  kvstore bench --report=report                      the same, and a page with pictures of it in that folder
  kvstore bench bench/jobs/quick.fio
  kvstore bench --name=a --filename=/dev/nvme1n1 --rw=get --bs=64k,1m --iodepth=16 --runtime=30 --overwrite=1

What is at the filename is overwritten; a device or file that holds data is refused without overwrite=1. Options before
the first --name count for all jobs. docs/bench.md has more.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstore.cli.exits import EXIT_BAD, EXIT_INTERRUPTED, EXIT_OK, EXIT_REFUSED
from kvstore.cli.output import be_writable, print_json, write_result
from kvstore.errors import ConfigError

if TYPE_CHECKING:
    from kvstore.bench.jobfile import Section
    from kvstore.bench.options import JobSpec

HELP = "measure puts and gets, as fio does"

_NEEDED = ("hdrh", "yaml")
_NEEDED_TO_REPORT = ("matplotlib",)
#: Without any job: what a newcomer wants to see.
_QUICK = [
    ("name", "put"), ("rw", "put"), ("iodepth", "16"), ("name", "get"), ("rw", "get"), ("iodepth", "16"),
    ("runtime", "5"),
]  # fmt: skip


class _InOrder(argparse.Action):
    """Keeps job options in the order they are given: which job one belongs to depends on that."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        namespace.given = [*(namespace.given or []), (self.dest.removeprefix("job_"), str(values))]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this verb."""
    from kvstore.bench.engines import ENGINES
    from kvstore.bench.options import ALIASES, OPTIONS

    parser.add_argument("jobfiles", nargs="*", metavar="JOBFILE", help="sections of options, as fio's job files")
    parser.add_argument("--output", metavar="FILE", help="write the result there and not to standard output")
    parser.add_argument("--output-format", choices=["normal", "json", "json+"], default="normal", help="json is json+")
    parser.add_argument("--report", metavar="FOLDER", help="put result.json there, and `kvstore bench report` of it")
    parser.add_argument("--eta", choices=["auto", "always", "never"], default="auto", help="the line while it runs")
    parser.add_argument("--parse-only", action="store_true", help="say which jobs these are, and stop")
    parser.add_argument("--enghelp", action="store_true", help="say which engines can run here, with their options")
    parser.set_defaults(given=[])
    jobs = parser.add_argument_group("options of a job")
    jobs.add_argument("--name", dest="job_name", action=_InOrder, help="begins a job")
    for option in OPTIONS.values():
        default = f" ({option.default})" if option.default else ""
        names = f": {', '.join(ENGINES)}" if option.name == "engine" else ""
        text = f"{option.help}{names}{default}".replace("%", "%%")
        jobs.add_argument(f"--{option.name}", dest=f"job_{option.name}", action=_InOrder, metavar="X", help=text)
    for alias in ALIASES:
        jobs.add_argument(f"--{alias}", dest=f"job_{alias}", action=_InOrder, help=argparse.SUPPRESS)
    jobs.add_argument(
        "--engine_option", dest="job_engine_option", action=_InOrder, metavar="ENGINE.OPTION=X",
        help="an engine's own, such as kvstore.verify_reads=off",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Read the jobs, run them, write the result."""
    needed = [*_NEEDED, *(_NEEDED_TO_REPORT if options.report else ())]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} is missing: pip install 'nvme-kvstore[bench]'")
    if options.enghelp:
        _print_engines(as_json=options.json)
        return EXIT_OK
    from kvstore.bench.document import document
    from kvstore.bench.live import Live
    from kvstore.bench.options import job_specs
    from kvstore.bench.run import run_jobs
    from kvstore.bench.text import report

    specs = job_specs(_sections(options))
    if options.parse_only:
        print("\n".join(_line(spec) for spec in specs))
        return EXIT_OK
    # Refused now, and not when all is measured.
    if options.report:
        Path(options.report).mkdir(parents=True, exist_ok=True)
    if options.output:
        be_writable(options.output)
    with _terminated_as_interrupted(), Live(options.eta) as live:
        results, interrupted = run_jobs(specs, live)
    made = document(results, f"kvstore {shlex.join(sys.argv[1:])}")
    as_json = options.json or options.output_format != "normal"
    write_result(json.dumps(made, indent=2) if as_json else report(made), options.output)
    if options.report:
        _write_report(made, Path(options.report))
    if interrupted:
        return EXIT_INTERRUPTED
    if any(result.failed or result.tally.wrong_count or result.lost for result in results):
        return EXIT_BAD
    return EXIT_OK if any(result.ok for result in results) else EXIT_REFUSED


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, of `timeout` or a service manager, leaves no loop device, file or memory behind either."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _write_report(made: dict[str, Any], folder: Path) -> None:
    from kvstore.bench.report import write_report

    result = folder / "result.json"
    result.write_text(json.dumps(made, indent=2) + "\n")
    page = write_report([result], folder)[0]
    print(f"the report is {page}", file=sys.stderr)


def _print_engines(*, as_json: bool) -> None:
    """Every engine: that it can run here or why not, and its own options."""
    from kvstore.bench.engines import ENGINES, make_engine

    engines = {name: make_engine(name) for name in ENGINES}
    if as_json:
        print_json(
            {name: {"why_not": one.why_not(), "options": dict(one.option_help)} for name, one in engines.items()}
        )
        return
    for name, engine in engines.items():
        print(f"{name:20} {engine.why_not() or 'can run'}")
        for option, text in engine.option_help.items():
            print(f"{'':20}   {name}.{option}: {text}")


def _sections(options: argparse.Namespace) -> list[Section]:
    """Job files first, then the command line's, which are for all jobs of the files when it names no job itself."""
    from kvstore.bench.jobfile import read_job_file, sections_of_command_line

    given = []
    for key, value in options.given:
        if key == "engine_option":
            key, equals, value = value.partition("=")
            if not equals or "." not in key:
                raise ConfigError(f"--engine_option is {key}: write ENGINE.OPTION=VALUE")
        given.append((key, value))
    from_files = [section for path in options.jobfiles for section in read_job_file(path)]
    if any(key == "name" for key, _ in given):
        return from_files + sections_of_command_line(given)
    if from_files:
        return [(name, section | dict(given)) for name, section in from_files]
    if any(key == "rw" for key, _ in given):
        return sections_of_command_line([*given, ("name", "job")])
    return sections_of_command_line([*given, *[pair for pair in _QUICK if pair[0] not in dict(given)]])


def _line(spec: JobSpec) -> str:
    sizes = ",".join(str(size) for size in spec.block_sizes)
    return f"{spec.name}: rw={spec.rw} bs={sizes} engine={','.join(spec.engine)} iodepth={spec.iodepth}"
