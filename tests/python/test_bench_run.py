# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""``kvstore bench`` on a small file: what each option does, and that nothing wrong counts as right.

Method: the command is run in this process and its JSON looked at; where an engine must misbehave, or tell what it was
asked, one that is a dict takes kvstore's name.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from bench_support import MemoryEngine, bench, one_job

import kvstore
from kvstore.bench import engines
from kvstore.bench.content import Buffers
from kvstore.bench.engines.base import Moved, Op
from kvstore.bench.live import Live, Progress
from kvstore.bench.places import folder_on_memory, loop_on_memory, refuse_data
from kvstore.bench.results import load_results
from kvstore.bench.turn import Turn
from kvstore.cli import main
from kvstore.errors import ForeignDataError


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryEngine:
    """The engine that the next job measures, under kvstore's name."""
    return use(MemoryEngine(), monkeypatch)


def use(engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch) -> MemoryEngine:
    monkeypatch.setattr("kvstore.bench.contender.make_engine", lambda name: engine)
    return engine


def asked(engine: MemoryEngine, op: Op) -> list[int]:
    return [number for what, numbers in engine.asked if what == op for number in numbers]


class OverlappingEngine(MemoryEngine):
    """A call moves its blocks only when it is waited for. Knows how many were in flight at once, and whose memory."""

    overlaps = True

    def __init__(self, fail_at: int = 0) -> None:
        super().__init__()
        self.fail_at, self.most, self.ended = fail_at, 0, 0
        self.in_flight: list[Buffers] = []

    def begin(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Callable[[], Moved]:
        assert all(buffers is not other for other in self.in_flight)
        self.in_flight.append(buffers)
        self.most = max(self.most, len(self.in_flight))
        return partial(self._end, op, list(numbers), buffers)

    def _end(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Moved:
        self.in_flight.remove(buffers)
        self.ended += 1
        if self.ended == self.fail_at:
            raise OSError("the device went away")
        return self.batch(op, numbers, buffers)


@pytest.mark.parametrize("rw", ["get", "put", "getput"])
def test_with_iodepth_batch_a_thread_keeps_several_calls_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rw: str
) -> None:
    engine = OverlappingEngine()
    use(engine, monkeypatch)
    job = one_job(tmp_path, f"--rw={rw}", "--iodepth=12", "--iodepth_batch=4", "--io_size=8m")
    assert (job["error"], job["read"]["total_ios"] + job["write"]["total_ios"]) == (0, 128)
    assert (engine.most, engine.in_flight, {len(numbers) for _, numbers in engine.asked}) == (3, [], {4})


def test_calls_that_overlap_are_one_time_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(OverlappingEngine(), monkeypatch)
    job = one_job(tmp_path, "--rw=get", "--iodepth=12", "--iodepth_batch=4", "--io_size=8m")
    assert job["job_runtime"] <= job["kvbench"]["seconds"] * 1000 + 1


def test_what_is_in_flight_when_a_call_fails_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = OverlappingEngine(fail_at=9)
    use(engine, monkeypatch)
    job = one_job(tmp_path, "--rw=put", "--iodepth=16", "--iodepth_batch=4", "--io_size=32m", status=1)
    assert "the device went away" in job["kvbench"]["failed"]
    assert (engine.in_flight, engine.ended) == ([], 12)


def test_an_engine_whose_calls_block_says_so_where_several_are_to_be_in_flight(tmp_path: Path) -> None:
    job = one_job(tmp_path, "--rw=get", "--engine=preadv", "--iodepth=4", "--iodepth_batch=2", status=2)
    assert job["kvbench"]["why_not"] == "its calls block: for several in flight there is numjobs"


@pytest.mark.parametrize("engine", ["kvstore", "kvstore-threads"])
@pytest.mark.parametrize("rw", ["get", "put"])
def test_calls_that_overlap_bring_what_was_put(tmp_path: Path, engine: str, rw: str) -> None:
    job = one_job(tmp_path, f"--rw={rw}", f"--engine={engine}", "--iodepth=8", "--iodepth_batch=2", "--verify=full")
    assert (job["error"], job["kvbench"]["verified"], job["kvbench"]["wrong"]) == (0, 32, 0)


@pytest.mark.parametrize("engine", ["kvstore", "preadv"])
@pytest.mark.parametrize("iodepth", [1, 4])
def test_gets_bring_what_was_put(tmp_path: Path, engine: str, iodepth: int) -> None:
    job = one_job(tmp_path, "--rw=get", f"--engine={engine}", f"--iodepth={iodepth}", "--verify=full")
    assert (job["error"], job["read"]["total_ios"], job["read"]["io_bytes"]) == (0, 32, 2 << 20)
    own = job["kvbench"]
    assert (own["verified"], own["wrong"], own["misses"]) == (32, 0, 0)


@pytest.mark.parametrize("engine", ["kvstore", "preadv"])
def test_puts_are_read_back(tmp_path: Path, engine: str) -> None:
    job = one_job(tmp_path, "--rw=put", f"--engine={engine}", "--iodepth=4")
    assert (job["write"]["total_ios"], job["read"]["total_ios"]) == (32, 0)
    assert (job["kvbench"]["verified"], job["kvbench"]["wrong"]) == (32, 0)


def test_sizes_in_one_job_keep_their_share(tmp_path: Path) -> None:
    job = one_job(tmp_path, "--rw=get", "--bssplit=4k/50:10000/50", "--size=1m", "--iodepth=8", "--verify=full")
    mean = job["read"]["io_bytes"] / job["read"]["total_ios"]
    assert job["kvbench"]["verified"] == job["read"]["total_ios"]
    assert mean == pytest.approx((4096 + 10000) / 2, rel=0.1)


def test_a_shape_gives_its_blocks(tmp_path: Path) -> None:
    job = one_job(tmp_path, "--rw=put", "--shape=deepseek-v3", "--block_tokens=1", "--size=1m")
    assert job["kvbench"]["block_sizes"] == [70_272]


def test_prefetch_and_lookup_are_reads(tmp_path: Path) -> None:
    prefetch, lookup = bench(tmp_path, "--iodepth=4", "--name=a", "--rw=prefetch", "--name=b", "--rw=lookup")["jobs"]
    assert (prefetch["read"]["io_bytes"], prefetch["kvbench"]["verified"]) == (2 << 20, 32)
    assert (lookup["read"]["total_ios"], lookup["read"]["io_bytes"]) == (32, 0)


def test_a_mix_puts_and_gets(tmp_path: Path) -> None:
    job = one_job(tmp_path, "--rw=getput", "--rwmixget=75", "--io_size=16m", "--iodepth=2", "--numjobs=2")
    gets, puts = job["read"]["total_ios"], job["write"]["total_ios"]
    assert gets + puts == 256
    assert gets == pytest.approx(192, abs=40)
    assert (job["error"], job["kvbench"]["misses"]) == (0, 0)


class Slow(MemoryEngine):
    """Keeps as many blocks as it must, each at its place. A get of every eighth waits until all places were put over,
    or nobody can put any more.
    """

    def __init__(self) -> None:
        super().__init__()
        self.puts = 0
        self.changed = threading.Condition()

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        for row, number in enumerate(numbers):
            place = number % self.work.population
            view = buffers.view(row, self.work.block_bytes)
            if op == "put":
                with self.changed:
                    self.blocks[place] = bytes(view)
                    self.puts += 1
                    self.changed.notify_all()
            else:
                with self.changed:
                    over = self.puts + self.work.population if number % 8 == 0 else 0
                    self.changed.wait_for(lambda over=over: self.puts >= over, timeout=0.02)
                view[:] = self.blocks[place]
        return None


def test_no_put_overtakes_a_get_where_blocks_have_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Slow(), monkeypatch)
    job = one_job(tmp_path, "--rw=getput", "--rwmixget=20", "--bs=4k", "--size=64k", "--io_size=8m", "--numjobs=4")
    assert job["write"]["total_ios"] > 1000  # around all places often
    assert (job["error"], job["kvbench"]["wrong"]) == (0, 0)


