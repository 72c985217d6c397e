# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Figures and facts as words, alike in pictures and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from kvstore.bench.machine import UNKNOWN
from kvstore.bench.rows import BASELINE, Cell, Results, Row, Setup
from kvstore.bench.setups import lowest

__all__ = [
    "COLUMNS", "VERDICT_MARGIN", "Verdict", "cells", "counts", "fact_rows", "latency_text", "lost_rows", "machine_line",
    "row_name", "sections", "size_text", "trouble", "verdicts",
]  # fmt: skip

#: Figures that differ by less are even: a repetition of the same differs by as much.
VERDICT_MARGIN = 0.03


def size_text(size_bytes: int) -> str:
    """Of a block: ``1 MiB``."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.4g} {unit}"
    return f"{size_bytes} B"


def block_text(cell: Cell) -> str:
    """The size of a cell's blocks; of several in one job the largest, and that it is that."""
    return ("up to " if "bssplit=" in cell.variant else "") + size_text(cell.block_bytes)


def latency_text(us: float) -> str:
    """Of microseconds: ``850 µs``, ``12 ms``, ``1.5 s``."""
    if us < 1000:
        return f"{us:.3g} µs"
    return f"{us / 1000:.3g} ms" if us < 999_500 else f"{us / 1e6:.3g} s"


def machine_line(setup: Setup) -> str:
    """What a picture's foot says, so that it can be shown without its page."""
    facts = [setup.facts.get(name, UNKNOWN) for name in ("cpu", "kernel", "revision")]
    devices = {
        device["disk"]: f"{device['disk']}: {_model(device)}, cache {device.get('write_cache', UNKNOWN)}"
        f", scheduler {device.get('scheduler', UNKNOWN)}"
        f", in use {device.get('in_use', device.get('file_system_used', UNKNOWN))}"
        for found in setup.places.values()
        for device in lowest(found)
        if "disk" in device
    }
    line = f"{facts[0]} | Linux {facts[1]} | kvstore {facts[2]}"
    return " | ".join([line, *devices.values()])


def _model(device: Mapping[str, Any]) -> str:
    """With the firmware, where they are known."""
    known = [str(device[name]) for name in ("model", "firmware") if device.get(name, UNKNOWN) != UNKNOWN]
    return " ".join(known) or "model unknown"


def fact_rows(setup: Setup) -> list[tuple[str, str]]:
    """Every fact of a setup, devices by place."""
    rows = [(name.replace("_", " "), value) for name, value in setup.facts.items()]
    rows += [("measured", moment) for moment in setup.moments]
    for place, devices in setup.places.items():
        rows += [(place, text) for device in devices for text in _device_texts(device)]
    return rows


def _device_texts(device: Mapping[str, Any]) -> Iterator[str]:
    yield ", ".join(
        f"{key.replace('_', ' ')} {value}" for key, value in device.items() if key not in ("under", "place")
    )
    for below in device.get("under", []):
        for text in _device_texts(below):
            yield f"over: {text}"


@dataclass(frozen=True)
class Verdict:
    """How a row of this store stands beside another in one figure."""

    figure: str
    ratio: float  # of ours to theirs
    rival: str
    word: str  # won, even, lost

    @property
    def text(self) -> str:
        """As a table shows it: what it is, then in words how that is to be taken."""
        return f"{self.word}: {self.figure} {self.ratio:.2f} × {self.rival}"


#: Name, value of a row or None, whether more is better.
_FIGURES: Sequence[tuple[str, Callable[[Row], float | None], bool]] = (
    ("GB/s", lambda row: row.bytes_per_s or None, True),
    ("p99", lambda row: row.latency_us(99), False),
    ("CPU", lambda row: row.cpu_s_per_gb, False),
)


def verdicts(results: Results, row: Row) -> list[Verdict]:
    """Against fio in bandwidth, then against the best rival in each figure. Empty for rows of others, for failed ones,
    and for those that brought wrong blocks: they cannot win.
    """
    if not row.ours or row.failure or row.wrong:
        return []
    found = []
    base = results.ratio(row)
    if base is not None:
        found.append(_verdict("GB/s", base, BASELINE, more_is_better=True))
    rivals = results.rivals(row)
    for name, figure, more_is_better in _FIGURES:
        known = [(value, rival.engine) for rival in rivals if (value := figure(rival))]
        ours = figure(row)
        if known and ours:
            theirs, rival = (max if more_is_better else min)(known)
            found.append(_verdict(name, ours / theirs, rival, more_is_better))
    return found


