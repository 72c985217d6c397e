# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""How long a request waits when many ask at once: ``kvstore bench order``.

So many requests of so many blocks each are submitted together, to one device that is the limit. Served in turn, the
first has all its blocks when a sixteenth is read; served all at once, all have theirs at the end. Measured in one run:

    in order        this store, a job for each request: it serves jobs in order of arrival
    fair sharing    this store, a job for each block, the first of every request, then the second …: all progress alike
    16 threads      a rival, one call of its batch API by a thread for each request

They take turns, so that a slow minute falls on all. What every request brought is verified, outside of the time. The
mean completion of fair sharing is what others are divided by; an ideal device would give (n + 1) / 2n, .53 of 16.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from kvstore.bench.claim import Claims
from kvstore.bench.content import Buffers, Content, whole_pages
from kvstore.bench.engines import make_engine
from kvstore.bench.engines.base import Engine, SelfTimedEngine, Work
from kvstore.bench.engines.kvstore_engine import KvStoreEngine
from kvstore.bench.machine import device_facts
from kvstore.bench.panics import as_error, panics_as_errors
from kvstore.bench.places import place_in_memory, refuse_data, remove
from kvstore.errors import ConfigError

__all__ = ["GOAL", "MARGIN", "OrderSpec", "Served", "measure_order"]

#: Of fair sharing's mean completion: what serving in order has to reach.
GOAL = 0.60
#: By which the two ways of this store may differ in how long all requests take together.
MARGIN = 0.03

MIB = 1 << 20
OURS = "kvstore"
RAM = "ram"


@dataclass(frozen=True)
class OrderSpec:
    """What is asked of everybody."""

    filename: str
    engines: tuple[str, ...] = ()  # rivals
    requests: int = 16
    blocks: int = 32  # of a request
    block_bytes: int = MIB
    repetitions: int = 5
    seed: int = 1
    overwrite: bool = False

    @property
    def total_bytes(self) -> int:
        """What all requests together ask for."""
        return self.requests * self.blocks * self.block_bytes

    def work(self, path: str, iodepth: int, numjobs: int) -> Work:
        """What an engine has to be ready for."""
        population = self.requests * self.blocks
        row_bytes = whole_pages(self.block_bytes)
        return Work(
            paths=(path,),
            block_sizes=(self.block_bytes,),
            population=population,
            size_bytes=population * row_bytes * 5 // 4 + max(128 * MIB, 32 * row_bytes),
            iodepth=iodepth,
            numjobs=numjobs,
            seed=self.seed,
        )


@dataclass
class Served:
    """One way of serving. Seconds from the moment when all were asked for, per repetition and request."""

    engine: str
    how: str
    completions_s: list[list[float]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    verified: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)
    why_not: str = ""  # why it cannot run here
    failed: str = ""  # what went wrong while it ran; what it had brought until then counts for nothing
    fair_mean_s: float = 0.0  # fair sharing's mean_s in the turns beside it

    @property
    def is_measured(self) -> bool:
        """Whether there are figures."""
        return not self.why_not and not self.failed

    @property
    def mean_s(self) -> float:
        """Mean completion of a request, median of the repetitions."""
        return _mean_s(self.completions_s)

    @property
    def mean_of_last(self) -> float:
        """Of mean to last: how far it is from serving all alike (1), however fast it is. In turn: (n + 1) / 2n."""
        return self.mean_s / self.last_s

    @property
    def ratio(self) -> float:
        """Of its mean completion to fair sharing's."""
        return self.mean_s / self.fair_mean_s

    @property
    def last_s(self) -> float:
        """When the last request had its blocks, median of the repetitions."""
        return statistics.median(max(once) for once in self.completions_s)


def _mean_s(completions_s: Sequence[Sequence[float]]) -> float:
    return statistics.median(statistics.mean(once) for once in completions_s)


