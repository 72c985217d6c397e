# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Lane: one thread of a contender, in one turn. Keeps ``work.calls`` calls in flight, and ends the oldest first.

A call is inside the engine from when it begins until it has ended. What is made and checked for another one meanwhile
costs no time as long as the engine is the slower one; the CPU time of that is no engine's, and is told as overhead.

No thread waits for another one while it has calls in flight, which the other may be waiting for.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvstore.bench.content import Buffers
from kvstore.bench.cpu import CpuTime, cpu_of_process, cpu_of_thread
from kvstore.bench.engines.base import Moved, Op
from kvstore.bench.numbers import Choices
from kvstore.bench.options import JobSpec
from kvstore.bench.store import Store
from kvstore.bench.tally import Tally
from kvstore.bench.turn import Turn
from kvstore.errors import ConfigError

__all__ = ["Lane"]


@dataclass
class _Call:
    """One that is in flight, or is next."""

    op: Op
    chosen: list[int]
    buffers: Buffers
    kept: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # its numbers, until it has ended
    begun: float = 0.0
    begun_s: float = 0.0  # on the job's clock
    end: Callable[[], Moved] | None = None  # None: it blocks, and begins when it is to end


class Lane:
    """``worker`` says whose buffers and choices; ``staged`` counts the different blocks that prefetches called hits."""

    def __init__(self, spec: JobSpec, store: Store, worker: int, choices: Choices, turn: Turn, tally: Tally) -> None:
        self.spec, self.work, self.engine = spec, store.work, store.engine
        self.numbers, self.content, self.choices = store.numbers, store.content, choices
        self.turn, self.tally, self.clock = turn, tally, turn.clock
        self.staged = 0
        self._free = deque(store.buffers[worker])
        self._calls: deque[_Call] = deque()
        self._engine_cpu = CpuTime(0.0, 0.0)
        self._inside_until = 0.0
        self._due = 0.0  # when the next call may begin, where there is a rate
        self._due_bytes = 0  # that were moved, and are not in it yet

    def run(self, op: Op | None) -> None:
        """Call after call until the turn is over. The rate is for what is measured, not for filling (``op``)."""
        rate = 0 if op else self.spec.rate
        if rate:  # all time counts, or more than the rate would be reported
            self.clock.enter(time.perf_counter())
        begun, self._due = cpu_of_thread(), time.perf_counter()
        try:
            while count := self.turn.take(self.work.iodepth):
                self._begin(op or self._next_op(), count)
                if not self._free:
                    self._end_oldest()
                self._keep_to(rate)
            while self._end_oldest():
                pass
        finally:
            self._give_up()
            overhead = cpu_of_thread() - begun - self._engine_cpu
            self.tally.overhead_cpu = self.tally.overhead_cpu.plus(overhead)
            if rate:
                self.clock.leave(time.perf_counter())

    def _next_op(self) -> Op:
        ops = self.spec.ops
        if len(ops) == 1:
            return ops[0]
        return "get" if self.choices.percent() < self.spec.rwmixget else "put"

    def _begin(self, op: Op, count: int) -> None:
        """Choose and make what it moves, and start it where it does not block."""
        with contextlib.ExitStack() as stack:
            buffers = self._free[0]
            if op == "put":
                chosen = list(stack.enter_context(self.numbers.putting(count, self._end_oldest)))
                self.content.stamp(buffers, chosen)
            else:
                there = stack.enter_context(self.numbers.getting())
                if not there:
                    raise ConfigError("there is nothing to get: nothing was put yet")
                chosen = self.choices.among(there, count)
                if op == "get":
                    self.content.spoil(buffers, count)
            call = _Call(op, chosen, buffers)
            if self.work.calls > 1:
                cpu = cpu_of_thread()
                self._enter(call)
                try:
                    call.end = self.engine.begin(op, chosen, buffers)
                except BaseException:
                    self.clock.leave(time.perf_counter())
                    raise
                self._engine_cpu = self._engine_cpu.plus(cpu_of_thread() - cpu)
            self._free.popleft()
            call.kept = stack.pop_all()
            self._calls.append(call)

    def _enter(self, call: _Call) -> None:
        """From now on it is inside the engine."""
        call.begun = time.perf_counter()
        call.begun_s = self.clock.enter(call.begun)

    def _end_oldest(self) -> bool:
        """Of the calls in flight; False: there is none."""
        if not self._calls:
            return False
        self._end(self._calls.popleft())
        return True

    def _end(self, call: _Call) -> None:
        """Wait for it, count and verify what it moved."""
        with call.kept:
            hits = self._ended(call)
            if call.op == "prefetch":
                self.staged += len({number for number, hit in zip(call.chosen, hits, strict=True) if hit})
                hits = self._use(call)
            if call.op in ("get", "prefetch") and self.spec.verify != "none":
                self._verify(call, hits)
        self._free.append(call.buffers)

    def _ended(self, call: _Call) -> list[bool]:
        """Wait for it, and count it."""
        cpu = cpu_of_thread()
        if call.end is None:
            self._enter(call)
        try:
            moved = self.engine.batch(call.op, call.chosen, call.buffers) if call.end is None else call.end()
        finally:
            ended = time.perf_counter()
            ended_s = self.clock.leave(ended)
            self._engine_cpu = self._engine_cpu.plus(cpu_of_thread() - cpu)
        seconds = ended - call.begun
        hits = [True] * len(call.chosen) if moved is None else list(moved)
        sizes = [self.work.bytes_of(number) if hit else 0 for number, hit in zip(call.chosen, hits, strict=True)]
        nbytes = 0 if call.op == "lookup" else sum(sizes)
        side = self.tally.write if call.op == "put" else self.tally.read
        misses = hits.count(False)
        side.batch(len(call.chosen) - misses, misses, nbytes, seconds, call.begun_s, ended_s)
        # Calls that overlap are one time inside, not two: of it the CPU time is told as a share.
        self.tally.thread_seconds += ended - max(call.begun, self._inside_until)
        self._inside_until = ended
        self._due_bytes += nbytes
        self.turn.moved(nbytes)
        return hits

    def _use(self, call: _Call) -> list[bool]:
        """What was staged is used by one get. Neither its time counts nor the CPU time of the engine's threads."""
        self.content.spoil(call.buffers, len(call.chosen))
        whole, own = cpu_of_process(), cpu_of_thread()
        hits = list(self.engine.batch("get", call.chosen, call.buffers) or [True] * len(call.chosen))
        others = cpu_of_process() - whole - (cpu_of_thread() - own)
        self.tally.overhead_cpu = self.tally.overhead_cpu.plus(others)
        self.tally.read.misses += hits.count(False)
        return hits

    def _verify(self, call: _Call, hits: list[bool]) -> None:
        sizes = [self.work.bytes_of(number) for number in call.chosen]
        found = self.content.check(call.buffers, call.chosen, sizes, self.spec.verify)
        for hit, wrong in zip(hits, found, strict=True):
            if hit:
                self.tally.found(wrong)

    def _keep_to(self, rate: int) -> None:
        """Wait until the next call is due; 0: it is."""
        if not rate:
            return
        self._due += self._due_bytes / rate
        self._due_bytes = 0
        waiting = min(self._due - time.perf_counter(), self.turn.left_s)
        if waiting > 0:
            self.turn.stopped.wait(waiting)

    def _give_up(self) -> None:
        """After a failure: wait for what is in flight, or it would use buffers that are given back."""
        while self._calls:
            call = self._calls.popleft()
            with call.kept, contextlib.suppress(Exception):  # the first failure is the one that is told
                if call.end is None:
                    continue
                try:
                    call.end()
                finally:
                    self.clock.leave(time.perf_counter())
