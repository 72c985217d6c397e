# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Results as pictures, as one HTML page that holds them, and as tables in Markdown. ``kvstore bench report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvstore.bench.results import load_results

__all__ = ["write_report"]


def write_report(paths: Sequence[Path | str], folder: Path | str) -> list[Path]:
    """Write ``report.html``, ``tables.md`` and the pictures of these result files into a folder, made when missing.

    Returns
    -------
    the files that were written, the page first.

    Raises
    ------
    ConfigError : a file is no result, or matplotlib is missing; nothing was written.
    OSError : the folder cannot be written.
    """
    from kvstore.bench.report.charts import draw_all
    from kvstore.bench.report.page import html_page
    from kvstore.bench.report.tables import markdown_tables

    results = load_results(paths)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = draw_all(results, folder)
    page, tables = folder / "report.html", folder / "tables.md"
    page.write_text(html_page(results, pictures))
    tables.write_text(markdown_tables(results))
    return [page, tables, *(picture.path for picture in pictures)]
