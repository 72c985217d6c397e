# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""One result file as rows: fio's JSON; what fio has no place for is under "kvbench" (see ``document.py``).

Of a plain fio file the jobs that do what the engine ``fio`` does (random reads, sequential writes, direct, io_uring)
are rows of that engine; others bear their difference in the engine's name.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvstore.bench.machine import UNKNOWN, fill_level
from kvstore.bench.rows import BASELINE, Cell, Row
from kvstore.bench.setups import Setups, lies_on
from kvstore.errors import ConfigError
from kvstore.sizes import format_size, parse_size

__all__ = ["ResultFile", "load_file", "sum_of"]

_RW = {"randread": "get", "read": "get", "write": "put", "randwrite": "put", "randrw": "getput", "rw": "getput"}
_BASELINE_OPTIONS = {"ioengine": ("io_uring",), "direct": ("1",), "rw": ("randread", "write", "randrw")}
_FIO_DEFAULTS = {"ioengine": "psync", "direct": "0", "rw": "read"}
#: Options of a job that make it another measurement, with what they are when nobody says.
_VARIANTS = {"iodepth_batch": "0", "random_distribution": "random", "rate": "0", "rwmixget": "50", "bssplit": ""}
_ALIASES = {"rwmixget": "rwmixread"}
#: What jobs work over and how they look at it, which makes another measurement, too; when nobody says.
_SIZE, _VERIFY = 1 << 30, "stamp"
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def load_file(path: Path) -> ResultFile:
    """Read a result file, of ``kvstore bench`` or of fio, gzipped when its name ends in ".gz".

    Raises
    ------
    ConfigError : it cannot be read, or is no result; the message names it.
    """
    what = "a result of `kvstore bench --output-format=json` or of `fio --output-format=json+`"
    try:
        text = gzip.open(path, "rt").read() if path.suffix == ".gz" else path.read_text()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        document, _ = json.JSONDecoder().raw_decode(text, text.index("{"))  # fio's notes may stand around it
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON, and so not {what}") from error
    if not isinstance(document, dict) or "fio version" not in document or not isinstance(document.get("jobs"), list):
        raise ConfigError(f'{path} is not {what}: it has no "fio version" and no "jobs"')
    return ResultFile(path, document)


