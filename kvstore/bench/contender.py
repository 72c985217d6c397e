# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""One engine in one job: filled, run turn by turn, verified.

``numjobs`` are threads of this process and not processes: a pool in owner mode has one process, engines of LMCache are
called by threads of one process too, and calls release the GIL while the device works. All threads share one store.

Only the time inside an engine's calls counts, for bandwidth, latency and bandwidth over time (``clock.py``). Choosing
numbers, making and checking content happen between the calls of a thread; the CPU time they take is taken off the
process's. A turn of puts ends with a flush, which counts: what an engine kept in memory would else be written in the
turn of the next one. Emptying caches and opening again, so that gets come from the device, counts for nobody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from kvstore.bench.clock import JobClock
from kvstore.bench.content import whole_pages
from kvstore.bench.cpu import CpuTime, cpu_of_thread, cpu_time
from kvstore.bench.engines import make_engine
from kvstore.bench.engines.base import Op, SelfTimedEngine, Work
from kvstore.bench.lane import Lane
from kvstore.bench.numbers import Choices
from kvstore.bench.options import JobSpec
from kvstore.bench.panics import as_error
from kvstore.bench.store import Store
from kvstore.bench.tally import Tally, together
from kvstore.bench.turn import Turn
from kvstore.errors import ConfigError

__all__ = ["Contender", "work_of"]

MIB = 1 << 20
_READ_BACK_BLOCKS = 64
_TICK_S = 0.1