class _Requests:
    """An open and filled engine, and the memory of all requests."""

    def __init__(self, engine: Engine, spec: OrderSpec, path: str) -> None:
        self.engine, self.spec = engine, spec
        self.content = Content(spec.block_bytes, spec.seed)
        self.buffers: list[Buffers] = []
        try:
            engine.open(spec.work(path, spec.blocks, spec.requests))
            self.buffers = [engine.buffers() for _ in range(spec.requests)]
            for request in range(spec.requests):
                self._fill(request)
            engine.flush()
            engine.forget()
            self.devices = [device_facts(path)]
        except BaseException:
            self.close()
            raise

    def numbers(self, request: int) -> list[int]:
        """The blocks of a request."""
        return list(range(request * self.spec.blocks, (request + 1) * self.spec.blocks))

    def _fill(self, request: int) -> None:
        self.content.fill(self.buffers[request])
        numbers = self.numbers(request)
        self.content.stamp(self.buffers[request], numbers)
        if self.engine.batch("put", numbers, self.buffers[request]) not in (None, [True] * len(numbers)):
            raise RuntimeError("not all blocks were put")

    def serve(self, served: Served, serve: Callable[[_Requests], list[float]]) -> None:
        """One repetition, and the verification of what it brought."""
        for buffers in self.buffers:
            self.content.spoil(buffers, len(buffers))
        served.completions_s.append(serve(self))
        for request, buffers in enumerate(self.buffers):
            numbers = self.numbers(request)
            found = self.content.check(buffers, numbers, [self.spec.block_bytes] * len(numbers), "stamp")
            served.wrong += [problem for problem in found if problem]
            served.verified += found.count(None)

    def close(self) -> None:
        """Buffers first: they may be the engine's memory."""
        self.buffers.clear()
        self.engine.close()


_Way: TypeAlias = tuple[_Requests, Served, Callable[[_Requests], list[float]]]


def _in_order(requests: _Requests) -> list[float]:
    """A job for each request, all submitted by one thread before any is waited for."""
    space = _space(requests)
    keys = [
        [KvStoreEngine.key(number) for number in requests.numbers(request)] for request in range(requests.spec.requests)
    ]
    views = [buffers.views(requests.spec.block_bytes) for buffers in requests.buffers]
    begun, submitted = time.perf_counter(), []
    for request, wanted in enumerate(keys):
        at = time.perf_counter() - begun  # of the call: elapsed_s counts from then
        submitted.append((at, space.get_many(wanted, views[request])))
    for _, job in submitted:
        _all_hits(job)
    return [at + job.elapsed_s for at, job in submitted]


def _fair_sharing(requests: _Requests) -> list[float]:
    """A job for each block, taken from the requests in turn; a request is complete with its last."""
    space, spec = _space(requests), requests.spec
    keys = [[KvStoreEngine.key(number) for number in requests.numbers(request)] for request in range(spec.requests)]
    views = [buffers.views(spec.block_bytes) for buffers in requests.buffers]
    begun = time.perf_counter()
    submitted = []
    for place in range(spec.blocks):
        for request in range(spec.requests):
            at = time.perf_counter() - begun
            submitted.append((request, at, space.get_many([keys[request][place]], [views[request][place]])))
    complete = [0.0] * spec.requests
    for request, at, job in submitted:
        _all_hits(job)
        complete[request] = max(complete[request], at + job.elapsed_s)
    return complete


def _by_threads(requests: _Requests) -> list[float]:
    """A thread for each request calls the engine's batch."""
    complete = [0.0] * requests.spec.requests
    failures: list[BaseException] = []
    begun = [0.0]

    def begin() -> None:
        begun[0] = time.perf_counter()

    together = threading.Barrier(requests.spec.requests, begin)

    def ask(request: int) -> None:
        try:
            together.wait()
            hits = requests.engine.batch("get", requests.numbers(request), requests.buffers[request])
            complete[request] = time.perf_counter() - begun[0]
            if hits is not None and not all(hits):
                raise RuntimeError(f"request {request} missed {list(hits).count(False)} blocks")
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(request,)) for request in range(requests.spec.requests)]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:  # no thread more: those that wait for it would for ever
        together.abort()
        raise
    for thread in threads:
        thread.join()
    for failure in failures:
        raise as_error(failure)
    return complete


