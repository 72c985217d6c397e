# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Printing: text for people, JSON for programs.

Text is never cut or wrapped when standard output is not a terminal, so that it can be searched and compared.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kvstore.errors import KvStoreError

__all__ = [
    "be_writable",
    "date_text",
    "make_console",
    "percent",
    "print_error",
    "print_facts",
    "print_json",
    "print_json_line",
    "print_table",
    "write_result",
]

_UNCUT_COLUMNS = 100_000


class _Console(Console):
    """A console that leaves a reader that went away to :func:`kvstore.cli.main`, as ``print`` does."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def make_console(*, stderr: bool = False) -> Console:
    """A console on the standard stream as it is now. Paths and keys are printed as they are, not as markup."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _UNCUT_COLUMNS
    return _Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=True)


def be_writable(path: str) -> None:
    """OSError when a result could not be written there. A file that is there is left as it is."""
    with open(path, "a"):
        pass


def write_result(text: str, path: str | None) -> None:
    """Into a file, or to standard output where none is given; also where it cannot be written any more, or what took
    an hour to measure would be lost. OSError then.
    """
    if path:
        try:
            Path(path).write_text(text + "\n")
        except OSError as error:
            print(text)
            raise OSError(error.errno, error.strerror, path) from error
    else:
        print(text)


def print_json(value: Any) -> None:
    """One JSON document, indented."""
    print(json.dumps(value, indent=2))


def print_json_line(value: Any) -> None:
    """One JSON document on a line of its own."""
    print(json.dumps(value, separators=(",", ":")))


def print_error(error: KvStoreError, *, as_json: bool) -> None:
    """What went wrong: on standard error for people, on standard output as JSON for programs."""
    if as_json:
        print_json_line({"error": {"code": error.code, "errno": error.errno, "message": str(error)}})
    else:
        make_console(stderr=True).print(Text.assemble(("error: ", "bold red"), str(error)))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Lines of a name and what is to be said of it, in two columns."""
    listed = list(facts)
    width = max(len(name) for name, _ in listed)
    console = make_console()
    for name, text in listed:
        console.print(Text.assemble((name.ljust(width + 2), "bold"), text))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A plain table, two spaces between columns; columns of numbers to the right."""
    listed = [list(row) for row in rows]
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in listed]
    widths = [max(len(row[index]) for row in [list(columns), *cells]) for index in range(len(columns))]
    numbers = [bool(listed) and all(isinstance(row[index], int) for row in listed) for index in range(len(columns))]
    console = make_console()

    def line(texts: Sequence[str]) -> str:
        aligned = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, numbers, strict=True)
        )
        return "  ".join(aligned).rstrip()

    console.print(Text(line(columns), style="bold"))
    for row in cells:
        console.print(line(row))


def percent(part: int | float, whole: int | float) -> str:
    """``part`` of ``whole``, as ``"15 %"``."""
    return f"{100 * part / whole:.3g} %" if whole else "0 %"


def date_text(seconds: int) -> str:
    """Seconds since 1970 as a UTC date; ``"never"`` for 0."""
    if seconds == 0:
        return "never"
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