class SlowToEnd(Slow):
    """The same, with several calls of a thread in flight."""

    overlaps = True

    def begin(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Callable[[], Moved]:
        return partial(self.batch, op, list(numbers), buffers)


def test_no_thread_waits_for_itself_where_several_calls_are_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(SlowToEnd(), monkeypatch)
    job = one_job(tmp_path, "--rw=getput", "--rwmixget=20", "--bs=4k", "--size=64k", "--io_size=8m", "--numjobs=4",
                  "--iodepth=4", "--iodepth_batch=1")  # fmt: skip
    assert job["write"]["total_ios"] > 1000
    assert (job["error"], job["kvbench"]["wrong"]) == (0, 0)


class Burning(MemoryEngine):
    """Takes 2 ms of processor time for a get."""

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        begun = time.thread_time()
        super().batch(op, numbers, buffers)
        while op == "get" and time.thread_time() - begun < 0.002:
            pass
        return None


def test_processor_time_of_checking_is_not_the_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Burning(), monkeypatch)
    begun = time.process_time()
    job = one_job(tmp_path, "--rw=get", "--bs=4m", "--size=16m", "--io_size=256m", "--verify=full")
    used = time.process_time() - begun
    engines_own = 64 * 0.002
    assert engines_own * 0.9 <= job["kvbench"]["cpu_s"] <= engines_own + (used - engines_own) / 2
    assert used > engines_own * 1.5  # there was something to leave out


