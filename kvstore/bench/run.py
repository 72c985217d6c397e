# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Runs jobs one after another; within a job its engines take turns, so that a slow minute of the machine falls on all.

An engine that cannot run, or fails, is a result that says so; the others go on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvstore.bench.claim import Claims
from kvstore.bench.contender import Contender, live_blocks, work_of
from kvstore.bench.cpu import CpuTime
from kvstore.bench.engines import make_engine
from kvstore.bench.engines.base import Work
from kvstore.bench.live import Live, Progress
from kvstore.bench.machine import device_facts
from kvstore.bench.options import JobSpec
from kvstore.bench.panics import panics_as_errors
from kvstore.bench.places import place_in_memory, refuse_data, remove, write_zeros
from kvstore.bench.store import Store
from kvstore.bench.tally import Tally
from kvstore.bench.turn import Turn

__all__ = ["JobResult", "run_jobs"]

_RAM = (("ram",),)
_INTERRUPTED = "interrupted before anything was measured"


@dataclass
class JobResult:
    """One engine in one job."""

    spec: JobSpec
    engine: str
    paths: tuple[str, ...]
    began_at: float
    tally: Tally = field(default_factory=Tally)
    cpu: CpuTime = field(default_factory=lambda: CpuTime(0.0, 0.0))
    facts: dict[str, Any] = field(default_factory=dict)
    turns: list[dict[str, float]] = field(default_factory=list)
    devices: list[dict[str, Any]] = field(default_factory=list)
    why_not: str = ""  # why it could not run
    failed: str = ""  # what went wrong while it did

    @property
    def lost(self) -> int:
        """Blocks that an engine was to keep and did not; it may drop some where ``capacity`` sets a limit to that."""
        return 0 if self.spec.capacity else self.tally.read.misses + self.tally.write.misses

    @property
    def ok(self) -> bool:
        """It ran, and brought nothing wrong."""
        return not self.why_not and not self.failed and not self.tally.wrong_count and not self.lost


def run_jobs(specs: Sequence[JobSpec], live: Live) -> tuple[list[JobResult], bool]:
    """All results in order, and whether the user interrupted it; then what was measured until then is there.

    Raises
    ------
    KvStoreError : before anything was written: there is somebody's data, or an option that an engine does not have.
    """
    with _Run(live) as run:
        specs = run.places_in_memory(specs)
        run.look_at_places(specs)
        try:
            run.write_places(specs)
            for spec in specs:
                run.job(spec)
        except KeyboardInterrupt:
            return run.results, True
        return run.results, False


