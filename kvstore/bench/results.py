# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Result files, of ``kvstore bench`` and of fio itself, as typed rows: repetitions are one row, in a fixed order."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kvstore.bench.resultfile import load_file, sum_of
from kvstore.bench.rows import Cell, Results, Row
from kvstore.bench.setups import Setups
from kvstore.errors import ConfigError

__all__ = ["load_results"]


def load_results(paths: Sequence[Path | str]) -> Results:
    """Read files, put repetitions together.

    Raises
    ------
    ConfigError : a file cannot be read, or is no result; the message names it.
    """
    # The same file twice is no repetition.
    files = [load_file(path) for path in {os.path.realpath(path): Path(path) for path in paths}.values()]
    setups = Setups()
    # Files that tell of their machine first: fio's own do not, and are taken to be of the same if that is only one.
    rows = [row for file in sorted(files, key=lambda file: not file.machine) for row in file.rows(setups)]
    if not rows:
        raise ConfigError(f"{', '.join(map(str, paths))}: there is no job in it")
    rows = [
        dataclasses.replace(row, cell=dataclasses.replace(row.cell, place=setups.place_name(row.cell.place)))
        for row in rows
    ]
    rows = _tell_apart(rows)
    groups: dict[tuple[Cell, str, bool], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.cell, row.engine, bool(row.failure)), []).append(row)
    merged = [_together(group) for group in groups.values()]
    order = {row.engine: place for place, row in reversed(list(enumerate(rows)))}
    merged.sort(key=lambda row: (*_cell_order(row.cell), order[row.engine]))
    return Results(tuple(merged), setups.all())


def _tell_apart(rows: Sequence[Row]) -> list[Row]:
    """An engine that is in a cell more than once, on this and on that, has it in its name."""
    where: dict[tuple[Cell, str], set[str]] = {}
    for row in rows:
        if not row.failure:
            where.setdefault((row.cell, row.engine), set()).add(row.on)
    several = {engine for (_, engine), found in where.items() if len(found) > 1}
    return [
        dataclasses.replace(row, engine=f"{row.engine} on {row.on}") if row.engine in several else row for row in rows
    ]


def _cell_order(cell: Cell) -> tuple[Any, ...]:
    rw = ("get", "put", "get of getput", "put of getput", "prefetch", "lookup")
    place = rw.index(cell.rw) if cell.rw in rw else len(rw)
    return cell.setup, cell.place, place, cell.variant, cell.numjobs, cell.iodepth, cell.block_bytes


def _together(rows: Sequence[Row]) -> Row:
    """One row of repetitions."""
    if len(rows) == 1:
        return rows[0]
    speed = statistics.median(row.bytes_per_s for row in rows)
    typical = min(rows, key=lambda row: abs(row.bytes_per_s - speed))
    return dataclasses.replace(
        typical,
        jobs=tuple(dict.fromkeys(name for row in rows for name in row.jobs)),
        sources=tuple(dict.fromkeys(name for row in rows for name in row.sources)),
        bytes_per_s=speed,
        blocks_per_s=statistics.median(row.blocks_per_s for row in rows),
        latency_ns=sum_of(row.latency_ns for row in rows),
        cpu_s_per_gb=_median(row.cpu_s_per_gb for row in rows),
        write_amplification=_median(row.write_amplification for row in rows),
        misses=sum(row.misses for row in rows),
        wrong=sum(row.wrong for row in rows),
        failure="; ".join(dict.fromkeys(row.failure for row in rows if row.failure)),
        repetitions=len(rows),
        bytes_per_s_range=(min(row.bytes_per_s for row in rows), max(row.bytes_per_s for row in rows)),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
