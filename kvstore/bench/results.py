# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Result files, of ``kvstore bench`` and of fio itself, as typed rows.

Both are fio's JSON; what fio has no place for is under "kvbench" (see ``document.py``). Of a plain fio file the jobs
that do what the engine ``fio`` does (random reads, sequential writes, direct, io_uring) are rows of that engine; others
bear their difference in the engine's name. Files may be several repetitions of the same: such rows become one, its
figures their medians, its latencies all of them together.

Only rows of one setup (machine, kernel, revision) and one place are comparable; what was measured on a different one is
never merged or compared with them.
"""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvstore.bench.machine import UNKNOWN, fill_level
from kvstore.errors import ConfigError

__all__ = ["BASELINE", "OURS", "Cell", "Results", "Row", "Setup", "load_results", "percentile"]

#: The engine that all are compared with, and the one that this is about.
BASELINE, OURS = "fio", "kvstore"

_RW = {"randread": "get", "read": "get", "write": "put", "randwrite": "put", "randrw": "getput", "rw": "getput"}
_BASELINE_OPTIONS = {"ioengine": ("io_uring",), "direct": ("1",), "rw": ("randread", "write", "randrw")}
_FIO_DEFAULTS = {"ioengine": "psync", "direct": "0", "rw": "read"}
#: Options of a job that make it another measurement, with what they are when nobody says.
_VARIANTS = {"random_distribution": "random", "rate": "0", "rwmixget": "50", "bssplit": ""}
_ALIASES = {"rwmixget": "rwmixread"}
#: Facts that change from one minute to the next, and do not make another machine or device.
_PASSING = {"load", "devices", "path", "file_size", "file_allocated", "file_system_free", "file_system_used", "in_use"}
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True)
class Cell:
    """What has to be equal for two rows to be compared."""

    setup: int
    place: str
    rw: str
    variant: str  # what else the job was asked for, such as "zipf:1.2"; usually empty
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
    engine: str  # with its own options: "kvstore verify_reads=off"
    engine_name: str  # without
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
    """One machine at one revision: its facts, the devices of each place, and the commands that measured there."""

    facts: Mapping[str, str]
    places: Mapping[str, Sequence[Mapping[str, Any]]]
    commands: tuple[str, ...]


@dataclass(frozen=True)
class Results:
    """All rows, in the order of cells and engines."""

    rows: tuple[Row, ...]
    setups: tuple[Setup, ...]

    def baseline(self, row: Row) -> Row | None:
        """fio in the same cell."""
        found = (other for other in self.rows if other.engine == BASELINE and other.cell == row.cell)
        return next((other for other in found if not other.failure), None)

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
        return [other for other in good if not other.ours and other.engine_name != BASELINE]


def percentile(latency_ns: Mapping[int, int], percent: float) -> int:
    """Of a histogram that is not empty, the smallest latency that so many of 100 do not exceed."""
    wanted = percent / 100 * sum(latency_ns.values())
    seen = 0
    for value, count in latency_ns.items():
        seen += count
        if seen >= wanted:
            return value
    return max(latency_ns)


def load_results(paths: Sequence[Path | str]) -> Results:
    """Read files, put repetitions together.

    Raises
    ------
    ConfigError : a file cannot be read, or is no result; the message names it.
    """
    files = [_load(Path(path)) for path in paths]
    setups = _Setups()
    # Files that tell of their machine first: fio's own do not, and are taken to be of the same if that is only one.
    rows = [row for file in sorted(files, key=lambda file: not file.machine) for row in file.rows(setups)]
    if not rows:
        raise ConfigError(f"{', '.join(map(str, paths))}: there is no job in it")
    rows = [
        dataclasses.replace(row, cell=dataclasses.replace(row.cell, place=setups.place_name(row.cell.place)))
        for row in rows
    ]
    groups: dict[tuple[Cell, str, bool], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.cell, row.engine, bool(row.failure)), []).append(row)
    merged = [_together(group) for group in groups.values()]
    order = {row.engine: place for place, row in reversed(list(enumerate(rows)))}
    merged.sort(key=lambda row: (*_cell_order(row.cell), order[row.engine]))
    return Results(tuple(merged), setups.all())


def _cell_order(cell: Cell) -> tuple[Any, ...]:
    rw = ("get", "put", "get of getput", "put of getput", "prefetch", "lookup")
    place = rw.index(cell.rw) if cell.rw in rw else len(rw)
    return cell.setup, cell.place, place, cell.variant, cell.numjobs, cell.iodepth, cell.block_bytes


def _load(path: Path) -> _File:
    what = "a result of `kvstore bench --output-format=json` or of `fio --output-format=json+`"
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        document = json.loads(text[text.index("{") :])  # fio's notes may come before
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON, and so not {what}") from error
    if not isinstance(document, dict) or "fio version" not in document or not isinstance(document.get("jobs"), list):
        raise ConfigError(f'{path} is not {what}: it has no "fio version" and no "jobs"')
    return _File(path, document)


@dataclass(frozen=True)
class _Place:
    setup: int
    name: str
    lasting: Mapping[str, str]
    devices: Sequence[Mapping[str, Any]]


class _Setups:
    """The machines that files come from, and the places on them. Both have numbers until all are known."""

    def __init__(self) -> None:
        self._facts: list[dict[str, str]] = []
        self._commands: list[list[str]] = []
        self._places: list[_Place] = []

    def number(self, machine: Mapping[str, Any], command: str) -> int:
        """Of the machine with these facts, where this command measured; without facts, of the only one."""
        facts = {name: str(value) for name, value in machine.items() if name not in _PASSING}
        if not facts and len(self._facts) == 1:
            facts = self._facts[0]
        if facts not in self._facts:
            self._facts.append(facts)
            self._commands.append([])
        found = self._facts.index(facts)
        if command not in self._commands[found]:
            self._commands[found].append(command)
        return found

    def place(self, setup: int, devices: Sequence[Mapping[str, Any]]) -> str:
        """The number of the place that these devices are. Other settings of the same device are another place."""
        name = " + ".join(dict.fromkeys(str(device.get("place", UNKNOWN)) for device in devices))
        lasting = {key: text for key, text in _flat(devices).items() if key.rpartition(" ")[2] not in _PASSING}
        for number, known in enumerate(self._places):
            if (known.setup, known.name, known.lasting) == (setup, name, lasting):
                return str(number)
        self._places.append(_Place(setup, name, lasting, devices))
        return str(len(self._places) - 1)

    def device(self, setup: int, path: str) -> Mapping[str, Any] | None:
        """Of this path, or of files in the same folder, as another job on that machine told it."""
        devices = [device for place in self._places if place.setup == setup for device in place.devices]
        exact = (device for device in devices if device.get("path") == path)
        folder = Path(path).parent
        beside = (d for d in devices if "file_system" in d and "path" in d and Path(str(d["path"])).parent == folder)
        return next(exact, None) or next(beside, None)

    def place_name(self, number: str) -> str:
        """With the settings that tell it apart from others of the same name."""
        place = self._places[int(number)]
        alike = [other for other in self._places if (other.setup, other.name) == (place.setup, place.name)]
        differ = sorted({key for other in alike for key in {**other.lasting, **place.lasting}
                         if other.lasting.get(key) != place.lasting.get(key)})  # fmt: skip
        told = ", ".join(f"{key} {place.lasting.get(key, UNKNOWN)}" for key in differ)
        return f"{place.name} ({told})" if told else place.name

    def all(self) -> tuple[Setup, ...]:
        """In the order of their numbers."""
        places: list[dict[str, Sequence[Mapping[str, Any]]]] = [{} for _ in self._facts]
        for number, place in enumerate(self._places):
            places[place.setup][self.place_name(str(number))] = place.devices
        together = zip(self._facts, places, self._commands, strict=True)
        return tuple(Setup(facts, devices, tuple(commands)) for facts, devices, commands in together)


def _flat(devices: Sequence[Mapping[str, Any]], prefix: str = "") -> dict[str, str]:
    """Facts of devices and of those under them, by names that tell them apart."""
    found: dict[str, str] = {}
    for number, device in enumerate(devices):
        name = f"{prefix}{number} " if len(devices) > 1 else prefix
        found |= {f"{name}{key}": str(value) for key, value in device.items() if key != "under"}
        found |= _flat(device.get("under", []), f"{name}under ")
    return found


class _File:
    """One result file."""

    def __init__(self, path: Path, document: Mapping[str, Any]) -> None:
        self.path, self.document = path, document
        own = document.get("kvbench", {})
        self.machine: Mapping[str, Any] = own.get("machine", {}) if isinstance(own, dict) else {}
        self.command: str = own.get("command", "") if isinstance(own, dict) else ""

    def rows(self, setups: _Setups) -> list[Row]:
        """Of all its jobs."""
        made = []
        for entries in self._jobs():
            try:
                made += self._of_job(entries, setups)
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                name = entries[0].get("jobname", "?") if isinstance(entries[0], dict) else "?"
                raise ConfigError(f"{self.path}, job {name}: {type(error).__name__}: {error}") from error
        return made

    def _jobs(self) -> list[list[Any]]:
        """fio without group_reporting lists each thread: those of one job come together."""
        groups: dict[Any, list[Any]] = {}
        for number, job in enumerate(self.document["jobs"]):
            several = isinstance(job, dict) and "kvbench" not in job and self._options(job).get("numjobs", "1") != "1"
            groups.setdefault((job.get("jobname"), job.get("groupid")) if several else number, []).append(job)
        return list(groups.values())

    def _options(self, job: Mapping[str, Any]) -> dict[str, str]:
        given = {**self.document.get("global options", {}), **job.get("job options", {})}
        return {name: str(value) for name, value in given.items()}

    def _of_job(self, entries: Sequence[Mapping[str, Any]], setups: _Setups) -> list[Row]:
        job, options = entries[0], self._options(entries[0])
        own: Mapping[str, Any] = job.get("kvbench", {})
        engine, name = _engine(options, own)
        rw = own["rw"] if own else _RW.get(options.get("rw", "read"), options.get("rw", "read"))
        setup = setups.number(self.machine, self.command or _fio_command(options))
        filename = options.get("filename", "")
        devices = [found or setups.device(setup, path) or {"place": _place_of(path)}
                   for path, found in self._devices(filename)]  # fmt: skip
        place = setups.place(setup, [{"place": own["place"]}] if "place" in own else devices)
        if own and (failure := own.get("why_not") or own.get("failed")):
            sides = [("read" if rw != "put" else "write", rw)]
        else:
            failure = "" if not job.get("error") or own.get("wrong") else f"error {job['error']}"
            sides = [(side, _direction(rw, side)) for side in ("read", "write") if _ran(entries, side)]
        both = sum(entry[side]["io_bytes"] for entry in entries for side in ("read", "write"))
        made = []
        for side, direction in sides:
            counted = [entry[side] for entry in entries]
            series = own.get("series", {})
            values = tuple(float(value) for value in series.get(f"{side}_bytes_per_s", ()))
            bytes_per_s = float(sum(one.get("bw_bytes", one.get("bw", 0) * 1024) for one in counted))
            row = Row(
                cell=Cell(
                    setup=setup,
                    place=place,
                    rw=direction,
                    variant=_variant(own.get("options", {}), rw),
                    block_bytes=_block_bytes(own, options, side),
                    iodepth=int(options.get("iodepth", 1)),
                    numjobs=int(options.get("numjobs", 1)),
                ),
                engine=engine,
                engine_name=name,
                jobs=(str(job.get("jobname", "")),),
                sources=(self.path.name,),
                failure=str(failure),
            )
            if not failure:
                row = dataclasses.replace(
                    row,
                    bytes_per_s=bytes_per_s,
                    blocks_per_s=float(sum(one.get("iops", 0) for one in counted)),
                    latency_ns=_sum([_bins(one) for one in counted]),
                    cpu_s_per_gb=_cpu_s(entries) / (both / 1e9) if both else None,
                    write_amplification=own.get("write_amplification"),
                    interval_s=float(series.get("interval_s", 0)),
                    series=values,
                    misses=int(own.get("misses", 0)),
                    wrong=int(own.get("wrong", 0)),
                    verify=str(own.get("verify", "")),
                    fill=fill_level(own.get("facts", {}).get("stats", {})),
                    bytes_per_s_range=(bytes_per_s, bytes_per_s),
                )
            made.append(row)
        return made

    def _devices(self, filename: str) -> list[tuple[str, Mapping[str, Any] | None]]:
        """The paths in a job's filename, with what this file tells of them."""
        known: dict[str, Mapping[str, Any]] = {device["path"]: device for device in self.machine.get("devices", [])}
        # Names by path have colons in them.
        paths = [filename] if filename in known else re.split(r"(?<!\\):", filename)
        return [(path.replace("\\:", ":"), known.get(path)) for path in paths]


