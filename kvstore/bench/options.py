# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The options of a job, in one table: the command line, job files and docs/bench.md take theirs from it.

Names and values are fio's where fio has the same thing. What differs is said in the help: sections run one after
another, ``runtime`` is as with ``time_based``, a list of sizes, depths or threads is one job for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, cast

from kvstore.bench.engines import ENGINES
from kvstore.bench.shapes import load_shape
from kvstore.errors import ConfigError
from kvstore.sizes import format_size, parse_size

if TYPE_CHECKING:
    from kvstore.bench.content import Verify
    from kvstore.bench.engines.base import Op

__all__ = ["ALIASES", "OPTIONS", "JobSpec", "Option", "job_specs", "option_table"]

MIB = 1 << 20
_RW = ("put", "get", "getput", "prefetch", "lookup")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SECONDS_MAX = 10 * 366 * 86400.0
_ZIPF_MAX = 100
_TRUE, _FALSE = {"1", "true", "yes", ""}, {"0", "false", "no"}


@dataclass(frozen=True)
class JobSpec:
    """One job, checked. Its fields are the options of the table, and some more."""

    name: str
    filename: tuple[tuple[str, ...], ...]
    engine: tuple[str, ...]
    rw: str
    rwmixget: int
    bs: tuple[int, ...]
    bssplit: tuple[tuple[int, float], ...]
    shape: str
    block_tokens: int
    iodepth: int
    iodepth_batch: int
    numjobs: int
    size: int
    io_size: int
    capacity: int
    runtime: float
    ramp_time: float
    slice: float
    loops: int
    rate: int
    verify: Verify
    random_distribution: tuple[str, float]
    randseed: int
    overwrite: bool
    unlink: bool
    engine_options: Mapping[str, str]  # those with a dot: "kvstore.verify_reads"
    given: Mapping[str, str]  # as it was written
    loop: int = 0  # which repetition this is

    @property
    def ops(self) -> tuple[Op, ...]:
        """What its batches do."""
        return ("get", "put") if self.rw == "getput" else (cast("Op", self.rw),)

    @property
    def batch_blocks(self) -> int:
        """Of one call."""
        return min(self.iodepth_batch or self.iodepth, self.iodepth)

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """That occur in it."""
        return tuple(size for size, _ in self.bssplit)

    @property
    def weights(self) -> tuple[float, ...]:
        """Of the sizes."""
        return tuple(weight for _, weight in self.bssplit)

    @property
    def mean_bytes(self) -> float:
        """Of a block."""
        return sum(size * weight for size, weight in self.bssplit) / sum(self.weights)


def _text(text: str) -> str:
    return text


def _paths(text: str) -> tuple[tuple[str, ...], ...]:
    """As fio, a backslash before a colon that is part of a name."""
    places = [re.split(r"(?<!\\):", place) for place in text.split(",")]
    if not all(path for place in places for path in place):
        raise ConfigError("name a file or a device, or ram")
    return tuple(tuple(path.replace("\\:", ":") for path in place) for place in places)


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ConfigError(f"allowed are {', '.join(allowed)}")
        return text

    return parse


def _engines(text: str) -> tuple[str, ...]:
    names = tuple(ENGINES) if text == "all" else tuple(text.split(","))
    for name in names:
        _one_of(*ENGINES)(name)
    return names


def _count(low: int, high: int = 1 << 31) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise ConfigError(f"allowed are whole numbers from {low:,} to {high:,}")
        return int(text)

    return parse


def _counts(low: int, high: int) -> Callable[[str], tuple[int, ...]]:
    one = _count(low, high)
    return lambda text: tuple(one(part) for part in text.split(","))


def _size(text: str) -> int:
    return parse_size(text)


def _size_above_0(text: str) -> int:
    size = parse_size(text)
    if size < 1:
        raise ConfigError("allowed are 1 and more")
    return size


def _block_size(text: str) -> int:
    size = parse_size(text)
    if not 32 <= size < 4 << 30:
        raise ConfigError("a block has 32 bytes or more, and less than 4 GiB")
    return size


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_block_size(one) for one in text.split(","))


