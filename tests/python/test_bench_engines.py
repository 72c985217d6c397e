# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What kvbench expects of every engine, so that its figures can be set side by side.

Method: each engine that can run here keeps a few small blocks at a path of its own; what its gets bring is verified by
number and byte. A store is corrupted by flipping a byte wherever a block's stamp is found in its files.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from bench_support import bench, one_job

from kvstore.bench.content import Buffers
from kvstore.bench.cpu import cpu_time
from kvstore.bench.engines import ENGINES, kvikio_engine, make_engine
from kvstore.bench.engines.base import Engine, Op, SelfTimedEngine, Work
from kvstore.bench.engines.folder import Folder
from kvstore.bench.engines.kvstore_engine import KvStoreEngine
from kvstore.bench.engines.preadv_engine import PreadvEngine

MIB = 1 << 20
_OF_LMCACHE = ("raw_block-posix", "raw_block-io_uring", "lmcache-local-disk")
_SELF_TIMED = ("fio", "fio-batches")
_BLOCKS = 24
_PLAIN = Work(paths=(), block_sizes=(16384,), population=_BLOCKS, size_bytes=48 * MIB, iodepth=4, verify="full", seed=7)
#: One at a time; a batch; two threads with batches of blocks that are not whole pages.
_WORKS = {
    "one": replace(_PLAIN, iodepth=1),
    "batch": _PLAIN,
    "threads": replace(_PLAIN, block_sizes=(4096, 10_000, 65_536), weights=(1.0, 1.0, 1.0), numjobs=2),
}


def _names(names: Sequence[str]) -> list[object]:
    return [pytest.param(name, marks=[pytest.mark.lmcache] if name in _OF_LMCACHE else []) for name in names]


def _here(name: str) -> Engine:
    engine = make_engine(name)
    why_not = engine.why_not()
    if why_not:
        pytest.skip(why_not)
    return engine


def _at(work: Work, folder: Path) -> Work:
    return replace(work, paths=(str(folder / "bench.img"),))


@pytest.fixture(params=_names([name for name in ENGINES if name not in _SELF_TIMED]))
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Each that can run here and is handed its blocks; closed at the end, and leaving no thread."""
    engine = _here(request.param)
    before = set(threading.enumerate())  # those of tests before may end meanwhile
    yield engine
    engine.close()
    assert set(threading.enumerate()) <= before


@dataclass
class Opened:
    """An engine with its buffers, one a worker."""

    engine: Engine
    work: Work
    buffers: list[Buffers]

    def __post_init__(self) -> None:
        self.content = self.work.content()
        for one in self.buffers:
            self.content.fill(one)

    def put(self, numbers: Sequence[int], worker: int = 0) -> None:
        for first in range(0, len(numbers), self.work.iodepth):
            chosen = numbers[first : first + self.work.iodepth]
            self.content.stamp(self.buffers[worker], chosen)
            assert all(self.engine.batch("put", chosen, self.buffers[worker]) or [True])

    def get(self, numbers: Sequence[int], worker: int = 0) -> list[str | None]:
        """What is wrong with each."""
        found: list[str | None] = []
        for first in range(0, len(numbers), self.work.iodepth):
            chosen = numbers[first : first + self.work.iodepth]
            self.content.spoil(self.buffers[worker], len(chosen))
            hits = self.engine.batch("get", chosen, self.buffers[worker]) or [True] * len(chosen)
            sizes = [self.work.bytes_of(number) for number in chosen]
            wrong = self.content.check(self.buffers[worker], chosen, sizes, "full")
            found += [problem if hit else "a miss" for hit, problem in zip(hits, wrong, strict=True)]
        return found


@contextmanager
def opened(engine: Engine, work: Work) -> Iterator[Opened]:
    """Buffers go before the engine whose memory they may be."""
    engine.open(work)
    store = Opened(engine, work, [engine.buffers() for _ in range(work.numjobs)])
    try:
        yield store
    finally:
        store.buffers.clear()
        engine.close()


def _shuffled(seed: int) -> list[int]:
    return random.Random(seed).sample(range(_BLOCKS), _BLOCKS)


@pytest.mark.parametrize("kind", _WORKS)
def test_every_get_brings_the_bytes_of_its_number(engine: Engine, kind: str, tmp_path: Path) -> None:
    work = _at(_WORKS[kind], tmp_path)
    with opened(engine, work) as store, ThreadPoolExecutor(work.numjobs) as threads:
        share = _BLOCKS // work.numjobs
        parts = [range(worker * share, (worker + 1) * share) for worker in range(work.numjobs)]
        list(threads.map(store.put, parts, range(work.numjobs)))
        engine.flush()
        engine.forget()
        found = threads.map(lambda worker: store.get(_shuffled(worker), worker), range(work.numjobs))
        assert [set(problems) for problems in found] == [{None}] * work.numjobs


def test_the_newest_are_there_however_many_were_put(engine: Engine, tmp_path: Path) -> None:
    work = _at(replace(_PLAIN, block_sizes=(256 * 1024,), iodepth=8, size_bytes=64 * MIB), tmp_path)
    count = 2 * work.size_bytes // work.row_bytes
    with opened(engine, work) as store:
        store.put(range(count))
        assert set(store.get(range(count - work.population, count))) == {None}


def test_a_block_may_be_asked_for_twice_in_a_batch(engine: Engine, tmp_path: Path) -> None:
    with opened(engine, _at(_PLAIN, tmp_path)) as store:
        store.put(range(_BLOCKS))
        assert store.get([3, 5, 3, 3]) == [None] * 4


def _flip_stamps(folder: Path, store: Opened, number: int) -> int:
    """Flip a byte of every copy of a block's first page in the files under a folder."""
    store.content.stamp(store.buffers[0], [number])
    stamp, flipped = bytes(store.buffers[0].view(0, 64)), 0
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        data, place = path.read_bytes(), -1
        while (place := data.find(stamp, place + 1)) >= 0:
            fd = os.open(path, os.O_RDWR)
            os.pwrite(fd, bytes([stamp[40] ^ 1]), place + 40)
            os.fsync(fd)
            os.close(fd)
            flipped += 1
    return flipped


