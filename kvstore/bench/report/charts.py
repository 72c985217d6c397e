# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Pictures of results: one function a kind, each from rows of one setup, place and operation.

All are PNGs of 1200 pixels in width. An engine has one colour, marker and line in all of them, told apart without
colour too (Okabe and Ito's palette). What is missing in a cell is missing in the line, never drawn as 0.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from kvstore.bench.report.text import block_text, latency_text, machine_line, size_text
from kvstore.bench.rows import BASELINE, OURS, Results, Row, percentile

__all__ = ["WIDTH_PX", "Picture", "Style", "draw_all", "styles_of"]

WIDTH_PX = 1200
_DPI = 100
_PANEL_HEIGHT_IN = 3.1
_COLUMNS_MAX = 3
_PLACE_LETTERS, _FOOT_LETTERS = 170, 190  # of a line
_LEGEND_LETTERS, _LEGEND_LETTERS_OF_LINE = 130, 10  # that have room beside each other
_PANELS_MAX = 12  # of one picture; more go into further ones
_BLUE, _BLACK = "#0072B2", "#000000"
_OTHERS = ["#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D00", "#7A7A7A"]
_MARKERS = "svD^P<X*>hd"
_DASHES: Sequence[Any] = ["-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1))]
#: Of the latency's distribution: blocks that are not slower.
_PERCENTS = [0, 50, 90, 99, 99.9, 99.99]


@dataclass(frozen=True)
class Style:
    """How an engine looks."""

    color: str
    marker: str
    dashes: Any
    width: float = 1.8


@dataclass(frozen=True)
class Picture:
    """One file, and what it shows."""

    path: Path
    title: str
    about: str


def styles_of(engines: Iterable[str]) -> dict[str, Style]:
    """One for each engine: this store is blue, fio black; variants of both share the colour."""
    styles: dict[str, Style] = {}
    others: list[str] = []
    for engine in dict.fromkeys(engines):
        name = engine.partition(" ")[0]
        alike = sum(1 for known in styles if known.partition(" ")[0] == name)
        if name == OURS:
            styles[engine] = Style(_BLUE, "oph8"[alike % 4], _DASHES[alike % len(_DASHES)], 2.4)
        elif name == BASELINE:
            styles[engine] = Style(_BLACK, "x+12"[alike % 4], _DASHES[(alike + 1) % len(_DASHES)])
        else:
            number = len(others)
            others.append(engine)
            dashes = _DASHES[number // len(_OTHERS) % len(_DASHES)]
            styles[engine] = Style(_OTHERS[number % len(_OTHERS)], _MARKERS[number % len(_MARKERS)], dashes)
    return styles


def draw_all(results: Results, folder: Path) -> list[Picture]:
    """Every kind for every setup, place and operation of which there is something to show."""
    good = [row for row in results.rows if not row.failure]
    engines = dict.fromkeys(row.engine for row in good)
    styles = styles_of(sorted(engines, key=lambda engine: (engine != OURS, engine != BASELINE)))
    sheet = _Sheet(results, styles, folder)
    with rc_context({"text.parse_math": False}):  # a dollar in a path is a dollar
        for _, group in groupby(good, key=lambda row: _group(row)):
            rows = list(group)
            bandwidth_by_size(sheet, rows)
            ratio_to_fio(sheet, rows)
            cpu_per_gb(sheet, rows)
            latency_distribution(sheet, rows)
            bandwidth_over_time(sheet, rows)
    return sheet.pictures


def _group(row: Row) -> tuple[Any, ...]:
    return row.cell.setup, row.cell.place, row.cell.rw, row.cell.variant


class _Layout:
    """Where things are in a picture: title, place and legend above the panels, the foot below."""

    def __init__(self, engines: Sequence[str], panels: int, foot: Sequence[str]) -> None:
        self.columns = _columns(panels)
        self.lines = math.ceil(panels / self.columns)
        self.legend_columns = max(round(_LEGEND_LETTERS / (max(map(len, engines)) + _LEGEND_LETTERS_OF_LINE)), 1)
        self.foot = foot
        self.top_in = 0.75 + 0.26 * math.ceil(len(engines) / self.legend_columns)
        self.foot_in = 0.25 + 0.15 * len(foot)
        self.height_in = self.lines * (_PANEL_HEIGHT_IN + 0.75) + self.top_in + self.foot_in

    def write(self, figure: Figure, title: str, where: str) -> None:
        """What is said of all panels."""
        height_in, grey = self.height_in, "#444444"
        figure.text(0.015, 1 - 0.14 / height_in, title, fontsize=14, fontweight="bold", va="top")
        figure.text(0.015, 1 - 0.43 / height_in, where, fontsize=10, va="top", color=grey)
        figure.text(0.015, 0.12 / height_in, "\n".join(self.foot), fontsize=8, color=grey, va="bottom")

    def place(self, figure: Figure, handles: Sequence[Line2D]) -> None:
        """The legend, and the panels in what is left."""
        figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0.008, 1 - 0.62 / self.height_in),
            ncols=self.legend_columns,
            fontsize=10,
            frameon=False,
            handlelength=3.2,
        )
        figure.subplots_adjust(
            left=0.082,
            right=0.97,
            bottom=(self.foot_in + 0.55) / self.height_in,
            top=1 - (self.top_in + 0.35) / self.height_in,
            wspace=0.2,
            hspace=0.75 / _PANEL_HEIGHT_IN,
        )


def _finish_panel(axes: Axes, axis: tuple[str, str]) -> None:
    axes.set_xlabel(axis[0], fontsize=10)
    subplot = axes.get_subplotspec()
    if subplot is not None and subplot.is_first_col():
        axes.set_ylabel(axis[1], fontsize=10)
    axes.tick_params(labelsize=10)
    axes.grid(which="major", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


class _Sheet:
    """Where pictures go, with what all of them share: styles, names, the foot with the machine's facts."""

    def __init__(self, results: Results, styles: dict[str, Style], folder: Path) -> None:
        self.results, self.styles, self.folder = results, styles, folder
        self.pictures: list[Picture] = []

    def draw(
        self,
        kind: str,
        what: str,
        about: str,
        panels: Sequence[tuple[str, Sequence[Row]]],
        fill: Callable[[Axes, Sequence[Row]], None],
        axis: tuple[str, str],
    ) -> None:
        """Panels side by side, each with its heading and rows; as many pictures as that takes."""
        for first in range(0, len(panels), _PANELS_MAX):
            self._draw(kind, what, about, panels[first : first + _PANELS_MAX], fill, axis)

    def _draw(
        self,
        kind: str,
        what: str,
        about: str,
        panels: Sequence[tuple[str, Sequence[Row]]],
        fill: Callable[[Axes, Sequence[Row]], None],
        axis: tuple[str, str],
    ) -> None:
        row = panels[0][1][0]
        engines = [e for e in self.styles if any(r.engine == e for _, rows in panels for r in rows)]
        layout = _Layout(engines, len(panels), textwrap.wrap(self._machine(row), _FOOT_LETTERS))
        figure = Figure(figsize=(WIDTH_PX / _DPI, layout.height_in), dpi=_DPI, facecolor="white")
        grid = figure.subplots(layout.lines, layout.columns, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        for axes, (heading, rows) in zip(grid.flat, panels, strict=False):
            axes.set_title(heading, fontsize=11, loc="left")
            fill(axes, rows)
            _finish_panel(axes, axis)
        title = f"{row.cell.rw}: {what}"
        where = ", ".join(part for part in (row.cell.place, row.cell.variant) if part)
        layout.write(figure, title, textwrap.shorten(where, _PLACE_LETTERS, placeholder=" …"))
        layout.place(figure, [self._handle(engine) for engine in engines])
        name = "-".join(filter(None, (f"{len(self.pictures) + 1:02}", kind, row.cell.rw.replace(" ", "_"))))
        path = self.folder / f"{name}.png"
        figure.savefig(path)
        self.pictures.append(Picture(path, f"{title} ({where})", about))

    def _machine(self, row: Row) -> str:
        return machine_line(self.results.setups[row.cell.setup])

    def _handle(self, engine: str) -> Line2D:
        style = self.styles[engine]
        return Line2D([], [], color=style.color, marker=style.marker, ls=style.dashes, lw=style.width, label=engine)


def bandwidth_by_size(sheet: _Sheet, rows: Sequence[Row]) -> None:
    """GB/s over block sizes, a panel for each number of blocks in flight."""

    def fill(axes: Axes, shown: Sequence[Row]) -> None:
        for engine, line in _lines(sheet, shown):
            style, sizes = sheet.styles[engine], [row.cell.block_bytes for row in line]
            speeds = [row.bytes_per_s / 1e9 for row in line]
            low = [speed - row.bytes_per_s_range[0] / 1e9 for speed, row in zip(speeds, line, strict=True)]
            high = [row.bytes_per_s_range[1] / 1e9 - speed for speed, row in zip(speeds, line, strict=True)]
            axes.errorbar(sizes, speeds, [low, high], lw=style.width, ls=style.dashes, color=style.color,
                          marker=style.marker, ms=6, capsize=3, elinewidth=1)  # fmt: skip
        _size_axis(axes, shown)
        _log_axis(axes, [row.bytes_per_s / 1e9 for row in moved])

    moved = [row for row in rows if row.bytes_per_s]
    about = "Medians of all repetitions; bars from the slowest to the fastest. Both axes are logarithmic."
    sheet.draw(
        "bandwidth", "bandwidth by block size", about, _by_depth(moved), fill, ("block size", "bandwidth (GB/s)")
    )


def ratio_to_fio(sheet: _Sheet, rows: Sequence[Row]) -> None:
    """Bandwidth as a part of fio's at equal size, depth and place."""

    def fill(axes: Axes, shown: Sequence[Row]) -> None:
        axes.axhline(1, color=_BLACK, linewidth=1.2, linestyle="--")
        for engine, line in _lines(sheet, shown):
            ratios = [sheet.results.ratio(row) or math.nan for row in line]
            _plot(axes, sheet.styles[engine], [row.cell.block_bytes for row in line], ratios)
        highest = max(sheet.results.ratio(row) or 0 for row in shown)
        axes.set_ylim(0, max(1.15, highest * 1.08))
        axes.annotate("fio", (0.99, 1), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=9)
        _size_axis(axes, shown)

    compared = [row for row in rows if row.engine != BASELINE and sheet.results.ratio(row) is not None]
    about = "1 is what fio moves with equal block size, depth and place. Below the dashed line is slower than fio."
    sheet.draw(
        "ratio",
        "bandwidth compared with fio",
        about,
        _by_depth(compared),
        fill,
        ("block size", "bandwidth as a part of fio's"),
    )


def cpu_per_gb(sheet: _Sheet, rows: Sequence[Row]) -> None:
    """Processor seconds, user and kernel, for 10^9 bytes."""

    def fill(axes: Axes, shown: Sequence[Row]) -> None:
        for engine, line in _lines(sheet, shown):
            costs = [row.cpu_s_per_gb or math.nan for row in line]
            _plot(axes, sheet.styles[engine], [row.cell.block_bytes for row in line], costs)
        _size_axis(axes, shown)
        _log_axis(axes, [row.cpu_s_per_gb for row in known if row.cpu_s_per_gb])

    known = [row for row in rows if row.cpu_s_per_gb]
    about = "User and kernel time of the engine, without making and checking content. Lower is better."
    sheet.draw(
        "cpu", "processor time per GB", about, _by_depth(known), fill, ("block size", "processor time (CPU-s/GB)")
    )


def latency_distribution(sheet: _Sheet, rows: Sequence[Row]) -> None:
    """How many blocks took no longer than that; the axis is stretched towards 100 %, where the slow ones are."""

    def fill(axes: Axes, shown: Sequence[Row]) -> None:
        for engine, line in _lines(sheet, shown):
            style = sheet.styles[engine]
            for row in line:
                times, heights = _distribution(row)
                axes.step(times, heights, where="post", color=style.color, lw=style.width, ls=style.dashes)
                marked = [p for p in (50, 99) if sum(row.latency_ns.values()) * (1 - p / 100) >= 1]
                axes.plot(
                    [percentile(row.latency_ns, percent) / 1000 for percent in marked],
                    [_stretched(percent / 100) for percent in marked],
                    ls="none",
                    marker=style.marker,
                    color=style.color,
                    ms=6,
                )
        axes.set_xscale("log")
        low = min(percentile(row.latency_ns, 0.1) for row in shown) / 1000
        high = max(max(row.latency_ns) for row in shown) / 1000
        axes.set_xlim(*_log_ticks(axes.xaxis, low, high, latency_text, 1.3))
        axes.yaxis.set_major_locator(FixedLocator([_stretched(percent / 100) for percent in _PERCENTS]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * (1 - 10**-y):.4g} %"))
        axes.set_ylim(0, 4.2 if max(sum(row.latency_ns.values()) for row in shown) > 2000 else 3.2)

    timed = [row for row in rows if row.latency_ns]
    about = (
        "The share of blocks that took no longer, on an axis stretched towards the slowest: left and up is better. "
        "Markers are at 50 % and 99 %. A block's latency is that of the call it was in; with fio it is its request's."
    )
    for depth, panels in _by_size(timed):
        sheet.draw(
            "latency", f"latency of a block, {depth}", about, panels, fill, ("latency", "blocks that are no slower")
        )


def bandwidth_over_time(sheet: _Sheet, rows: Sequence[Row]) -> None:
    """GB/s of each interval while the job ran; of several repetitions the one nearest to the median."""

    def fill(axes: Axes, shown: Sequence[Row]) -> None:
        for engine, line in _lines(sheet, shown):
            style = sheet.styles[engine]
            for row in line:
                times = [(number + 0.5) * row.interval_s for number in range(len(row.series))]
                speeds = [value / 1e9 for value in row.series]
                axes.plot(times, speeds, color=style.color, lw=style.width, ls=style.dashes, marker=style.marker,
                          markevery=max(len(times) // 8, 1), ms=5)  # fmt: skip
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)

    lasting = [row for row in rows if len(row.series) > 1]
    about = "Each point is the mean of an interval. The time is that inside the engine's calls."
    for depth, panels in _by_size(lasting):
        sheet.draw("time", f"bandwidth over time, {depth}", about, panels, fill, ("time (s)", "bandwidth (GB/s)"))


def _plot(axes: Axes, style: Style, x: Sequence[float], y: Sequence[float]) -> None:
    axes.plot(x, y, color=style.color, marker=style.marker, ls=style.dashes, lw=style.width, ms=6)


def _lines(sheet: _Sheet, rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Rows by engine, in the order of the legend; this store's last, so that it lies on top."""
    found = [(engine, [row for row in rows if row.engine == engine]) for engine in sheet.styles]
    return [(engine, line) for engine, line in reversed(found) if line]


def _depth_text(row: Row) -> str:
    threads = f" × {row.cell.numjobs} threads" if row.cell.numjobs > 1 else ""
    return f"{row.cell.iodepth} in flight{threads}"


def _by_depth(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    depths = dict.fromkeys((row.cell.numjobs, row.cell.iodepth) for row in rows)
    panels = [[row for row in rows if (row.cell.numjobs, row.cell.iodepth) == depth] for depth in depths]
    return [(_depth_text(panel[0]), panel) for panel in panels]


def _by_size(rows: Sequence[Row]) -> list[tuple[str, list[tuple[str, list[Row]]]]]:
    """For each depth its panels, one for each block size."""
    found = []
    for depth, panel in _by_depth(rows):
        sizes = dict.fromkeys(row.cell.block_bytes for row in panel)
        panels = [[row for row in panel if row.cell.block_bytes == size] for size in sizes]
        found.append((depth, [(block_text(rows[0].cell), rows) for rows in panels]))
    return found


def _size_axis(axes: Axes, rows: Sequence[Row]) -> None:
    """Ticks at the sizes that were measured, as many as have room."""
    sizes = sorted({row.cell.block_bytes for row in rows})
    axes.set_xscale("log", base=2)
    low, high = sizes[0] / 1.4, sizes[-1] * 1.4
    axes.set_xlim(low, high)
    kept: list[int] = []
    columns = _columns(len(_panels_of(axes)))
    apart = math.log(high / low) * {1: 0.06, 2: 0.12, 3: 0.2}[columns]
    for size in sizes:
        if not kept or math.log(size / kept[-1]) >= apart:
            kept.append(size)
    axes.xaxis.set_major_locator(FixedLocator(kept))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: size_text(round(x))))


def _columns(panels: int) -> int:
    """Beside each other; four are two by two."""
    return 2 if panels == 4 else min(panels, _COLUMNS_MAX)


def _panels_of(axes: Axes) -> list[Any]:
    figure = axes.get_figure()
    return list(figure.axes) if figure is not None else []


def _log_axis(axes: Axes, values: Sequence[float]) -> None:
    """Upwards, and of all panels alike, so that they can be compared."""
    axes.set_yscale("log")
    axes.set_ylim(*_log_ticks(axes.yaxis, min(values), max(values), lambda value: f"{value:g}", 3.2))


def _log_ticks(
    axis: Axis, low: float, high: float, text: Callable[[float], str], decades_of_fives: float
) -> tuple[float, float]:
    """Ticks that a reader can count with: 1 2 5 10 where there is room, else 1 3 10, else 1 10. Returns the limits."""
    middle, decades = math.log10(low * high) / 2, max(math.log10(high / low) * 1.12, 0.6)
    first, last = middle - decades / 2, middle + decades / 2
    digits = next(
        (digits for digits, most in (((1.0, 2.0, 5.0), 1), ((1.0, 3.0), 2)) if decades <= most * decades_of_fives),
        (1.0,),
    )
    exponents = range(math.floor(first), math.ceil(last) + 1)
    axis.set_major_locator(FixedLocator([digit * 10.0**exponent for exponent in exponents for digit in digits]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(float(f"{value:.3g}"))))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    return 10**first, 10**last


def _stretched(share: float) -> float:
    """Height of a share of blocks: 0 for none, then 1 for each further nine."""
    return -math.log10(1 - share)


def _distribution(row: Row) -> tuple[list[float], list[float]]:
    """Microseconds and heights. The slowest block of all has no height; the line ends where it begins."""
    total, seen = sum(row.latency_ns.values()), 0
    times, heights = [], []
    for value, count in row.latency_ns.items():
        times.append(value / 1000)
        seen += count
        heights.append(_stretched(seen / total) if seen < total else _stretched(1 - 0.5 / total))
    return [times[0], *times], [0.0, *heights]
