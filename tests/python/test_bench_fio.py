# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""fio as an engine: it runs its own requests, its figures become a job's, and its verification is believed.

Method: real runs on a small file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from bench_support import bench, one_job

from kvstore.bench.engines.base import Op, Work
from kvstore.bench.engines.fio_engine import FioEngine, _split
from kvstore.bench.places import write_zeros
from kvstore.bench.text import report

pytestmark = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is missing: apt-get install fio")
PAGE = 4096


@pytest.fixture
def work(tmp_path: Path) -> Work:
    path = tmp_path / "fio.img"
    return Work((str(path),), (16 * PAGE,), population=16, size_bytes=2 << 20, iodepth=4)


def test_its_gets_and_puts_are_a_jobs_figures(tmp_path: Path) -> None:
    get, put = bench(tmp_path, "--engine=fio", "--iodepth=4", "--runtime=50ms", "--name=a", "--rw=get", "--name=b",
                     "--rw=put")["jobs"]  # fmt: skip
    assert (get["error"], put["error"]) == (0, 0)
    for side in (get["read"], put["write"]):
        assert side["total_ios"] == sum(side["clat_ns"]["bins"].values()) > 0
        assert side["io_bytes"] == side["total_ios"] << 16
        assert side["bw_bytes"] == pytest.approx(side["io_bytes"] / side["runtime"] * 1000, rel=0.05)
    assert get["kvbench"]["facts"]["version"].startswith("fio-")


def test_what_it_verifies_is_the_device_and_not_its_gets(tmp_path: Path) -> None:
    get, put = bench(tmp_path, "--engine=fio", "--runtime=50ms", "--name=a", "--rw=get", "--name=b",
                     "--rw=put")["jobs"]  # fmt: skip
    assert [job["kvbench"]["verified"] for job in (get, put)] == [0, 0]
    assert [job["kvbench"]["facts"]["verified_on_device"] for job in (get, put)] == [33, 0]  # 32, and one being put
    told = report({"jobs": [get]})
    assert "on the device: verified=33" in told
    assert "verified=0 (stamp)" in told


@pytest.mark.parametrize(
    ("sizes", "weights"), [((10_000,), (1.0,)), ((10_000, 4096), (1.0, 3.0)), ((4096, 16384), (1.0, 1.0))]
)
@pytest.mark.parametrize("op", ["get", "put"])
def test_blocks_of_part_pages_are_moved_whole_and_credited_as_they_are(
    work: Work, op: Op, sizes: tuple[int, ...], weights: tuple[float, ...]
) -> None:
    engine = FioEngine()
    engine.open(replace(work, block_sizes=sizes, weights=weights, population=64))
    done = engine.measure(op, None, 1000)
    mean = sum(s * w for s, w in zip(sizes, weights, strict=True)) / sum(weights)
    assert done.blocks == pytest.approx(1000, rel=0.15)
    assert done.bytes / done.blocks == pytest.approx(mean, rel=0.15 if len(sizes) > 1 else 1e-9)


def test_six_equal_shares_add_up_to_a_hundred(work: Work) -> None:
    sizes = tuple(10_000 + 4096 * n for n in range(6))
    shares = [part.split("/") for part in _split(replace(work, block_sizes=sizes, weights=(1.0,) * 6)).split(":")]
    assert sum(int(share) for _, share in shares) == 100
    assert {int(share) for _, share in shares} == {16, 17}
    assert [int(size) % PAGE for size, _ in shares] == [0] * 6


def test_each_thread_puts_into_a_part_of_its_own(work: Work) -> None:
    for path in work.paths:
        list(write_zeros(path, work.size_bytes))
    engine = FioEngine()
    engine.open(replace(work, numjobs=4))
    engine.measure("put", None, 16)
    image = Path(work.paths[0]).read_bytes()
    rows = [image[at : at + work.row_bytes] for at in range(0, 16 * work.row_bytes, work.row_bytes)]
    assert [number for number, row in enumerate(rows) if not any(row)] == []


def test_gets_are_drawn_by_zipf_where_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", _noting(commands))
    for distribution in ("random", "zipf:1.1", "zipf:1"):
        job = one_job(tmp_path, "--engine=fio", "--rw=get", f"--random_distribution={distribution}", "--io_size=1m")
        assert (job["error"], job["read"]["total_ios"]) == (0, 16)
    asked = [part.split("=")[1] for command in commands for part in command if part.startswith("--random_dist")]
    assert asked == ["zipf:1.1", "zipf:1.0001"]


