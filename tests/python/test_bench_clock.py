# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The time of a job that counts: when anybody is inside the engine. No thread's bandwidth may be more than the whole's.

Method: times are handed to the clock; an engine that serves one block at a time under a lock tells what really moved.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from bench_support import MemoryEngine, one_job

from kvstore.bench.clock import JobClock
from kvstore.bench.content import Buffers
from kvstore.bench.engines.base import Op


def test_what_two_are_inside_for_counts_once() -> None:
    clock = JobClock()
    shown = [clock.enter(10.0), clock.enter(11.0), clock.leave(12.0), clock.leave(14.0)]
    assert shown == pytest.approx([0, 1, 2, 4])
    assert clock.seconds == pytest.approx(4)


def test_what_nobody_is_inside_for_does_not_count() -> None:
    clock = JobClock()
    clock.enter(0.0)
    clock.leave(1.0)
    assert clock.enter(100.0) == pytest.approx(1)
    assert clock.leave(101.0) == pytest.approx(2)
    clock.advance(3.0)
    assert clock.seconds == pytest.approx(5)


def test_a_thread_that_comes_with_an_older_time_does_not_turn_it_back() -> None:
    clock = JobClock()
    clock.enter(1.0)
    assert clock.enter(0.5) == 0
    clock.leave(2.0)
    assert clock.leave(2.0) == pytest.approx(1)


class OneAtATime(MemoryEngine):
    """A device that serves a block in a fixed time, and one block only; checking takes its callers as long again."""

    block_s = 0.004

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.busy_s = 0.0

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        with self.lock:
            begun = time.perf_counter()
            hits = super().batch(op, numbers, buffers)
            if op == "get":
                time.sleep(self.block_s)
                self.busy_s += time.perf_counter() - begun
        return hits


@pytest.mark.parametrize("numjobs", [1, 2, 4])
def test_threads_together_are_no_faster_than_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numjobs: int
) -> None:
    engine = OneAtATime()
    monkeypatch.setattr("kvstore.bench.contender.make_engine", lambda name: engine)
    slow_check = time.sleep
    monkeypatch.setattr("kvstore.bench.lane.Lane._verify", lambda *unused: slow_check(engine.block_s))
    job = one_job(tmp_path, "--rw=get", f"--numjobs={numjobs}")
    assert job["kvbench"]["seconds"] >= engine.busy_s * 0.999
