# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Runs jobs one after another; within a job its engines take turns, so that a slow minute of the machine falls on all.

An engine that cannot run, or fails, is a result that says so; the others go on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvstore.bench.contender import Contender, Store, live_blocks, work_of
from kvstore.bench.cpu import CpuTime
from kvstore.bench.engines import make_engine
from kvstore.bench.engines.base import Work
from kvstore.bench.live import Live
from kvstore.bench.machine import device_facts
from kvstore.bench.options import JobSpec
from kvstore.bench.places import place_in_memory, refuse_data, remove
from kvstore.bench.tally import Tally

__all__ = ["JobResult", "run_jobs"]

_RAM = (("ram",),)


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
    def ok(self) -> bool:
        """It ran, and brought nothing wrong."""
        return not self.why_not and not self.failed and not self.tally.wrong_count


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
        self._stores: dict[tuple[str, ...], tuple[str, Work, Store]] = {}
        self._cleanup = contextlib.ExitStack()

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
        for spec in specs:
            for contender in contenders(spec):
                contender.why_not()
                for path in contender.work.paths:
                    if not spec.overwrite:
                        refuse_data(path)
        for spec in specs:
            for contender in contenders(spec):
                for path in contender.work.paths:
                    if not Path(path).exists() and spec.unlink:
                        self._cleanup.callback(remove, path)

    def job(self, spec: JobSpec) -> None:
        """Fill, ramp, turns, verification."""
        running: list[tuple[Contender, JobResult]] = []
        for contender in contenders(spec):
            result = JobResult(spec, contender.name, contender.work.paths, time.time())
            self.results.append(result)
            result.why_not = contender.why_not() or ""
            if not result.why_not and self._prepare(contender, result):
                running.append((contender, result))
        try:
            self._turns(spec, running)
        finally:
            for contender, result in running:
                self._finish(contender, result)

    def _prepare(self, contender: Contender, result: JobResult) -> bool:
        with _told_in(result):
            contender.take(self._store(contender))
            result.devices = [device_facts(path) for path in result.paths]
            for turn in contender.fill():
                self.live.show(f"{contender.spec.name}: {contender.name} fills", turn)
            for turn in contender.ramp():
                self.live.show(f"{contender.spec.name}: {contender.name} ramps up", turn)
        if result.failed:
            self._close(contender.work.paths)  # half filled, and perhaps broken
        return not result.failed

    def _turns(self, spec: JobSpec, running: list[tuple[Contender, JobResult]]) -> None:
        """One turn of an engine that is alone, else one of ``slice`` seconds each, round by round."""
        io_size = spec.io_size or (0 if spec.runtime else spec.size)
        blocks = max(int(io_size / spec.mean_bytes), 1) if io_size else None
        alone = len(running) == 1
        left = list(running)
        while left:
            for contender, result in list(left):
                done = sum(tally.read.blocks + tally.write.blocks for tally in contender.tallies)
                seconds = max(spec.runtime - contender.ran_s, 0.0) if spec.runtime else None
                rest = None if blocks is None else blocks - done
                if result.failed or (seconds is not None and seconds < 1e-3) or (rest is not None and rest <= 0):
                    left.remove((contender, result))
                    continue
                turn_s = seconds if alone else min(spec.slice, seconds or spec.slice)
                before = max(contender.ran_s / spec.runtime if spec.runtime else 0.0, done / blocks if blocks else 0.0)
                share = turn_s / spec.runtime if turn_s and spec.runtime else 1 - before
                with _told_in(result):
                    for turn in contender.run(turn_s, rest):
                        self.live.show(f"{spec.name}: {contender.name} {spec.rw}", turn, before, share)
                    if not contender.turns[-1]["seconds"]:
                        raise RuntimeError("a whole turn moved nothing")

    def _finish(self, contender: Contender, result: JobResult) -> None:
        with _told_in(result):
            if not result.failed:
                result.tally = contender.finish()
            result.cpu, result.turns = contender.cpu, contender.turns
            result.facts = contender.facts | {"fill_s": contender.fill_s, "flush_s": contender.flush_s}
        if result.failed:
            self._close(contender.work.paths)

    def _store(self, contender: Contender) -> Store:
        """The store of the job before, when it was the same; else a fresh one."""
        paths, work = contender.work.paths, contender.work
        if paths in self._stores:
            name, opened_for, store = self._stores[paths]
            if (name, opened_for, store.numbers.live) == (contender.name, work, live_blocks(contender.spec)):
                return store
            self._close(paths)
        store = Store(contender.engine, work, live_blocks(contender.spec))
        self._stores[paths] = contender.name, work, store
        return store

    def _close(self, paths: tuple[str, ...]) -> None:
        if paths in self._stores:
            self._stores.pop(paths)[2].close()


@contextlib.contextmanager
def _told_in(result: JobResult) -> Any:
    """A competitor's failure is its result, and no reason not to measure the others."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever an engine's libraries raise
        result.failed = f"{type(error).__name__}: {error}"


def contenders(spec: JobSpec) -> list[Contender]:
    """The engines of a job, each with its place: of several engines in one file's name, each gets a file of its own."""
    if len(spec.filename) == len(spec.engine):
        places = spec.filename
    else:
        places = tuple(tuple(f"{path}.{engine}" for path in spec.filename[0]) for engine in spec.engine)
    return [Contender(spec, engine, paths) for engine, paths in zip(spec.engine, places, strict=True)]