class ResultFile:
    """One result file."""

    def __init__(self, path: Path, document: Mapping[str, Any]) -> None:
        self.path, self.document = path, document
        self.time = str(document.get("time", "at an unknown time"))
        own = document.get("kvbench", {})
        self.machine: Mapping[str, Any] = own.get("machine", {}) if isinstance(own, dict) else {}
        self.command: str = own.get("command", "") if isinstance(own, dict) else ""

    def rows(self, setups: Setups) -> list[Row]:
        """Of all its jobs."""
        made = []
        for entries in self._jobs():
            try:
                made += self._of_job(entries, setups)
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                name = entries[0].get("jobname", "?") if isinstance(entries[0], dict) else "?"
                raise ConfigError(f"{self.path}, job {name}: {type(error).__name__}: {error}") from error
        return [self._beside(row, made) if row.failure else row for row in made]

    @staticmethod
    def _beside(row: Row, rows: Sequence[Row]) -> Row:
        """Of what was not measured no device is told: it would have been where the others of its job were."""
        for other in rows:
            cell = dataclasses.replace(row.cell, place=other.cell.place)
            if not other.failure and other.cell == cell:
                return dataclasses.replace(row, cell=cell)
        return row

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

    def _of_job(self, entries: Sequence[Mapping[str, Any]], setups: Setups) -> list[Row]:
        job, options = entries[0], self._options(entries[0])
        own: Mapping[str, Any] = job.get("kvbench", {})
        engine, name = _engine(options, own)
        rw = own["rw"] if own else _RW.get(options.get("rw", "read"), options.get("rw", "read"))
        setup = setups.number(self.machine, self.command or _fio_command(options), self.path.name, self.time)
        devices = [
            found or setups.device(setup, path) or {"place": _place_of(path)}
            for path, found in self._devices(_filename(job, options))
        ]
        failure, sides = _sides(entries, own, rw)
        cell = Cell(
            setup=setup,
            place=setups.place(setup, devices, str(own.get("place", ""))),
            rw=rw,
            variant=_variant(own, options, rw),
            block_bytes=0,  # of each side
            iodepth=_at_least_1(options.get("iodepth", 1)),
            numjobs=_at_least_1(options.get("numjobs", 1)),
        )
        row = Row(
            cell=cell,
            engine=engine,
            engine_name=name,
            on=lies_on(devices),
            is_baseline=engine == BASELINE,
            jobs=(str(job.get("jobname", "")),),
            sources=(self.path.name,),
            failure=str(failure),
        )
        made = []
        for side, direction in sides:
            block_bytes = _at_least_1(_block_bytes(own, options, side, job[side]))
            of_side = dataclasses.replace(cell, rw=direction, block_bytes=block_bytes)
            figures = {} if failure else _figures(entries, own, side)
            made.append(dataclasses.replace(row, cell=of_side, **figures))
        return made

    def _devices(self, filename: str) -> list[tuple[str, Mapping[str, Any] | None]]:
        """The paths in a job's filename, with what this file tells of them."""
        known: dict[str, Mapping[str, Any]] = {device["path"]: device for device in self.machine.get("devices", [])}
        # Names by path have colons in them.
        paths = [filename] if filename in known else re.split(r"(?<!\\):", filename)
        return [(path.replace("\\:", ":"), known.get(path)) for path in paths]


def _filename(job: Mapping[str, Any], options: Mapping[str, str]) -> str:
    name = options.get("filename", "")
    return name if name or "directory" not in options else f"{options['directory']}/{job.get('jobname', '')}"


def _sides(entries: Sequence[Mapping[str, Any]], own: Mapping[str, Any], rw: str) -> tuple[str, list[tuple[str, str]]]:
    """Why nothing was measured, else "", and the sides of fio's job with what each did in a report's words."""
    if own and (failure := own.get("why_not") or own.get("failed")):
        return str(failure), [("read" if rw != "put" else "write", rw)]
    error = entries[0].get("error")
    failure = f"error {error}" if error and not own.get("wrong") else ""
    return failure, [(side, _direction(rw, side)) for side in ("read", "write") if _ran(entries, side)]


def _figures(entries: Sequence[Mapping[str, Any]], own: Mapping[str, Any], side: str) -> dict[str, Any]:
    """Of a row, what was measured."""
    counted = [entry[side] for entry in entries]
    series = own.get("series", {})
    both = sum(entry[one]["io_bytes"] for entry in entries for one in ("read", "write"))
    bytes_per_s = _figure(sum(one.get("bw_bytes", one.get("bw", 0) * 1024) for one in counted))
    amplification = own.get("write_amplification")
    return {
        "bytes_per_s": bytes_per_s,
        "bytes_per_s_range": (bytes_per_s, bytes_per_s),
        "blocks_per_s": _figure(sum(one.get("iops", 0) for one in counted)),
        "latency_ns": sum_of([_bins(one) for one in counted]),
        "cpu_s_per_gb": _figure(_cpu_s(entries) / (both / 1e9)) if both else None,
        "write_amplification": None if amplification is None else _figure(amplification),
        "interval_s": _figure(series.get("interval_s", 0)),
        "series": tuple(_figure(value) for value in series.get(f"{side}_bytes_per_s", ())),
        "misses": int(own.get("misses", 0)),
        "wrong": int(own.get("wrong", 0)),
        "verify": str(own.get("verify", "")),
        "fill": fill_level(own.get("facts", {}).get("stats", {})),
    }