def work_of(spec: JobSpec, engine: str, paths: tuple[str, ...]) -> Work:
    """What the engine of a job has to be ready for."""
    population = live_blocks(spec) + _slack_blocks(spec)
    largest = max(spec.block_sizes)
    # A quarter more than what is kept, so that an engine which reclaims need not do that with all it has.
    needed = population * whole_pages(largest) * 5 // 4 + max(128 * MIB, 8 * largest)
    prefix = f"{engine}."
    return Work(
        paths=paths,
        block_sizes=spec.block_sizes,
        weights=spec.weights,
        population=population,
        size_bytes=spec.capacity or -(-needed // MIB) * MIB,
        iodepth=spec.batch_blocks,
        calls=spec.iodepth // spec.batch_blocks,
        numjobs=spec.numjobs,
        verify=spec.verify,
        seed=spec.randseed,
        options={k.removeprefix(prefix): v for k, v in spec.engine_options.items() if k.startswith(prefix)},
    )


def live_blocks(spec: JobSpec) -> int:
    """How many blocks gets choose from."""
    return max(int(spec.size / spec.mean_bytes), spec.iodepth * spec.numjobs)


def _slack_blocks(spec: JobSpec) -> int:
    """How many more must be kept: those being put, and where gets go on meanwhile, those that are put during one."""
    return spec.iodepth * spec.numjobs * (4 if spec.rw == "getput" else 1)


class Rest(NamedTuple):
    """What an engine has to do still. None: no such limit."""

    seconds: float | None
    blocks: int | None

    @property
    def is_nothing(self) -> bool:
        """Whether it is over."""
        return (self.seconds is not None and self.seconds < 1e-3) or (self.blocks is not None and self.blocks <= 0)


class Contender:
    """One engine in one job."""

    def __init__(self, spec: JobSpec, engine: str, paths: tuple[str, ...]) -> None:
        self.spec, self.name, self.work = spec, engine, work_of(spec, engine, paths)
        self.engine = make_engine(engine)
        self.tallies = [Tally() for _ in range(spec.numjobs)]
        self.clock = JobClock()
        self.cpu = CpuTime(0.0, 0.0)
        self.staged = 0  # different blocks of each prefetch that an engine called hits
        self.facts: dict[str, Any] = {}
        self.turns: list[dict[str, float]] = []  # of those that count: seconds, and bytes read and written
        self.fill_s = self.flush_s = self.ran_s = 0.0
        self._self_timed = isinstance(self.engine, SelfTimedEngine)

    def why_not(self) -> str | None:
        """Why it cannot do this job here."""
        missing = sorted(set(self.spec.ops) - self.engine.operations)
        if missing:
            return f"it has no {missing[0]}"
        if len(self.work.paths) > 1 and not self.engine.many_paths:
            return "it uses one device, not several"
        if self.work.calls > 1 and not (self.engine.overlaps or self._self_timed):
            return "its calls block: for several in flight there is numjobs"
        if self._self_timed and (len(self.spec.ops) > 1 or self.spec.rate):
            return "it makes its own requests, and cannot mix gets with puts or keep to a rate"
        unknown = sorted(set(self.work.options) - set(self.engine.option_help))
        if unknown:
            there_are = ", ".join(self.engine.option_help) or "none"
            raise ConfigError(f"engine {self.name} has no option {unknown[0]}: there are {there_are}")
        return self.engine.why_not()

    def take(self, store: Store) -> None:
        """Work on an open store, which may be another job's."""
        self.store, self.engine = store, store.engine
        self._staged_before = store.engine.staged()
        live = store.numbers.live
        self.choices = [
            Choices(live, self.spec.random_distribution, self.spec.randseed, worker, self.spec.loop)
            for worker in range(self.spec.numjobs)
        ]

    def fill(self) -> Iterator[Turn]:
        """Put what gets will look for, as fio lays out its files, and leave none of it in memory. Not needed for jobs
        that only put.
        """
        if self.spec.ops == ("put",):
            return
        missing = self.store.numbers.live - self.store.numbers.next
        begun = time.perf_counter()
        if isinstance(self.engine, SelfTimedEngine):
            self.engine.lay_out()
        elif missing > 0:
            yield from self._run(Turn(None, missing), [Tally() for _ in self.tallies], "put")
        self.store.forget()
        self.fill_s = time.perf_counter() - begun

    def ramp(self) -> Iterator[Turn]:
        """Run for a while without counting."""
        if self.spec.ramp_time:
            yield from self._run(Turn(self.spec.ramp_time, None), [Tally() for _ in self.tallies])
            self._settle()

    def left(self) -> Rest:
        """What is to be done after the turns until now."""
        spec = self.spec
        io_size = spec.io_size or (0 if spec.runtime else spec.size)
        return Rest(
            max(spec.runtime - self.ran_s, 0.0) if spec.runtime else None,
            max(int(io_size / spec.mean_bytes), 1) - self._asked() if io_size else None,
        )

    def fraction(self, turn: Turn) -> float:
        """How much of all is done, 0 to 1, in the midst of a turn."""
        rest = self.left()
        by_time = (self.ran_s + time.perf_counter() - turn.begun) / self.spec.runtime if self.spec.runtime else 0.0
        asked = self._asked()
        by_blocks = asked / (asked + rest.blocks) if rest.blocks is not None else 0.0
        return min(max(by_time, by_blocks), 1.0)

    def _asked(self) -> int:
        return sum(tally.read.asked + tally.write.asked for tally in self.tallies)

    def run(self, seconds: float | None, blocks: int | None) -> Iterator[Turn]:
        """A turn that counts, for so long or for so many blocks. Yields ten times a second while it lasts."""
        before, own = cpu_time(self.engine.processes()), cpu_of_thread()
        earlier, begun = self._sums(), time.perf_counter()
        flushing = CpuTime(0.0, 0.0)
        try:
            yield from self._run(Turn(seconds, blocks, self.clock), self.tallies)
            watched = cpu_of_thread()
            flush_s = self._settle()
            flushing = cpu_of_thread() - watched
            self.clock.advance(flush_s)
            self.flush_s += flush_s
        finally:
            # That a program has to start is no part of how long it ran.
            ran_s = time.perf_counter() - begun
            self.turns.append({name: now - earlier[name] for name, now in self._sums().items()})
            self.ran_s += self.turns[-1]["seconds"] if self._self_timed else ran_s
            self.cpu = self.cpu.plus(flushing)
            if self.engine.processes():
                used = cpu_time(self.engine.processes()) - before
                self.cpu = self.cpu.plus(used - (cpu_of_thread() - own))  # this thread watches, but for flushing

    def _settle(self) -> float:
        """Have all that was put on the device; how long that took."""
        if "put" not in self.spec.ops:
            return 0.0
        begun = time.perf_counter()
        self.engine.flush()
        return time.perf_counter() - begun

    def _sums(self) -> dict[str, float]:
        """Of all threads until now."""
        return {
            "seconds": self.clock.seconds,
            "read_bytes": sum(tally.read.bytes for tally in self.tallies),
            "write_bytes": sum(tally.write.bytes for tally in self.tallies),
        }

    def finish(self) -> Tally:
        """Verify what can be verified only now, and add everything up."""
        if isinstance(self.engine, SelfTimedEngine):
            self.engine.check()  # of what is on the device: its gets themselves were not looked at
        elif "put" in self.spec.ops and self.spec.verify != "none":
            self._read_back()
        self._demand_staged()
        self.facts = self.engine.facts()
        total = together(self.tallies, self.clock.seconds)
        if self.engine.processes():
            used = self.cpu - total.overhead_cpu
            self.cpu = CpuTime(max(used.usr, 0.0), max(used.sys, 0.0))
        return total

    def _demand_staged(self) -> None:
        """A prefetch that says "hit" and does nothing would else be the fastest of all."""
        before, after = self._staged_before, self.engine.staged()
        # Of several threads one gets what another staged.
        if before is None or after is None or self.spec.numjobs > 1 or after - before >= self.staged:
            return
        raise RuntimeError(f"of {self.staged} blocks that were staged, by its word, {after - before} were there to get")

    def _run(self, turn: Turn, tallies: list[Tally], op: Op | None = None) -> Iterator[Turn]:
        if self._self_timed:
            threads = [threading.Thread(target=self._measure, args=(turn, tallies[0]))]
        else:
            lanes = [
                Lane(self.spec, self.store, worker, self.choices[worker], turn, tally)
                for worker, tally in enumerate(tallies)
            ]
            threads = [threading.Thread(target=self._work, args=(lane, op)) for lane in lanes]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(_TICK_S)
                    yield turn
        finally:
            turn.stopped.set()
            for thread in threads:
                thread.join()
        if turn.failure is not None:
            raise as_error(turn.failure)

    def _measure(self, turn: Turn, tally: Tally) -> None:
        engine, op = self.engine, self.spec.ops[0]
        assert isinstance(engine, SelfTimedEngine)
        kind, theta = self.spec.random_distribution
        try:
            done = engine.measure(op, turn.seconds, turn.blocks, theta if kind == "zipf" else None, turn.stopped)
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            turn.fail(error)
            return
        side = tally.write if op == "put" else tally.read
        side.measured(done.blocks, done.bytes, done.latency_ns, turn.clock.seconds, done.seconds)
        turn.clock.advance(done.seconds)
        tally.thread_seconds += done.seconds
        turn.taken = done.blocks
        turn.moved(done.bytes)
        self.cpu = self.cpu.plus(CpuTime(done.usr_s, done.sys_s))

    def _work(self, lane: Lane, op: Op | None) -> None:
        try:
            lane.run(op)
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            lane.turn.fail(error)
        self.staged += lane.staged  # looked at only where there is one thread

    def _read_back(self) -> None:
        """Get the newest blocks that were put, from the device: all with ``verify=full``, else some."""
        self.store.forget()
        numbers, content = self.store.numbers, self.store.content
        count = numbers.live if self.spec.verify == "full" else min(numbers.live, _READ_BACK_BLOCKS)
        buffers, tally = self.store.buffers[0][0], self.tallies[0]
        newest = range(max(numbers.next - count, 0), numbers.next)
        for first in range(0, len(newest), self.work.iodepth):
            chosen = newest[first : first + self.work.iodepth]
            content.spoil(buffers, len(chosen))
            hits = self.engine.batch("get", chosen, buffers) or [True] * len(chosen)
            for row, number in enumerate(chosen):
                if hits[row]:
                    tally.found(content.wrong(buffers, row, number, self.work.bytes_of(number), self.spec.verify))
                else:
                    tally.write.misses += 1
