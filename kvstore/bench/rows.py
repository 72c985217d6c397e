# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of results, and which of them may be compared.

Only rows of one setup (machine, kernel, revision) and one place are comparable; what was measured on a different one is
never merged or compared with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvstore.bench.machine import UNKNOWN

__all__ = ["BASELINE", "OURS", "Cell", "Results", "Row", "Setup", "percentile"]

#: The engine that all are compared with, and the one that this is about.
BASELINE, OURS = "fio", "kvstore"


@dataclass(frozen=True)
class Cell:
    """What has to be equal for two rows to be compared."""

    setup: int
    place: str  # the devices at the bottom, whatever lies between: "nvme1n1", "memory"
    rw: str
    variant: str  # what else the job was asked for, working set and verification included: "size=8GiB verify=full"
    block_bytes: int
    iodepth: int
    numjobs: int


@dataclass(frozen=True)
class Row:
    """One engine in one cell: a direction of a job, or several repetitions of it.

    ``latency_ns`` is latency to the number of blocks that had it, ascending. ``series`` are bytes a second of each
    ``interval_s``. ``failure`` says why there are no figures; they are 0 then.
    """

    cell: Cell
    engine: str  # with what tells it apart: "kvstore verify_reads=off"
    engine_name: str  # without
    on: str  # what its blocks lay on: "nvme1n1", "ext4 on nvme1n1", "loop over tmpfs"
    jobs: tuple[str, ...]
    sources: tuple[str, ...]  # files
    bytes_per_s: float = 0.0
    blocks_per_s: float = 0.0
    latency_ns: Mapping[int, int] = field(default_factory=dict)
    cpu_s_per_gb: float | None = None
    write_amplification: float | None = None
    interval_s: float = 0.0
    series: tuple[float, ...] = ()
    misses: int = 0
    wrong: int = 0
    verify: str = ""
    fill: str = UNKNOWN
    failure: str = ""
    is_baseline: bool = False  # it is fio, and did what the engine of that name does
    repetitions: int = 1
    bytes_per_s_range: tuple[float, float] = (0.0, 0.0)  # lowest and highest repetition

    @property
    def ours(self) -> bool:
        """Whether this project answers for it."""
        return OURS in self.engine_name

    def latency_us(self, percent: float) -> float | None:
        """So many of 100 blocks took no longer than this; None when latencies were not recorded."""
        return percentile(self.latency_ns, percent) / 1000 if self.latency_ns else None


@dataclass(frozen=True)
class Setup:
    """One machine at one revision: its facts, the devices of each place, the commands that measured there, and of each
    file when it was and how busy the machine was.
    """

    facts: Mapping[str, str]
    places: Mapping[str, Sequence[Mapping[str, Any]]]
    commands: tuple[str, ...]
    moments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Results:
    """All rows, in the order of cells and engines."""

    rows: tuple[Row, ...]
    setups: tuple[Setup, ...]

    def baseline(self, row: Row) -> Row | None:
        """fio in the same cell, on the same if it was there, else on the device itself."""
        found = [other for other in self.rows if other.is_baseline and other.cell == row.cell and not other.failure]
        return min(found, key=lambda other: (other.on != row.on, other.on != row.cell.place), default=None)

    def ratio(self, row: Row) -> float | None:
        """Bandwidth to fio's; None where there is none to compare with."""
        base = self.baseline(row)
        if base is None or not base.bytes_per_s or row.failure:
            return None
        return row.bytes_per_s / base.bytes_per_s

    def rivals(self, row: Row) -> list[Row]:
        """Stores of others in the same cell; fio, which stores nothing that could be looked up, is not one, nor is who
        brought wrong blocks.
        """
        good = (other for other in self.rows if other.cell == row.cell and not (other.failure or other.wrong))
        return [other for other in good if not (other.ours or other.engine_name.startswith(BASELINE))]


def percentile(latency_ns: Mapping[int, int], percent: float) -> int:
    """Of a histogram that is not empty, the smallest latency that so many of 100 do not exceed."""
    wanted = percent / 100 * sum(latency_ns.values())
    seen = 0
    for value, count in latency_ns.items():
        seen += count
        if seen >= wanted:
            return value
    return max(latency_ns)