def test_io_size_ends_a_job_and_numjobs_share_it(tmp_path: Path, memory: MemoryEngine) -> None:
    job = one_job(tmp_path, "--rw=get", "--io_size=1m", "--numjobs=3", "--iodepth=2")
    assert job["read"]["total_ios"] == len(asked(memory, "get")) == 16
    assert job["job options"]["numjobs"] == "3"


def test_runtime_ends_a_job_and_the_ramp_does_not_count(tmp_path: Path, memory: MemoryEngine) -> None:
    job = one_job(tmp_path, "--rw=get", "--runtime=50ms", "--ramp_time=50ms")
    assert job["read"]["runtime"] > 0
    assert 0 < job["read"]["total_ios"] < len(asked(memory, "get"))


def test_iodepth_is_the_blocks_of_a_call(tmp_path: Path, memory: MemoryEngine) -> None:
    one_job(tmp_path, "--rw=put", "--iodepth=5", "--verify=none")
    assert [len(numbers) for _, numbers in memory.asked] == [5, 5, 5, 5, 5, 5, 2]


@pytest.mark.parametrize("rw", ["put", "get", "getput"])
def test_a_rate_too_low_for_a_block_does_not_outlast_the_runtime(tmp_path: Path, memory: MemoryEngine, rw: str) -> None:
    begun = time.monotonic()
    one_job(tmp_path, f"--rw={rw}", "--rate=1", "--runtime=200ms")
    assert time.monotonic() - begun < 10, "a block would be due in 18 hours"


def test_a_rate_is_kept_and_its_waits_count(tmp_path: Path, memory: MemoryEngine) -> None:
    job = one_job(tmp_path, "--rw=put", "--rate=20m")
    assert job["write"]["bw_bytes"] <= 21 << 20


def test_a_rate_is_kept_where_calls_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(OverlappingEngine(), monkeypatch)
    job = one_job(tmp_path, "--rw=put", "--rate=20m", "--iodepth=4", "--iodepth_batch=2")
    begun_at_once = 4 / 32  # of its blocks
    assert (job["error"], job["write"]["total_ios"]) == (0, 32)
    assert job["write"]["bw_bytes"] <= (21 << 20) / (1 - begun_at_once)