def _figure(value: Any) -> float:
    """A number that can be drawn; JSON as Python reads it has others."""
    figure = float(value)
    if not 0 <= figure < math.inf:  # nan is neither
        raise ValueError(f"{value} was not measured by anybody")
    return figure


def _at_least_1(value: Any) -> int:
    number = int(value)
    if number < 1:
        raise ValueError(f"{value} is less than 1")
    return number


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


def _variant(own: Mapping[str, Any], options: Mapping[str, str], rw: str) -> str:
    """What tells a measurement from one of the defaults. Of plain fio the size that it does not say is unknown."""
    given: Mapping[str, Any] = own.get("options", options)
    told = []
    size = _bytes(options.get("size", ""))
    if size != _SIZE:
        told.append(f"size={UNKNOWN if size is None else format_size(size)}")
    if own and "capacity" in given and (capacity := parse_size(str(given["capacity"]))):
        told.append(f"capacity={format_size(capacity)}")
    if own.get("verify", _VERIFY) != _VERIFY:
        told.append(f"verify={own['verify']}")
    for option, default in _VARIANTS.items():
        value = str(given.get(option, given.get(_ALIASES.get(option, ""), default)))
        if value != default and (option != "rwmixget" or rw == "getput"):
            told.append(f"{option}={value}")
    return " ".join(told)


def _direction(rw: str, side: str) -> str:
    return f"{'get' if side == 'read' else 'put'} of getput" if rw == "getput" else rw


def _ran(entries: Sequence[Mapping[str, Any]], side: str) -> bool:
    return any(entry[side].get("total_ios", 0) or entry[side].get("io_bytes", 0) for entry in entries)


def _block_bytes(own: Mapping[str, Any], options: Mapping[str, str], side: str, counted: Mapping[str, Any]) -> int:
    """Of several sizes in one job the largest, or what requests of a plain fio job had on average."""
    if own.get("block_sizes"):
        return max(int(size) for size in own["block_sizes"])
    if "bssplit" in options and counted.get("total_ios"):
        return round(int(counted["io_bytes"]) / int(counted["total_ios"]))
    sizes = options.get("bs", options.get("blocksize", "4096")).split(",")
    found = _bytes(sizes[-1 if side == "write" else 0])
    if found is None:
        raise ValueError(f"bs is {options.get('bs')!r}")
    return found


def _bytes(text: str) -> int | None:
    """A size as fio writes it; None: it is none, or a share."""
    match = re.fullmatch(r"(\d+)([kmgt]?)i?b?", text.lower())
    return int(match[1]) * _UNITS[match[2]] if match else None


def _bins(side: Mapping[str, Any]) -> dict[int, int]:
    """fio's json has percentiles only, its json+ the whole histogram."""
    figures: Mapping[str, Any] = side.get("clat_ns", {})
    if "bins" in figures:
        # What is faster than a nanosecond has a place on a logarithmic axis, too.
        return {max(int(value), 1): _at_least_1(count) for value, count in figures["bins"].items() if count}
    known = sorted((float(percent), int(value)) for percent, value in figures.get("percentile", {}).items())
    total = int(figures.get("N", side.get("total_ios", 0)))
    bins: dict[int, int] = {}
    before = 0
    for percent, value in [*known, (100.0, int(figures.get("max", 0)))] if known else []:
        upto = round(percent / 100 * total)
        bins[value] = bins.get(value, 0) + upto - before
        before = upto
    return {value: count for value, count in bins.items() if count}


def sum_of(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Histograms of the same kind added up, ascending by value."""
    total: dict[int, int] = {}
    for histogram in histograms:
        for value, count in histogram.items():
            total[value] = total.get(value, 0) + count
    return dict(sorted(total.items()))


def _cpu_s(entries: Sequence[Mapping[str, Any]]) -> float:
    return sum(float(job["usr_cpu"] + job["sys_cpu"]) / 100 * float(job["job_runtime"]) / 1000 for job in entries)