def test_a_corrupted_block_is_never_a_right_one(engine: Engine, tmp_path: Path) -> None:
    with opened(engine, _at(_WORKS["one"], tmp_path)) as store:
        store.put(range(_BLOCKS))
        engine.flush()
        engine.forget()
        assert _flip_stamps(tmp_path, store, 5)
        try:
            (problem,) = store.get([5])
        except Exception as error:  # noqa: BLE001 - each library has its own
            problem = str(error)
        assert problem
        assert store.get([4, 6]) == [None, None]


@pytest.mark.parametrize("name", _names(list(ENGINES)))
def test_an_engine_whose_opening_failed_can_be_closed(name: str, tmp_path: Path) -> None:
    engine, before = _here(name), threading.active_count()
    (tmp_path / "no folder").touch()
    with pytest.raises(Exception):  # noqa: B017 - each library has its own
        engine.open(_at(_PLAIN, tmp_path / "no folder"))
    engine.close()
    engine.close()
    assert threading.active_count() == before
    assert [path.name for path in tmp_path.iterdir()] == ["no folder"]


@pytest.mark.parametrize("name", _names([name for name in ENGINES if "lookup" in make_engine(name).operations]))
def test_what_is_not_there_is_looked_up_in_vain(name: str, tmp_path: Path) -> None:
    engine = _here(name)
    with opened(engine, _at(_PLAIN, tmp_path)) as store:
        store.put(range(_BLOCKS))
        assert list(engine.batch("lookup", [0, 1000, 3, 2000], store.buffers[0]) or []) == [True, False, True, False]


def test_the_processes_that_work_are_counted(engine: Engine, tmp_path: Path) -> None:
    with opened(engine, _at(_PLAIN, tmp_path)) as store:
        before = cpu_time(engine.processes())
        store.put(range(_BLOCKS))
        used = cpu_time(engine.processes()) - before
    assert used.usr + used.sys > 0


@pytest.mark.parametrize("name", _names([name for name in ENGINES if name not in _SELF_TIMED]))
def test_closing_leaves_nothing_but_the_file_it_was_given(name: str, tmp_path: Path) -> None:
    engine = _here(name)
    with opened(engine, _at(_PLAIN, tmp_path)) as store:
        store.put(range(_BLOCKS))
    assert [path.name for path in tmp_path.iterdir()] in ([], ["bench.img"])


@pytest.mark.parametrize("name", _SELF_TIMED)
def test_a_program_moves_verifies_and_tells_what_it_used(name: str, tmp_path: Path) -> None:
    engine = _here(name)
    assert isinstance(engine, SelfTimedEngine)
    work = _at(_PLAIN, tmp_path)
    engine.open(work)
    put, got = engine.measure("put", None, 2 * _BLOCKS), engine.measure("get", None, 2 * _BLOCKS)
    assert (put.blocks, got.blocks) == (2 * _BLOCKS, 2 * _BLOCKS)
    assert got.bytes == got.blocks * work.block_bytes
    assert sum(got.latency_ns.values()) == got.blocks
    assert engine.check() == work.population
    data = np.memmap(work.paths[0], np.uint8, "r+")
    data[5 * work.row_bytes + 2000] ^= 1
    data.flush()
    with pytest.raises(RuntimeError):
        engine.check()
    engine.close()


def test_engines_take_turns_in_one_job(tmp_path: Path) -> None:
    names = [
        name for name in ("kvstore", "kvstore-threads", "preadv", "file-per-key") if not make_engine(name).why_not()
    ]
    document = bench(
        tmp_path, "--rw=get", f"--engine={','.join(names)}", "--iodepth=4", "--runtime=40ms", "--slice=10ms"
    )
    assert [job["kvbench"]["engine"] for job in document["jobs"]] == names
    for job in document["jobs"]:
        assert (job["error"], job["kvbench"]["wrong"], job["kvbench"]["misses"]) == (0, 0, 0)
        assert job["kvbench"]["verified"] == job["read"]["total_ios"] > 0