def test_zipf_prefers_few_blocks_and_a_seed_repeats_them(tmp_path: Path, memory: MemoryEngine) -> None:
    arguments = ["--rw=get", "--io_size=64m", "--iodepth=8", "--randseed=3"]
    one_job(tmp_path, *arguments, "--random_distribution=zipf:1.2")
    first, memory.asked = asked(memory, "get"), []
    one_job(tmp_path, *arguments, "--random_distribution=zipf:1.2")
    assert asked(memory, "get") == first
    most = max(first.count(number) for number in set(first))
    memory.asked = []
    one_job(tmp_path, *arguments)
    even = asked(memory, "get")
    assert set(even) == set(range(32))
    assert most > 3 * max(even.count(number) for number in set(even))


class Forgetful(MemoryEngine):
    """Says that it moved every get, and moves none."""

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        return super().batch(op, numbers, buffers) if op == "put" else None


class Confused(MemoryEngine):
    """Brings the block beside the one that is asked for."""

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        return super().batch(op, [number ^ 1 for number in numbers] if op == "get" else numbers, buffers)


@pytest.mark.parametrize("wrong", [Forgetful, Confused])
def test_wrong_bytes_are_told_and_end_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: type[MemoryEngine]
) -> None:
    use(wrong(), monkeypatch)
    job = one_job(tmp_path, "--rw=get", status=1)
    assert (job["error"], job["kvbench"]["wrong"], len(job["kvbench"]["wrong_blocks"])) == (errno.EILSEQ, 32, 10)


class StampsOnly(MemoryEngine):
    """Of each page of a get it moves what ``verify=stamp`` looks at."""

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        if op == "put":
            return super().batch(op, numbers, buffers)
        for row, number in enumerate(numbers):
            for at in range(0, len(self.blocks[number]), 4096):
                buffers.view(row, at + 24)[at:] = self.blocks[number][at : at + 24]
        return None


class Short(MemoryEngine):
    """Leaves out the last bytes of a get."""

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        if op == "put":
            return super().batch(op, numbers, buffers)
        for row, number in enumerate(numbers):
            buffers.view(row, 9900)[:] = self.blocks[number][:9900]
        return None


@pytest.mark.parametrize("wrong", [StampsOnly, Short])
def test_verify_full_notices_bytes_that_were_not_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: type[MemoryEngine]
) -> None:
    use(wrong(), monkeypatch)
    job = one_job(tmp_path, "--rw=get", "--bs=10000", "--size=80000", "--verify=full", status=1)
    assert job["kvbench"]["wrong"] == job["kvbench"]["verified"] == 8


class Stale(MemoryEngine):
    """Keeps what its first store was given, and writes nothing any more."""

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        return None if op == "put" and numbers[-1] in self.blocks else super().batch(op, numbers, buffers)

    def close(self) -> None:
        """What was put stays."""


@pytest.mark.parametrize("verify", ["stamp", "full"])
def test_what_an_earlier_store_left_is_not_right_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: str
) -> None:
    use(Stale(), monkeypatch)
    jobs = bench(tmp_path, f"--verify={verify}", "--rw=get", "--iodepth=2,4", status=1)["jobs"]
    assert [(job["read"]["total_ios"], job["kvbench"]["wrong"]) for job in jobs] == [(32, 0), (32, 32)]


class Leaky(MemoryEngine):
    """Every other get is a miss."""

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        super().batch(op, numbers, buffers)
        return [number % 2 == 0 for number in numbers] if op == "get" else None


def test_misses_are_counted_and_their_bytes_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = use(Leaky(), monkeypatch)
    job = one_job(tmp_path, "--rw=get", "--iodepth=4", "--capacity=1m")
    hits = sum(number % 2 == 0 for number in asked(engine, "get"))
    assert (job["error"], job["kvbench"]["misses"], job["read"]["io_bytes"]) == (0, 32 - hits, hits << 16)
    assert job["read"]["total_ios"] == job["read"]["clat_ns"]["N"] == hits