def _noting(commands: list[list[str]]) -> object:
    popen = subprocess.Popen

    def start(command: list[str], **options: object) -> object:
        commands.append(command)
        return popen(command, **options)  # type: ignore[call-overload]

    return start


def test_opening_lays_nothing_out_and_keeps_the_file_that_is_there(work: Work) -> None:
    list(write_zeros(work.paths[0], work.size_bytes))
    before = Path(work.paths[0]).stat()
    engine = FioEngine()
    engine.open(work)
    assert not any(Path(work.paths[0]).read_bytes())
    engine.measure("put", None, 16)
    after = Path(work.paths[0]).stat()
    assert (after.st_ino, after.st_size, after.st_blocks) == (before.st_ino, before.st_size, before.st_blocks)


def test_a_turn_that_is_stopped_ends_it(work: Work) -> None:
    engine = FioEngine()
    engine.open(work)
    engine.measure("get", None, 16)  # so that only the run itself is left
    stopped = threading.Event()
    threading.Timer(0.3, stopped.set).start()
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="fio was stopped"):
        engine.measure("get", 60, None, None, stopped)
    assert time.monotonic() - begun < 30


def test_threads_count_once(tmp_path: Path) -> None:
    job = one_job(tmp_path, "--engine=fio", "--rw=get", "--numjobs=2", "--runtime=50ms", "--verify=none")
    (turn,) = job["kvbench"]["turns"]
    assert turn["read_bytes"] == job["read"]["io_bytes"]
    assert job["read"]["runtime"] == pytest.approx(turn["seconds"] * 1000, abs=1)


def test_blocks_or_time_end_it_whichever_come_first(work: Work) -> None:
    engine = FioEngine()
    engine.open(work)
    assert engine.measure("get", 60, 40).blocks == 40
    assert engine.measure("get", 0.05, 1 << 40).seconds < 10


@pytest.mark.parametrize("verify", ["stamp", "full"])
def test_damage_between_laying_out_and_the_end_is_noticed(work: Work, verify: str) -> None:
    engine = FioEngine()
    engine.open(replace(work, verify=verify))
    engine.measure("get", None, 16)
    assert engine.check() == work.population
    with open(work.paths[0], "r+b") as file:
        file.seek(5 * PAGE)
        file.write(os.urandom(64))
    with pytest.raises(RuntimeError, match="verify"):
        engine.check()


@pytest.mark.parametrize("verify", ["stamp", "full"])
def test_blocks_of_an_earlier_laying_out_are_wrong(work: Work, verify: str) -> None:
    engine = FioEngine()
    engine.open(replace(work, verify=verify))
    engine.lay_out()
    earlier = Path(work.paths[0]).read_bytes()
    engine.measure("put", None, 16)
    engine.lay_out()
    assert engine.check() == work.population
    with open(work.paths[0], "r+b") as file:  # as a device that lost one block of the second
        file.seek(3 * work.row_bytes)
        file.write(earlier[3 * work.row_bytes : 4 * work.row_bytes])
    with pytest.raises(RuntimeError, match="verify"):
        engine.check()


def test_puts_lay_the_file_out_anew_before_the_next_gets(work: Work) -> None:
    engine = FioEngine()
    engine.open(work)
    engine.measure("put", None, 16)
    assert engine.check() == 0  # what it puts bears no headers
    engine.measure("get", None, 16)
    assert engine.check() == work.population


def test_no_room_is_told(tmp_path: Path, work: Work) -> None:
    with pytest.raises(RuntimeError, match="has room for"):
        FioEngine().open(replace(work, population=1000))


def test_it_leaves_nothing_in_the_current_folder(tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    engine = FioEngine()
    engine.open(work)
    engine.measure("get", None, 16)
    engine.check()
    assert list(Path().iterdir()) == []


def test_it_cannot_mix_or_keep_to_a_rate(tmp_path: Path) -> None:
    for options in (["--rw=getput"], ["--rw=get", "--rate=1m"]):
        job = one_job(tmp_path, "--engine=fio", *options, status=2)
        assert "cannot mix gets with puts or keep to a rate" in job["kvbench"]["why_not"]
