# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""All rows as Markdown, for documents that quote them: what is lost comes before what is won."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kvstore.bench.report.text import (
    ALONE,
    COLUMNS,
    VERDICT_MARGIN,
    cells,
    counts,
    fact_rows,
    lost_rows,
    row_name,
    sections,
    trouble,
    verdicts,
)
from kvstore.bench.rows import Results

__all__ = ["markdown_tables"]


def markdown_tables(results: Results) -> str:
    """The page, ending in a newline."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Results) -> Iterator[str]:
    yield "# Results of kvstore bench"
    for number, setup in enumerate(results.setups, start=1):
        yield from ["", f"## Machine{f', setup {number}' if len(results.setups) > 1 else ''}", ""]
        yield from _table(("fact", "value"), fact_rows(setup))
        yield from ["", "Made by:", "", "```", *setup.commands, "```"]
    yield from ["", "## Won and lost", ""]
    yield from _won_and_lost(results) if counts(results) else [ALONE]
    for heading, rows in sections(results):
        yield from ["", f"## {heading}", ""]
        listed = []
        for row in rows:
            texts = cells(results, row)
            told = "; ".join(filter(None, (trouble(row), *(verdict.text for verdict in verdicts(results, row)))))
            listed.append([*texts, *[""] * (len(COLUMNS) - 1 - len(texts)), told])
        yield from _table(COLUMNS, listed)


def _won_and_lost(results: Results) -> Iterator[str]:
    yield f"kvstore beside fio and beside the best rival of each cell. Even: less than {VERDICT_MARGIN:.0%} apart."
    yield ""
    yield from _table(("comparison", "won", "even", "lost"), [(name, *map(str, n)) for name, *n in counts(results)])
    lost = lost_rows(results)
    yield from ["", "Lost, the worst first:" if lost else "No row is lost.", ""]
    yield from (f"* {row_name(row)}: {verdict.figure} {verdict.ratio:.2f} × {verdict.rival}" for row, verdict in lost)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield f"| {' | '.join(text.replace('|', chr(92) + '|').replace(chr(10), ' ') for text in row)} |"