@pytest.mark.parametrize("rw", ["get", "put"])
def test_a_block_that_an_engine_was_to_keep_and_did_not_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rw: str
) -> None:
    use(Leaky(), monkeypatch)
    job = one_job(tmp_path, f"--rw={rw}", status=1)
    assert job["error"] == errno.ENODATA
    assert job["kvbench"]["lost"] == job["kvbench"]["misses"] > 0


class Promising(MemoryEngine):
    """Stages every other block that it says it did."""

    operations = frozenset({"get", "put", "prefetch"})
    there = 0

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        if op == "prefetch":
            self.there += len(numbers) // 2
            return None
        return super().batch(op, numbers, buffers)

    def staged(self) -> int | None:
        return self.there


def test_a_prefetch_that_stages_less_than_it_says_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Promising(), monkeypatch)
    job = one_job(tmp_path, "--rw=prefetch", "--iodepth=4", status=1)
    assert "blocks that were staged, by its word" in job["kvbench"]["failed"]


class Panic(BaseException):
    """As of a library in Rust."""


class Panicking(MemoryEngine):
    """Panics wherever it is told to."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        if self.where == op:
            raise Panic("index out of bounds")
        return super().batch(op, numbers, buffers)

    def flush(self) -> None:
        if self.where == "flush":
            raise Panic("index out of bounds")

    def close(self) -> None:
        if self.where == "close":
            raise Panic("index out of bounds")


@pytest.mark.parametrize("where", ["get", "flush", "close"])
def test_a_panic_in_a_library_is_a_result_and_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    engines_by_name = {"kvstore": Panicking(where), "preadv": MemoryEngine()}
    monkeypatch.setattr("kvstore.bench.contender.make_engine", engines_by_name.__getitem__)
    failed, fine = bench(tmp_path, "--rw=get", "--engine=kvstore,preadv", status=1)["jobs"]
    assert "Panic: index out of bounds" in failed["kvbench"]["failed"]
    assert (fine["error"], fine["read"]["total_ios"]) == (0, 32)


class Noting(MemoryEngine):
    """Notes whose turn it was."""

    def __init__(self, name: str, notes: list[str]) -> None:
        super().__init__()
        self.own, self.notes = name, notes

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        if op == "get":
            self.notes.append(self.own)
        return super().batch(op, numbers, buffers)


def test_engines_alternate_turn_by_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    engines_by_name = {name: Noting(name, notes) for name in ("kvstore", "preadv")}
    monkeypatch.setattr("kvstore.bench.contender.make_engine", engines_by_name.__getitem__)
    jobs = bench(tmp_path, "--rw=get", "--engine=kvstore,preadv", "--slice=1us")["jobs"]
    assert [len(job["kvbench"]["turns"]) for job in jobs] == [32, 32]  # a turn is one batch at least
    assert notes == ["kvstore", "preadv"] * 32


class Lazy(MemoryEngine):
    """Puts end in memory, and go to the device with a flush."""

    def flush(self) -> None:
        time.sleep(0.05)


def test_what_an_engine_put_into_memory_is_flushed_in_its_own_turn_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Lazy(), monkeypatch)
    own = one_job(tmp_path, "--rw=put")["kvbench"]
    assert own["seconds"] >= 0.05
    assert own["facts"]["flush_s"] >= 0.05


class Laborious(MemoryEngine):
    """Takes a tenth of a second of processor time to flush."""

    def flush(self) -> None:
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass


def test_processor_time_of_flushing_is_the_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Laborious(), monkeypatch)
    assert one_job(tmp_path, "--rw=put")["kvbench"]["cpu_s"] >= 0.1


class Caching(MemoryEngine):
    """Takes half a second to forget. Notes what it is called for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        self.calls.append(op)
        return super().batch(op, numbers, buffers)

    def flush(self) -> None:
        self.calls.append("flush")

    def forget(self) -> None:
        self.calls.append("forget")
        time.sleep(0.5)