def _place_of(path: str) -> str:
    """When nothing is told of its device."""
    if not path:
        return UNKNOWN
    return path if path.startswith("/dev/") else f"files in {Path(path).parent}"


def _fio_command(options: Mapping[str, str]) -> str:
    return " ".join(["fio", *(f"--{name}={value}" if value else f"--{name}" for name, value in options.items())])


def _engine(options: Mapping[str, str], own: Mapping[str, Any]) -> tuple[str, str]:
    """The engine with its options, and without."""
    if own:
        name = str(own["engine"])
        given = own.get("options", {})
        told = [f"{key.partition('.')[2]}={value}" for key, value in given.items() if key.startswith(f"{name}.")]
        return " ".join([name, *sorted(told)]), name
    differ = []
    for option, good in _BASELINE_OPTIONS.items():
        value = options.get(option, _FIO_DEFAULTS[option])
        if value not in good and not (option == "direct" and value == ""):
            differ.append("buffered" if option == "direct" else value)
    return " ".join([BASELINE, *differ]), BASELINE


def _variant(given: Mapping[str, Any], rw: str) -> str:
    told = []
    for option, default in _VARIANTS.items():
        value = str(given.get(option, given.get(_ALIASES.get(option, ""), default)))
        if value != default and (option != "rwmixget" or rw == "getput"):
            told.append(f"{option}={value}")
    return " ".join(told)