class _Run:
    """Open stores and files, given back at the end."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.results: list[JobResult] = []
        self._stores: dict[tuple[str, ...], _Opened] = {}
        self._unwritten: dict[str, Exception] = {}  # files, and why they could not be written
        self._cleanup = contextlib.ExitStack()
        self._claims = self._cleanup.enter_context(Claims())  # given back last

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *error: object) -> None:
        for paths in list(self._stores):
            self._close(paths)
        self._cleanup.close()

    def places_in_memory(self, specs: Sequence[JobSpec]) -> list[JobSpec]:
        """The same with a place in memory for each engine that can run, of those whose filename is "ram"."""
        sizes: dict[str, int] = {}
        for spec in specs:
            if spec.filename == _RAM:
                for engine in spec.engine:
                    sizes[engine] = max(sizes.get(engine, 0), work_of(spec, engine, ()).size_bytes)
        places = {engine: self._place_in_memory(engine, nbytes) for engine, nbytes in sizes.items()}
        return [
            replace(spec, filename=tuple((places[engine],) for engine in spec.engine), overwrite=True)
            if spec.filename == _RAM
            else spec
            for spec in specs
        ]

    def _place_in_memory(self, engine: str, nbytes: int) -> str:
        made = make_engine(engine)
        if made.why_not() is not None:
            return "ram"  # nobody will look for it
        return self._cleanup.enter_context(place_in_memory(made.in_folder, nbytes))

    def look_at_places(self, specs: Sequence[JobSpec]) -> None:
        """Of all jobs, so that the last one's mistake is told before the first one's hour."""
        made = [(spec, contender) for spec in specs for contender in contenders(spec)]
        able = [(spec, contender) for spec, contender in made if contender.why_not() is None]
        for path in (path for _, contender in able for path in contender.work.paths):
            self._claims.take(path)  # before anybody looks, or two runs find nothing at once
        for spec, contender in made:
            for path in contender.work.paths:
                refuse_data(path, overwrite=spec.overwrite)
        for spec, contender in able:
            for path in contender.work.paths:
                if not Path(path).exists() and spec.unlink:
                    self._cleanup.callback(remove, path)

    def write_places(self, specs: Sequence[JobSpec]) -> None:
        """Every file whole, once: or those that put into it first would pay for its extents, and others not."""
        sizes: dict[str, int] = {}
        for contender in (one for spec in specs for one in contenders(spec)):
            if not contender.engine.in_folder and contender.why_not() is None:
                for path in contender.work.paths:
                    sizes[path] = max(sizes.get(path, 0), contender.work.size_bytes)
        for path, size_bytes in sizes.items():
            turn = Turn(None, size_bytes)
            try:
                for nbytes in write_zeros(path, size_bytes):
                    turn.moved(turn.take(nbytes))
                    self.live.show(f"{path} is written", turn)
            except (OSError, RuntimeError) as error:
                self._unwritten[path] = error

    def job(self, spec: JobSpec) -> None:
        """Fill, ramp, turns, verification."""
        running: list[tuple[Contender, JobResult]] = []
        try:
            for contender in contenders(spec):
                result = JobResult(spec, contender.name, contender.work.paths, time.time())
                self.results.append(result)
                result.why_not = contender.why_not() or ""
                if not result.why_not and self._prepare(contender, result):
                    running.append((contender, result))
            self._turns(spec, running)
        finally:
            for contender, result in running:
                self._finish(contender, result)

    def _prepare(self, contender: Contender, result: JobResult) -> bool:
        result.failed = _INTERRUPTED  # what is left to be said if it is
        with _told_in(result):
            for path in self._unwritten.keys() & set(result.paths):
                raise self._unwritten[path]
            contender.take(self._store(contender, result))
            result.devices = [device_facts(path) for path in result.paths]
            for turn in contender.fill():
                self.live.show(f"{contender.spec.name}: {contender.name} fills", turn)
            for turn in contender.ramp():
                self.live.show(f"{contender.spec.name}: {contender.name} ramps up", turn)
            result.failed = ""
        if result.failed:
            self._close(contender.work.paths)  # half filled, and perhaps broken
        return not result.failed

    def _turns(self, spec: JobSpec, running: list[tuple[Contender, JobResult]]) -> None:
        """One turn of an engine that is alone, else one of ``slice`` seconds each, round by round."""
        alone = len(running) == 1
        left = list(running)
        progress = Progress(len(running))
        while left:
            for contender, result in list(left):
                rest = contender.left()
                if result.failed or rest.is_nothing:
                    left.remove((contender, result))
                    progress.done(contender.name)
                    continue
                turn_s = rest.seconds if alone else min(spec.slice, rest.seconds or spec.slice)
                with _told_in(result):
                    for turn in contender.run(turn_s, rest.blocks):
                        progress.at(contender.name, contender.fraction(turn))
                        self.live.show(f"{spec.name}: {contender.name} {spec.rw}", turn, progress)
                    if not contender.turns[-1]["seconds"]:
                        raise RuntimeError("a whole turn moved nothing")

    def _finish(self, contender: Contender, result: JobResult) -> None:
        if not contender.turns:
            result.failed = result.failed or _INTERRUPTED
        with _told_in(result):
            if not result.failed:
                result.tally = contender.finish()
            result.cpu, result.turns = contender.cpu, contender.turns
            result.facts = contender.facts | {"fill_s": contender.fill_s, "flush_s": contender.flush_s}
        if result.failed:
            self._close(contender.work.paths)

    def _store(self, contender: Contender, result: JobResult) -> Store:
        """The store of the job before, when it was the same; else a fresh one."""
        paths, work = contender.work.paths, contender.work
        if paths in self._stores:
            opened = self._stores[paths]
            if opened.serves(contender):
                opened.result = result
                return opened.store
            self._close(paths)
        store = Store(contender.engine, work, live_blocks(contender.spec))
        self._stores[paths] = _Opened(contender.name, work, store, result)
        return store

    def _close(self, paths: tuple[str, ...]) -> None:
        """What goes wrong is told in the result of the last job, and keeps no other store from being closed."""
        if paths in self._stores:
            opened = self._stores.pop(paths)
            with _told_in(opened.result, "closing"):
                opened.store.close()


@dataclass
class _Opened:
    """A store, and what it was opened for."""

    name: str
    work: Work
    store: Store
    result: JobResult  # of the last job that used it

    def serves(self, contender: Contender) -> bool:
        """Whether another job can go on with it."""
        needed = (contender.name, contender.work, live_blocks(contender.spec))
        return (self.name, self.work, self.store.numbers.live) == needed


@contextlib.contextmanager
def _told_in(result: JobResult, doing: str = "") -> Iterator[None]:
    """An engine's failure is its result, and no reason not to measure the others."""
    try:
        with panics_as_errors():
            yield
    except Exception as error:  # noqa: BLE001 - whatever an engine's libraries raise
        told = f"{doing}: " if doing else ""
        if result.failed in ("", _INTERRUPTED):
            result.failed = f"{told}{type(error).__name__}: {error}"


def contenders(spec: JobSpec) -> list[Contender]:
    """The engines of a job, each with its place: of several engines in one file's name, each gets a file of its own."""
    if len(spec.filename) == len(spec.engine):
        places = spec.filename
    else:
        places = tuple(tuple(f"{path}.{engine}" for path in spec.filename[0]) for engine in spec.engine)
    return [Contender(spec, engine, paths) for engine, paths in zip(spec.engine, places, strict=True)]