def _split(text: str) -> tuple[tuple[int, float], ...]:
    """fio's form: ``64k/50:1m/50``. Sizes without a percentage share what the others leave."""
    parts = [part.partition("/") for part in text.split(":") if part]
    try:
        given = [float(weight) if weight else None for _, _, weight in parts]
    except ValueError:
        raise ConfigError("write sizes and percentages: 64k/50:1m/50") from None
    told = [weight for weight in given if weight is not None]
    if not all(0 < weight <= 100 for weight in told):  # nan is neither
        raise ConfigError("a percentage is above 0, and 100 at most")
    rest = 100 - sum(told)
    open_ones = given.count(None)
    if rest < -1e-6 or (not open_ones and abs(rest) > 1e-6):
        raise ConfigError("the percentages are not 100 together")
    shares = [rest / open_ones if weight is None else weight for weight in given]
    return tuple((_block_size(size), share) for (size, _, _), share in zip(parts, shares, strict=True))


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.lower())
    if match is None or match[2] not in _SECONDS:
        raise ConfigError("write seconds, or a number and us, ms, s, m, h or d")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > _SECONDS_MAX:
        raise ConfigError("allowed are 10 years at most")
    return seconds


def _flag(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise ConfigError("allowed are 0 and 1")
    return text.lower() in _TRUE


def _verify(text: str) -> str:
    return _one_of("none", "stamp", "full")({"0": "none", "1": "stamp"}.get(text, text))


def _distribution(text: str) -> tuple[str, float]:
    kind, _, theta = text.partition(":")
    _one_of("random", "zipf")(kind)
    try:
        exponent = float(theta) if theta else 1.2
    except ValueError:
        raise ConfigError("write random, or zipf:1.2") from None
    if not 0 <= exponent <= _ZIPF_MAX:  # nan is neither
        raise ConfigError(f"zipf's theta is {theta}: allowed are 0 to {_ZIPF_MAX}")
    return kind, exponent


def _shape(text: str) -> str:
    return load_shape(text).name if text else ""


@dataclass(frozen=True)
class Option:
    """One option: how its text is read, what it is when nobody says, and what it does."""

    name: str
    parse: Callable[[str], Any]
    default: str
    help: str


#: Every option, in the order of the manual.
OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        Option("filename", _paths, "kvbench.img", "file or device; ':' between the devices of one pool; ',' between "
               "the places of several engines, which otherwise get files of their own; ram: a loop device over memory, "
               "as root"),
        Option("engine", _engines, "kvstore", "who is measured; several (kvstore,fio), or all, take turns"),
        Option("rw", _one_of(*_RW), "get", "put: blocks that were not there; get: random ones, after the store was "
               "filled; getput: both, batch by batch; prefetch: into memory; lookup: ask only"),
        Option("rwmixget", _count(0, 100), "50", "with getput: how many batches of 100 are gets"),
        Option("bs", _sizes, "1m", "block size; of a list (64k,1m) one job for each"),
        Option("bssplit", _split, "", "sizes in one job, with their share: 64k/50:1m/50; instead of bs"),
        Option("shape", _shape, "", "block size of a model, by its name in bench/shapes; instead of bs"),
        Option("block_tokens", _count(0), "0", "with shape: tokens in a block; 0: as the shape's file says"),
        Option("iodepth", _counts(1, 4096), "1", "blocks in flight at once; of a list one job for each"),
        Option("iodepth_batch", _count(0, 4096), "0", "blocks of one call; of a thread iodepth / iodepth_batch "
               "calls are in flight at once, with engines that can do that. 0: iodepth, one call after the other"),
        Option("numjobs", _counts(1, 256), "1", "threads that call at once, all on one store; likewise"),
        Option("size", _size_above_0, "1g", "bytes of different blocks: what is filled, and what gets choose from"),
        Option("io_size", _size, "0", "bytes to move; 0: size, or with runtime no limit"),
        Option("capacity", _size, "0", "bytes of the file, or of the device that may be used; 0: size and a quarter"),
        Option("runtime", _seconds, "0", "how long to run, as with fio's time_based; 0: until io_size is moved"),
        Option("ramp_time", _seconds, "0", "how long to run before anything counts"),
        Option("slice", _seconds, "1", "with several engines: how long a turn is"),
        Option("loops", _count(1, 1000), "1", "times to run it; each is a result, a repetition in a report"),
        Option("rate", _size, "0", "bytes a second of each thread at most; 0: as fast as it goes"),
        Option("verify", _verify, "stamp", "of what a get brings: stamp (24 bytes in each 4 KiB), full (every byte), "
               "none"),
        Option("random_distribution", _distribution, "random", "of gets: random (all alike) or zipf:THETA"),
        Option("randseed", _count(1, (1 << 32) - 1), "1", "of choices and contents"),
        Option("overwrite", _flag, "0", "1: what is at filename may be overwritten"),
        Option("unlink", _flag, "1", "0: keep files that this run made"),
    )
}  # fmt: skip
#: Other names of the same, all of them fio's.
ALIASES = {
    "ioengine": "engine",
    "blocksize": "bs",
    "iodepth_batch_submit": "iodepth_batch",
    "rwmixread": "rwmixget",
    "readwrite": "rw",
}
#: fio's, which change nothing here, with the only values that are what happens anyway.
_GRANTED = {"direct": _TRUE, "time_based": _TRUE, "stonewall": _TRUE, "thread": _TRUE, "group_reporting": _TRUE}