@pytest.mark.parametrize("rw", ["get", "put"])
def test_memory_is_emptied_once_before_gets_and_read_backs_and_that_counts_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rw: str
) -> None:
    engine = Caching()
    use(engine, monkeypatch)
    jobs = bench(tmp_path, "--iodepth=32", "--name=a", f"--rw={rw}", "--name=b", "--rw=get")["jobs"]
    turn = ["flush"] if rw == "put" else []
    assert engine.calls == ["put", *turn, "flush", "forget", "get", "get"]
    assert all(job["kvbench"]["seconds"] < 0.5 and job["kvbench"]["facts"]["flush_s"] < 0.5 for job in jobs)


class Broken(MemoryEngine):
    """Fails at its third get."""

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        super().batch(op, numbers, buffers)
        if op == "get" and len(asked(self, "get")) == 3:
            raise OSError(errno.EIO, "no more")
        return None


def test_an_engine_that_fails_is_a_result_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Broken(), monkeypatch)
    failed, fine = bench(tmp_path, "--name=a", "--rw=get", "--name=b", "--rw=put", status=1)["jobs"]
    assert failed["error"] == errno.EIO
    assert failed["kvbench"]["failed"] == "OSError: [Errno 5] no more"
    assert fine["error"] == 0


class Stumbling(MemoryEngine):
    """Its first put fails."""

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        super().batch(op, numbers, buffers)
        if len(self.asked) == 1:
            raise OSError(errno.EIO, "no more")
        return None


def test_a_store_that_could_not_be_filled_is_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = use(Stumbling(), monkeypatch)
    failed, fine = bench(tmp_path, "--name=a", "--rw=get", "--name=b", "--rw=get", "--randseed=1", status=1)["jobs"]
    assert (failed["error"], failed["read"]["total_ios"]) == (errno.EIO, 0)
    assert (fine["error"], fine["read"]["total_ios"], fine["kvbench"]["misses"]) == (0, 32, 0)
    assert asked(engine, "put") == [0, *range(32)]


def test_an_engine_that_cannot_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryEngine, "why_not", lambda self: "memory is missing: buy some")
    use(MemoryEngine(), monkeypatch)
    job = one_job(tmp_path, "--rw=get", status=2)
    assert job["kvbench"]["why_not"] == "memory is missing: buy some"
    assert "it has no prefetch" in one_job(tmp_path, "--rw=prefetch", status=2)["kvbench"]["why_not"]


def test_a_pool_of_several_devices_is_for_engines_that_have_that(tmp_path: Path) -> None:
    places = f"{tmp_path}/a:{tmp_path}/b"
    ours, theirs = bench(tmp_path, "--rw=get", "--engine=kvstore,preadv", f"--filename={places}")["jobs"]
    assert (ours["error"], ours["read"]["total_ios"]) == (0, 32)
    assert theirs["kvbench"]["why_not"] == "it uses one device, not several"
    assert list(tmp_path.glob("[ab]*")) == []


def test_engines_take_turns_on_places_of_their_own(tmp_path: Path) -> None:
    jobs = bench(tmp_path, "--engine=kvstore,preadv", "--rw=get", "--runtime=60ms", "--slice=20ms")["jobs"]
    assert [(job["jobname"], job["error"]) for job in jobs] == [("job-kvstore", 0), ("job-preadv", 0)]
    assert len({job["job options"]["filename"] for job in jobs}) == 2


def test_loops_are_repetitions_that_choose_anew(tmp_path: Path, memory: MemoryEngine) -> None:
    jobs = bench(tmp_path, "--name=a", "--rw=get", "--loops=3")["jobs"]
    assert [(job["jobname"], job["read"]["total_ios"]) for job in jobs] == [("a", 32)] * 3
    gets = asked(memory, "get")
    assert gets[:32] != gets[32:64] != gets[64:]
    (row,) = load_results([tmp_path / "result.json"]).rows
    assert row.repetitions == 3


