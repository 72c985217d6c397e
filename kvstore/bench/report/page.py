# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""One HTML page that needs nothing else: pictures are inside, there is no script and no link.

The machine's facts and the commands come first, then what is won and lost, then the pictures, then every row.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from kvstore.bench.report.charts import Picture
from kvstore.bench.report.text import (
    ALONE,
    COLUMNS,
    VERDICT_MARGIN,
    Verdict,
    cells,
    counts,
    fact_rows,
    lost_rows,
    row_name,
    sections,
    trouble,
    verdicts,
)
from kvstore.bench.rows import Results, Row

__all__ = ["html_page"]

_SIGNS = {"won": "▲", "even": "●", "lost": "▼"}
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1240px; margin: 24px auto; padding: 0 16px; color: #111; }
h1 { font-size: 26px; } h2 { font-size: 20px; margin-top: 40px; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; font-size: 13px; margin: 12px 0; }
th, td { padding: 3px 9px; text-align: right; vertical-align: top; border-bottom: 1px solid #e4e4e4; }
th { background: #f3f3f3; position: sticky; top: 0; }
th.text, td.text { text-align: left; }
tr.ours td { background: #eaf3fa; } tr.first td { border-top: 2px solid #999; }
pre { background: #f3f3f3; padding: 10px; white-space: pre-wrap; overflow-wrap: anywhere; }
figure { margin: 28px 0; } figcaption { color: #444; } img { width: 100%; max-width: 1200px; height: auto; }
.verdict { display: block; white-space: nowrap; font-weight: 600; }
.won { color: #00558c; } .lost { color: #a63d00; } .even { color: #444; }
.trouble { display: block; font-weight: 700; color: #a63d00; }
"""


def html_page(results: Results, pictures: Sequence[Picture]) -> str:
    """The whole page."""
    return "\n".join(_lines(results, pictures)) + "\n"


def _lines(results: Results, pictures: Sequence[Picture]) -> Iterator[str]:
    yield "<!DOCTYPE html>"
    yield '<html lang="en"><head><meta charset="utf-8"><title>kvstore bench</title>'
    yield f"<style>{_STYLE}</style></head><body>"
    yield "<h1>Results of kvstore bench</h1>"
    for number, setup in enumerate(results.setups, start=1):
        yield f"<h2>Machine{f', setup {number}' if len(results.setups) > 1 else ''}</h2>"
        yield from _table(("fact", "value"), (map(_text_cell, fact) for fact in fact_rows(setup)), texts=2)
        yield f"<p>Made by:</p><pre>{escape(chr(10).join(setup.commands))}</pre>"
    yield from _won_and_lost(results)
    yield "<h2>Pictures</h2>" if pictures else ""
    for picture in pictures:
        data = base64.b64encode(picture.path.read_bytes()).decode()
        yield f'<figure><img alt="{escape(picture.title)}" src="data:image/png;base64,{data}">'
        yield f"<figcaption><b>{escape(picture.title)}.</b> {escape(picture.about)}</figcaption></figure>"
    for heading, rows in sections(results):
        yield f"<h2>{escape(heading)}</h2>"
        yield from _rows(results, rows)
    yield "</body></html>"


def _won_and_lost(results: Results) -> Iterator[str]:
    yield "<h2>Won and lost</h2>"
    if not counts(results):
        yield f"<p>{escape(ALONE)}</p>"
        return
    yield "<p>kvstore beside fio, and beside the best rival of each cell: the fastest of the others in bandwidth, the "
    yield f"quickest in p99, the thriftiest in CPU time. Less than {VERDICT_MARGIN:.0%} apart is even.</p>"
    listed = ((_text_cell(name), *(f"<td>{number}</td>" for number in numbers)) for name, *numbers in counts(results))
    yield from _table(("comparison", "won ▲", "even ●", "lost ▼"), listed, texts=1)
    lost = lost_rows(results)
    yield f"<p>Lost, the worst first ({len(lost)}):</p><ul>" if lost else "<p>No row is lost.</p>"
    for row, verdict in lost:
        yield f"<li>{escape(row_name(row))} {_chip(verdict)}</li>"
    yield "</ul>" if lost else ""


def _rows(results: Results, rows: Sequence[Row]) -> Iterator[str]:
    yield f"<table><tr>{''.join(_heading(column) for column in COLUMNS)}</tr>"
    before = None
    for row in rows:
        classes = [name for name, on in (("ours", row.ours), ("first", row.cell != before)) if on]
        before = row.cell
        texts = cells(results, row)
        told = f'<span class="trouble">{escape(trouble(row))}</span>' if trouble(row) else ""
        told += "".join(_chip(verdict) for verdict in verdicts(results, row))
        span = len(COLUMNS) - len(texts)  # of a row without figures: the reason takes their place
        yield (
            f'<tr class="{" ".join(classes)}">'
            + "".join(f"<td{_class(column)}>{escape(text)}</td>" for column, text in zip(COLUMNS, texts, strict=False))
            + f'<td class="text" colspan="{span}">{told}</td></tr>'
        )
    yield "</table>"


def _chip(verdict: Verdict) -> str:
    return f'<span class="verdict {verdict.word}">{_SIGNS[verdict.word]} {escape(verdict.text)}</span>'


def _class(column: str) -> str:
    return ' class="text"' if column in ("engine", "on", "won or lost") else ""


def _heading(column: str) -> str:
    return f"<th{_class(column)}>{escape(column)}</th>"


def _text_cell(text: str) -> str:
    return f'<td class="text">{escape(text)}</td>'


def _table(columns: Sequence[str], rows: Iterable[Iterable[str]], texts: int) -> Iterator[str]:
    """Of cells that are HTML already; the first ``texts`` headings are to the left as their cells are."""
    headings = (f"<th{' class=text' if number < texts else ''}>{column}</th>" for number, column in enumerate(columns))
    yield f"<table><tr>{''.join(headings)}</tr>"
    for row in rows:
        yield f"<tr>{''.join(row)}</tr>"
    yield "</table>"