def job_specs(sections: Sequence[tuple[str, Mapping[str, str]]]) -> list[JobSpec]:
    """The jobs of sections, each a name and what was written in it; lists of sizes, depths, threads make several.

    Raises
    ------
    ConfigError : an option that there is not, a value that is not allowed; the message names both and the section.
    """
    return [spec for name, given in sections for spec in _specs(name, given)]


def _texts(name: str, given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Of a section: the options of the table by their own names, and those of engines."""
    texts: dict[str, str] = {}
    engine_options: dict[str, str] = {}
    for written, text in given.items():
        key = ALIASES.get(written, written)
        if "." in key:
            _one_of(*ENGINES)(key.partition(".")[0])
            engine_options[key] = text
        elif key in OPTIONS:
            texts[key] = text
        elif key not in _GRANTED:
            raise ConfigError(f"job {name}: there is no option {written}; see `kvstore bench --help`")
        elif text.lower() not in _GRANTED[key]:
            raise ConfigError(f"job {name}: {written} is {text!r}: kvbench always works as with {written}=1")
    if len({"bs", "bssplit", "shape"} & texts.keys()) > 1:
        raise ConfigError(f"job {name}: bs, bssplit and shape all say how large blocks are; give one of them")
    return texts, engine_options


def _specs(name: str, given: Mapping[str, str]) -> list[JobSpec]:
    texts, engine_options = _texts(name, given)
    values: dict[str, Any] = {}
    for option in OPTIONS.values():
        text = texts.get(option.name, option.default)
        try:
            values[option.name] = () if option.name == "bssplit" and not text else option.parse(text)
        except ConfigError as error:
            why = str(error).removeprefix(f"size is {text!r}: ")
            raise ConfigError(f"job {name}: {option.name} is {text!r}: {why}") from None
    depths, threads = values.pop("iodepth"), values.pop("numjobs")
    spec = JobSpec(
        name=name, engine_options=engine_options, given=dict(given), iodepth=depths[0], numjobs=threads[0], **values
    )
    if spec.shape:
        spec = replace(spec, bs=(load_shape(spec.shape).block_bytes(spec.block_tokens or None),))
    _check(spec)
    splits = [spec.bssplit] if spec.bssplit else [((size, 100.0),) for size in spec.bs]
    made = []
    for split, depth, count in product(splits, depths, threads):
        sizes = tuple(size for size, _ in split)
        told = [format_size(sizes[0])] * (len(splits) > 1)
        told += [f"depth{depth}"] * (len(depths) > 1) + [f"jobs{count}"] * (len(threads) > 1)
        one = replace(spec, name="-".join([name, *told]), bs=sizes, bssplit=split, iodepth=depth, numjobs=count)
        _check_batches(one)
        made += [replace(one, loop=loop) for loop in range(spec.loops)]
    return made


def _check(spec: JobSpec) -> None:
    if len(spec.filename) not in (1, len(spec.engine)):
        raise ConfigError(f"job {spec.name}: {len(spec.filename)} places for {len(spec.engine)} engines")
    if spec.slice <= 0:
        raise ConfigError(f"job {spec.name}: slice is 0: a turn must take some time")


def _check_batches(spec: JobSpec) -> None:
    if spec.iodepth % spec.batch_blocks:
        raise ConfigError(
            f"job {spec.name}: iodepth is {spec.iodepth}, no multiple of iodepth_batch={spec.batch_blocks}"
        )
    if spec.rw == "prefetch" and spec.batch_blocks != spec.iodepth:
        raise ConfigError(f"job {spec.name}: prefetch is one call after the other: leave iodepth_batch out")


def option_table() -> str:
    """The table as Markdown: what is in docs/bench.md."""
    rows = [f"| `{one.name}` | {f'`{one.default}`' if one.default else ''} | {one.help} |" for one in OPTIONS.values()]
    return "\n".join(["| option | default | what |", "|---|---|---|", *rows])
