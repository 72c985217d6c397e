# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A result as one PNG, as wide and in the colours of the reports': over prompt length, and over concurrency.

Drawn from the JSON document, so that a result is drawn anywhere, without the engine that it was measured with.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from kvstore.bench.report.charts import WIDTH_PX, Style
from kvstore.bench.ttft.crossover import ModelShape, find_crossover
from kvstore.replay.prefill import Prefill

__all__ = ["draw"]

_STYLES = {
    "cold": Style("#000000", "s", "-"),
    "gpu": Style("#009E73", "^", "--"),
    "host": Style("#E69F00", "D", "-."),
    "kvstore": Style("#0072B2", "o", "-", 2.4),
}
_LABELS = {
    "cold": "cold: computed",
    "gpu": "engine's prefix cache",
    "host": "engine's host tier",
    "kvstore": "kvstore, after a restart",
}
_DPI, _FOOT_LETTERS, _STEPS, _COLUMNS_MAX = 100, 190, 200, 3
_PANEL_IN, _HEAD_IN, _FOOT_IN = 4.0, 1.15, 0.3


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Write the picture of a result of ``kvstore bench ttft``."""
    rows: list[Mapping[str, Any]] = list(document["rows"])
    panels: list[tuple[str, str, list[Mapping[str, Any]]]] = []
    for concurrency in sorted({row["concurrency"] for row in rows}):
        shown = [row for row in rows if row["concurrency"] == concurrency]
        if len({row["tokens"] for row in shown}) > 1:
            panels.append((f"{_requests(concurrency)} at a time", "tokens", shown))
    for tokens in sorted({row["tokens"] for row in rows}):
        shown = [row for row in rows if row["tokens"] == tokens]
        if len({row["concurrency"] for row in shown}) > 1:
            panels.append((f"prompts of {tokens:,} tokens", "concurrency", shown))
    if not panels:  # a single point
        panels.append(("", "tokens", rows))
    columns = min(len(panels), _COLUMNS_MAX)
    lines = math.ceil(len(panels) / columns)
    height_in = lines * _PANEL_IN + _HEAD_IN + _FOOT_IN
    figure = Figure(figsize=(WIDTH_PX / _DPI, height_in), dpi=_DPI, facecolor="white")
    grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    least = min(row["concurrency"] for row in rows)
    for axes, (heading, over, shown) in zip(grid.flat, panels, strict=False):
        axes.set_title(heading, fontsize=11, loc="left")
        _fill(axes, over, shown)
        if over == "tokens" and "crossover" in document and shown[0]["concurrency"] == least:
            _crossover(axes, document["crossover"], shown)
        if axes.get_subplotspec().is_first_col():
            axes.set_ylabel("time to the first token (ms)", fontsize=10)
    named: dict[str, Any] = {}
    for axes in grid.flat[: len(panels)]:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    figure.text(0.015, 1 - 0.12 / height_in, "time to the first token", fontsize=14, fontweight="bold", va="top")
    target = document["facts"]
    model = f"{target['target']}, {Path(str(target['model'])).name}"
    about = f"{model}; medians, bars from the quickest to the 99th percentile"
    figure.text(0.015, 1 - 0.41 / height_in, about, fontsize=10, va="top", color="#444444")
    figure.legend(
        named.values(), named.keys(), loc="upper left", bbox_to_anchor=(0.008, 1 - 0.58 / height_in), ncols=4,
        fontsize=10, frameon=False, handlelength=3.2,
    )  # fmt: skip
    facts = document["machine"]
    told = [facts["cpu"], f"{facts['cores']} cores", f"Linux {facts['kernel']}", f"kvstore {facts['revision']}"]
    foot = textwrap.wrap(" | ".join([*told, document["time"]]), _FOOT_LETTERS)
    figure.text(0.015, 0.1 / height_in, "\n".join(foot), fontsize=8, color="#444444", va="bottom")
    figure.subplots_adjust(
        left=0.07,
        right=0.98,
        bottom=(_FOOT_IN + 0.5) / height_in,
        top=1 - (_HEAD_IN + 0.3) / height_in,
        wspace=0.1,
        hspace=0.9 / (_PANEL_IN - 0.8),
    )
    figure.savefig(path)


def _requests(number: int) -> str:
    return "one request" if number == 1 else f"{number} requests"


def _fill(axes: Axes, over: str, rows: Sequence[Mapping[str, Any]]) -> None:
    for which, style in _STYLES.items():
        line = sorted((row for row in rows if row["pass"] == which), key=lambda row: int(row[over]))
        if not line:
            continue
        places = [row[over] for row in line]
        medians = [row["ttft_s"]["p50"] * 1e3 for row in line]
        low = [median - row["ttft_s"]["min"] * 1e3 for median, row in zip(medians, line, strict=True)]
        high = [row["ttft_s"]["p99"] * 1e3 - median for median, row in zip(medians, line, strict=True)]
        axes.errorbar(places, medians, [low, high], color=style.color, marker=style.marker, ls=style.dashes,
                      lw=style.width, ms=6, capsize=3, elinewidth=1, label=_LABELS[which])  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sorted({row[over] for row in rows})))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("prompt (tokens)" if over == "tokens" else "requests at a time", fontsize=10)
    axes.grid(which="major", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _crossover(axes: Axes, told: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """What the formulas say between the ends, and where both ways cross."""
    medians: dict[str, dict[int, float]] = {"cold": {}, "kvstore": {}}
    for row in rows:
        if row["pass"] in medians:
            medians[row["pass"]][row["tokens"]] = row["ttft_s"]["p50"]
    lengths = sorted(set(medians["cold"]) & set(medians["kvstore"]))
    prefill = Prefill(told["parameters"], told["layers"], told["query_heads"], told["head_dim"])
    shape = ModelShape(prefill, told["bytes_per_token"])
    found = find_crossover(
        shape, told["block_tokens"], lengths, *([medians[which][n] for n in lengths] for which in ("cold", "kvstore"))
    )
    # Where a whole number of blocks is loaded: between two of them the line of loading has teeth.
    block = found.block_tokens
    whole = range(min(lengths) // block, max(lengths) // block + 1)
    places = [blocks * block + 1 for blocks in whole[:: max(len(whole) // _STEPS, 1)]]
    lines: list[tuple[str, Callable[[int], float]]] = [("cold", found.compute_s), ("kvstore", found.load_s)]
    for which, seconds in lines:
        values = [seconds(place) * 1e3 for place in places]
        axes.plot(places, values, color=_STYLES[which].color, lw=1, ls=":", label=f"{which}, predicted")
    measured = told["measured_tokens"]
    for place, text, dashes in ((told["predicted_tokens"], "predicted", ":"), (measured, "measured", "-")):
        if place is not None and place > min(lengths):  # else it lies to the left of all that was measured
            axes.axvline(place, color="#D55E00", lw=1.2, ls=dashes, label=f"crossover {text}: {place:,.0f} tokens")