def _space(requests: _Requests) -> Any:
    engine = requests.engine
    assert isinstance(engine, KvStoreEngine)
    return engine.space


def _all_hits(job: Any) -> None:
    missed = [result for result in job.wait() if result.status != "hit"]
    if missed:
        raise RuntimeError(f"{len(missed)} blocks of a job were not there: {missed[0].status}")


def measure_order(spec: OrderSpec) -> list[Served]:
    """In order and fair sharing first, then every rival.

    Raises
    ------
    ConfigError : an engine that makes its own requests; a device that several engines should share.
    ForeignDataError, BusyError : there is somebody's data at one of the places, or somebody uses it.
    """
    made = {name: make_engine(name) for name in spec.engines if name != OURS}
    for name, engine in made.items():
        if isinstance(engine, SelfTimedEngine):
            raise ConfigError(f"engine {name} makes its own requests, and has no batch call")
    paths = _paths(spec, [OURS, *made])
    with Claims() as claims:
        for path in set(paths.values()) - {RAM}:
            claims.take(path)
            refuse_data(path, overwrite=spec.overwrite)
        return _measure_all(spec, made, paths)


def _measure_all(spec: OrderSpec, made: Mapping[str, Engine], paths: Mapping[str, str]) -> list[Served]:
    ours, fair = Served(OURS, "in order"), Served(OURS, "fair sharing")
    results = [ours, fair]
    with _filled(make_engine(OURS), spec, paths[OURS]) as store:
        pair: list[_Way] = [(store, ours, _in_order), (store, fair, _fair_sharing)]
        _take_turns(spec, pair)
        ours.devices = fair.devices = store.devices
        ours.facts = fair.facts = {"path": store.engine.facts()["path"]}
        for name, engine in made.items():
            results.append(_rival(spec, engine, paths[name], pair))
    ours.fair_mean_s = fair.fair_mean_s = fair.mean_s
    return results


def _rival(spec: OrderSpec, engine: Engine, path: str, pair: Sequence[_Way]) -> Served:
    """Beside further repetitions of ours, so that it is compared with what the machine did in its minute."""
    served = Served(engine.name, f"{spec.requests} threads", why_not=engine.why_not() or "")
    fair = pair[1][1]
    before = len(fair.completions_s)
    if served.why_not:
        return served
    try:
        with panics_as_errors(), _filled(engine, spec, path) as requests:
            _take_turns(spec, [*pair, (requests, served, _by_threads)])
            served.facts, served.devices = engine.facts(), requests.devices
        served.fair_mean_s = _mean_s(fair.completions_s[before:])
    except Exception as error:  # noqa: BLE001 - whatever its libraries raise; the others go on
        served.failed = f"{type(error).__name__}: {error}"
        served.completions_s.clear()
    return served


def _take_turns(spec: OrderSpec, ways: Sequence[_Way]) -> None:
    for _ in range(spec.repetitions):
        for requests, served, serve in ways:
            requests.serve(served, serve)


@contextlib.contextmanager
def _filled(engine: Engine, spec: OrderSpec, path: str) -> Iterator[_Requests]:
    """At a path, or on a place in memory for "ram"; what was made is removed."""
    with contextlib.ExitStack() as cleanup:
        if path == RAM:
            path = cleanup.enter_context(place_in_memory(engine.in_folder, spec.work(path, 1, 1).size_bytes))
        elif not Path(path).exists():
            cleanup.callback(remove, path)
        yield cleanup.enter_context(contextlib.closing(_Requests(engine, spec, path)))


def _paths(spec: OrderSpec, names: Sequence[str]) -> dict[str, str]:
    """A place for each: the names given, or one name and the engine's."""
    given = spec.filename.split(",")
    if given == [RAM]:
        return dict.fromkeys(names, RAM)
    if len(given) == len(names):
        return dict(zip(names, given, strict=True))
    if len(given) > 1:
        raise ConfigError(f"{len(given)} places for {len(names)} engines")
    if Path(given[0]).is_block_device():
        raise ConfigError(f"{given[0]} is one device: name one for each of {', '.join(names)}")
    return {name: f"{given[0]}.{name}" for name in names}