def _verdict(figure: str, ratio: float, rival: str, more_is_better: bool) -> Verdict:
    better = ratio if more_is_better else 1 / max(ratio, 1e-9)
    word = "even" if abs(better - 1) < VERDICT_MARGIN else "won" if better > 1 else "lost"
    return Verdict(figure, ratio, rival, word)


def counts(results: Results) -> list[tuple[str, int, int, int]]:
    """Of each comparison: how many rows of this store won, are even, lost."""
    found: dict[str, list[str]] = {}
    for row in results.rows:
        for verdict in verdicts(results, row):
            against = BASELINE if verdict.rival == BASELINE else "the best rival"
            found.setdefault(f"{verdict.figure} against {against}", []).append(verdict.word)
    return [(name, words.count("won"), words.count("even"), words.count("lost")) for name, words in found.items()]


#: Instead of what is won and lost.
ALONE = "There is nothing to compare with: of no cell there are this store and another engine."

#: Headings of the cells of a row.
COLUMNS = (
    "block", "in flight", "threads", "engine", "on", "GB/s", "blocks/s", "of fio", "p50", "p99", "CPU-s/GB",
    "writes per byte", "fill", "runs", "won or lost",
)  # fmt: skip


def cells(results: Results, row: Row) -> list[str]:
    """A row of the table but for its last cell, which is what :func:`verdicts` says."""
    cell = row.cell
    where = [block_text(cell), str(cell.iodepth), str(cell.numjobs), row.engine]
    if row.failure:
        return where
    where.append("" if cell.place == row.on else row.on)
    ratio = results.ratio(row)
    low, high = (speed / 1e9 for speed in row.bytes_per_s_range)
    spread = f" ({low:.2f} to {high:.2f})" if row.repetitions > 1 else ""
    latencies = [row.latency_us(percent) for percent in (50, 99)]
    return [
        *where,
        f"{row.bytes_per_s / 1e9:.2f}{spread}" if row.bytes_per_s else "",
        f"{row.blocks_per_s:,.0f}",
        "" if ratio is None else f"{ratio:.2f}",
        *("" if us is None else latency_text(us) for us in latencies),
        "" if row.cpu_s_per_gb is None else f"{row.cpu_s_per_gb:.3f}",
        "" if row.write_amplification is None else f"{row.write_amplification:.3f}",
        "" if row.fill == UNKNOWN else row.fill,
        str(row.repetitions),
    ]


def trouble(row: Row) -> str:
    """What a reader has to know before the figures: why there are none, or that blocks were wrong or missing."""
    told = [f"not measured: {row.failure}"] if row.failure else []
    told += [f"{row.wrong:,} blocks WRONG"] if row.wrong else []
    told += [f"{row.misses:,} misses"] if row.misses else []
    told += ["nothing verified"] if row.verify == "none" else []
    return ", ".join(told)


def sections(results: Results) -> Iterator[tuple[str, list[Row]]]:
    """Rows by setup, place and operation, with a heading for each."""
    for key, rows in groupby(
        results.rows, key=lambda row: (row.cell.setup, row.cell.place, row.cell.rw, row.cell.variant)
    ):
        setup, place, rw, variant = key
        machine = f", setup {setup + 1}" if len(results.setups) > 1 else ""
        yield f"{rw}{f' ({variant})' if variant else ''} at {place}{machine}", list(rows)


def lost_rows(results: Results) -> list[tuple[Row, Verdict]]:
    """All that this store loses, the worst first."""
    lost = [(row, verdict) for row in results.rows for verdict in verdicts(results, row) if verdict.word == "lost"]
    return sorted(lost, key=lambda pair: min(pair[1].ratio, 1 / max(pair[1].ratio, 1e-9)))


def row_name(row: Row) -> str:
    """Where in the table it is."""
    cell = row.cell
    told = [cell.rw, cell.variant, block_text(cell), f"{cell.iodepth} in flight"]
    told += [f"{cell.numjobs} threads"] if cell.numjobs > 1 else []
    return ", ".join(part for part in told if part) + f": {row.engine}"