def _direction(rw: str, side: str) -> str:
    return f"{'get' if side == 'read' else 'put'} of getput" if rw == "getput" else rw


def _ran(entries: Sequence[Mapping[str, Any]], side: str) -> bool:
    return any(entry[side].get("total_ios", 0) or entry[side].get("io_bytes", 0) for entry in entries)


def _block_bytes(own: Mapping[str, Any], options: Mapping[str, str], side: str) -> int:
    if own.get("block_sizes"):
        return max(int(size) for size in own["block_sizes"])
    sizes = options.get("bs", options.get("blocksize", "4096")).lower().split(",")
    match = re.fullmatch(r"(\d+)([kmg]?)i?b?", sizes[-1 if side == "write" else 0])
    if match is None:
        raise ValueError(f"bs is {options.get('bs')!r}")
    return int(match[1]) * _UNITS[match[2]]


def _bins(side: Mapping[str, Any]) -> dict[int, int]:
    """fio's json has percentiles only, its json+ the whole histogram."""
    figures: Mapping[str, Any] = side.get("clat_ns", {})
    if "bins" in figures:
        return {int(value): int(count) for value, count in figures["bins"].items()}
    known = sorted((float(percent), int(value)) for percent, value in figures.get("percentile", {}).items())
    total = int(figures.get("N", side.get("total_ios", 0)))
    bins: dict[int, int] = {}
    before = 0
    for percent, value in [*known, (100.0, int(figures.get("max", 0)))] if known else []:
        upto = round(percent / 100 * total)
        bins[value] = bins.get(value, 0) + upto - before
        before = upto
    return {value: count for value, count in bins.items() if count}


def _sum(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for histogram in histograms:
        for value, count in histogram.items():
            total[value] = total.get(value, 0) + count
    return dict(sorted(total.items()))


def _cpu_s(entries: Sequence[Mapping[str, Any]]) -> float:
    return sum(float(job["usr_cpu"] + job["sys_cpu"]) / 100 * float(job["job_runtime"]) / 1000 for job in entries)


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
        latency_ns=_sum(row.latency_ns for row in rows),
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