def test_jobs_that_need_the_same_store_share_it(tmp_path: Path, memory: MemoryEngine) -> None:
    bench(tmp_path, "--name=a", "--rw=put", "--name=b", "--rw=get")
    assert len(asked(memory, "put")) == 32


@pytest.mark.parametrize("engine", ["kvstore", "preadv"])
def test_a_file_with_data_is_refused_and_left_alone(
    tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine"
    path.write_bytes(b"important")
    assert main(["bench", "--filename", str(path), "--rw=put", f"--engine={engine}"]) == 2
    assert "overwrite=1 lets it" in capsys.readouterr().err
    assert path.read_bytes() == b"important"


def test_overwrite_lets_it_and_the_file_stays(tmp_path: Path) -> None:
    kvstore.format(tmp_path / "bench.img", size="512MiB")
    assert one_job(tmp_path, "--rw=put", "--overwrite=1")["error"] == 0
    assert (tmp_path / "bench.img").exists()


@pytest.mark.parametrize(("unlink", "left"), [("0", True), ("1", False)])
def test_files_that_it_made_go_unless_they_are_to_stay(tmp_path: Path, unlink: str, left: bool) -> None:
    one_job(tmp_path, "--rw=put", f"--unlink={unlink}")
    assert (tmp_path / "bench.img").exists() == left


def test_engine_options_reach_the_engine(tmp_path: Path) -> None:
    job = one_job(tmp_path, "--rw=put", "--engine_option=kvstore.region_bytes=16m")
    stats = job["kvbench"]["facts"]["stats"]
    assert stats["capacity_bytes"] == stats["regions"] * (16 << 20)


def test_an_engine_option_that_there_is_not_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--rw=put", "--engine_option=kvstore.colour=red"]) == 2
    assert "engine kvstore has no option colour" in capsys.readouterr().err


def test_every_engine_is_in_the_registry_once() -> None:
    assert len(set(engines.ENGINES.values())) == len(engines.ENGINES)


def test_a_turn_tells_what_it_moved(tmp_path: Path, memory: MemoryEngine) -> None:
    job = one_job(tmp_path, "--rw=put", "--numjobs=2", "--iodepth=2")
    (turn,) = job["kvbench"]["turns"]
    assert (turn["read_bytes"], turn["write_bytes"]) == (0, 2 << 20)
    assert turn["seconds"] == pytest.approx(job["kvbench"]["seconds"])


class Interrupted(MemoryEngine):
    """The user has seen enough at the eighth get."""

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        super().batch(op, numbers, buffers)
        if op == "get" and len(asked(self, "get")) == 8:
            signal.raise_signal(signal.SIGINT)
        return None


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Also where the tests run in the background of a shell, which has them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class InterruptedSoon(MemoryEngine):
    """The user interrupts while it is being filled."""

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        if len(asked(self, "put")) == 8:
            signal.raise_signal(signal.SIGINT)
        return super().batch(op, numbers, buffers)


@pytest.mark.usefixtures("interruptible")
def test_what_was_not_measured_when_it_was_interrupted_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines_by_name = {"kvstore": MemoryEngine(), "preadv": InterruptedSoon()}
    monkeypatch.setattr("kvstore.bench.contender.make_engine", engines_by_name.__getitem__)
    jobs = bench(tmp_path, "--rw=get", "--engine=kvstore,preadv", status=130)["jobs"]
    assert [job["kvbench"]["failed"] for job in jobs] == ["interrupted before anything was measured"] * 2


class Terminated(MemoryEngine):
    """Asked to end, as by a service manager, at the eighth put; works hard until then."""

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        until = time.thread_time() + 0.005
        while time.thread_time() < until:
            pass
        if len(asked(self, "put")) == 8:
            signal.raise_signal(signal.SIGTERM)
        return super().batch(op, numbers, buffers)


def test_sigterm_ends_as_an_interrupt_does_and_its_cpu_time_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Terminated(), monkeypatch)
    before = signal.getsignal(signal.SIGTERM)
    job = one_job(tmp_path, "--rw=put", "--runtime=60", status=130)
    assert job["write"]["total_ios"] >= 8
    assert job["kvbench"]["cpu_s"] >= 8 * 0.004
    assert list(tmp_path.glob("*.img")) == []
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_with_what_was_measured_until_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = use(Interrupted(), monkeypatch)
    (job,) = bench(tmp_path, "--name=a", "--rw=get", "--runtime=60", "--name=b", "--rw=put", status=130)["jobs"]
    assert 8 <= job["read"]["total_ios"] <= len(asked(engine, "get"))
    assert job["kvbench"]["wrong"] == 0