class FirstFails(PreadvEngine):
    """The first block of a batch fails at once, the others are moved when that has been noticed."""

    def __init__(self) -> None:
        self.moved: list[int] = []

    def move(self, op: Op, number: int, buffers: Buffers, row: int) -> bool:
        if row == 0:
            raise OSError("the device went away")
        threading.Event().wait(0.05)
        self.moved.append(row)
        return True


def test_what_is_in_flight_when_a_block_fails_is_waited_for(tmp_path: Path) -> None:
    engine = FirstFails()
    with opened(engine, _at(_PLAIN, tmp_path)) as store:
        with pytest.raises(OSError, match="went away"):
            engine.batch("get", [0, 1, 2, 3], store.buffers[0])
        assert sorted(engine.moved) == [1, 2, 3]


def test_kvikio_waits_for_every_block_of_a_batch_in_which_one_fails() -> None:
    waited = []

    def get(number: int) -> int:
        waited.append(number)
        if number == 1:
            raise RuntimeError("the device went away")
        return 4096

    with pytest.raises(RuntimeError, match="went away"):
        kvikio_engine._all([SimpleNamespace(get=partial(get, number)) for number in range(4)])
    assert waited == [0, 1, 2, 3]


def test_an_engine_that_cannot_run_says_how_to_mend_that(tmp_path: Path) -> None:
    for name in ENGINES:
        why_not = make_engine(name).why_not()
        assert why_not is None or "pip install" in why_not or "apt-get install" in why_not or "GPU" in why_not, name


@pytest.mark.parametrize("batch", [[5], [4, 5]])
def test_a_block_of_another_length_is_an_error_and_no_miss(tmp_path: Path, batch: list[int]) -> None:
    engine = KvStoreEngine()
    with opened(engine, _at(_PLAIN, tmp_path)) as store:
        engine.space.put(engine.key(4), bytes(_PLAIN.block_bytes))
        engine.space.put(engine.key(5), bytes(100))
        with pytest.raises(RuntimeError, match="100 bytes, not 16384"):
            engine.batch("get", batch, store.buffers[0])
        assert list(engine.batch("get", [4, 6], store.buffers[0]) or []) == [True, False]


@pytest.mark.parametrize("name", _names(["preadv", "liburing", "raw_block-posix", "raw_block-io_uring"]))
def test_flushing_syncs_the_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, fdatasync, synced = _here(name), os.fdatasync, []

    def told(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        fdatasync(fd)

    with opened(engine, work := _at(_PLAIN, tmp_path)) as store:
        store.put(range(_BLOCKS))
        monkeypatch.setattr(os, "fdatasync", told)
        engine.flush()
    assert synced == [work.paths[0]]


@pytest.mark.parametrize("name", _names(["file-per-key", "lmcache-local-disk"]))
def test_flushing_empties_no_cache_and_forgetting_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, dropped = _here(name), set[str]()
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *_: dropped.add(str(Path(f"/proc/self/fd/{fd}").readlink())))
    with opened(engine, _at(_PLAIN, tmp_path)) as store:
        store.put(range(_BLOCKS))
        engine.flush()
        assert not dropped
        engine.forget()
    assert len(dropped) == _BLOCKS


def test_a_folder_is_where_it_was_asked_for_also_to_a_server_that_runs_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Folder(replace(_at(_PLAIN, tmp_path), paths=("blocks",))).path == tmp_path / "blocks"


def test_a_folder_that_stays_behind_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = Folder(_at(_PLAIN, tmp_path))
    folder.path.rename(tmp_path / "elsewhere")
    folder.path.symlink_to(tmp_path / "elsewhere")  # what rmtree refuses
    folder.remove()
    assert f"{folder.path} is left behind" in caplog.text


@pytest.mark.parametrize("name", _names(["file-per-key", "lmcache-local-disk"]))
def test_an_option_that_is_neither_yes_nor_no_is_refused(name: str, tmp_path: Path) -> None:
    engine = _here(name)
    with pytest.raises(RuntimeError, match="direct is 'yes': it is 0 or 1"):
        engine.open(_at(replace(_PLAIN, options={"direct": "yes"}), tmp_path))
    engine.close()
    assert list(tmp_path.iterdir()) == []


def test_several_sizes_in_a_small_pool_do_not_seal_each_others_regions(tmp_path: Path) -> None:
    job = one_job(
        tmp_path, "--rw=getput", "--bssplit=64k/50:256k/30:1m/20", "--size=32m", "--io_size=64m", "--iodepth=8"
    )
    assert (job["error"], job["kvbench"]["misses"]) == (0, 0)
    stats = job["kvbench"]["facts"]["stats"]
    assert stats["regions"] >= 8 * (3 + 1)  # an eighth of all can be open: one of each size, and one that is sealed
    assert stats["regions_reclaimed"] == 0