@pytest.mark.root
def test_ram_is_a_loop_device_for_each_engine(tmp_path: Path) -> None:
    if os.geteuid() or shutil.which("losetup") is None:
        pytest.skip("needs root and a loop device")
    jobs = bench(tmp_path, "--filename=ram", "--engine=kvstore,preadv", "--rw=get", "--capacity=256m")["jobs"]
    names = {job["job options"]["filename"] for job in jobs}
    assert [job["error"] for job in jobs] == [0, 0]
    assert len(names) == 2
    assert all(name.startswith("/dev/loop") for name in names)
    first, second = load_results([tmp_path / "result.json"]).rows
    assert first.cell == second.cell  # so a report compares them


@pytest.mark.root
def test_ram_is_a_file_system_for_engines_that_keep_files() -> None:
    if os.geteuid() or shutil.which("losetup") is None or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root, a loop device and mkfs.ext4")
    with folder_on_memory(64 << 20) as folder:
        assert not Path(folder).exists()
        assert Path(folder).parent.is_mount()
        assert shutil.disk_usage(Path(folder).parent).free >= 64 << 20
    assert not Path(folder).parent.exists()


def test_the_line_tells_how_long_all_engines_of_a_job_need_still(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(engines=2)
    assert (progress.fraction, progress.left_s) == (0, None)
    progress.at("kvstore", 0.5)
    progress.at("preadv", 0.0)
    assert progress.fraction == 0.25
    assert progress.left_s is not None
    with Live("always") as live:
        live.show("job: kvstore get", Turn(seconds=1, blocks=None), progress)
    assert "25 %" in capsys.readouterr().err
    progress.done("kvstore")
    progress.done("preadv")
    assert (progress.fraction, progress.left_s) == (1, 0)


def test_the_line_tells_what_how_fast_and_how_long_still(capsys: pytest.CaptureFixture[str]) -> None:
    turn = Turn(seconds=3600, blocks=100)
    turn.take(50)
    turn.moved(10**9)
    with Live("always") as live:
        live.show("job: kvstore get", turn)
    line = capsys.readouterr().err
    assert all(part in line for part in ("job: kvstore get", "50 %", "GB/s", "[eta 00m:"))
    with Live("never") as live:
        live.show("job: kvstore get", turn)
    assert capsys.readouterr().err == ""


@pytest.mark.root
def test_a_device_with_a_file_system_is_refused_and_a_blank_one_is_not() -> None:
    if os.geteuid() or shutil.which("losetup") is None or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root, a loop device and mkfs.ext4")
    with loop_on_memory(64 << 20) as device:
        refuse_data(device)
        subprocess.run(["mkfs.ext4", "-q", "-F", device], check=True)
        with pytest.raises(ForeignDataError, match="ext4"):
            refuse_data(device)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_result_that_cannot_be_written_any_more_is_printed(
    tmp_path: Path, memory: MemoryEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    output = "/dev/full"  # can be opened, and is full when all is measured
    run = ["bench", "--eta=never", "--rw=get", "--bs=64k", "--size=2m", f"--filename={tmp_path}/a.img"]
    assert main([*run, "--output-format=json", f"--output={output}"]) == 3
    printed = capsys.readouterr()
    assert json.loads(printed.out)["jobs"][0]["error"] == 0
    assert f"{output}: No space left on device" in printed.err
