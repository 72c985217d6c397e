# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""fio as an engine: it runs its own requests, its figures become a job's, and its verification is believed.

Method: real runs on a small file.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from bench_support import bench, one_job

from kvstore.bench.engines.base import Work
from kvstore.bench.engines.fio_engine import FioEngine

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
    assert get["kvbench"]["verified"] > 0
    assert get["kvbench"]["facts"]["version"].startswith("fio-")


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
    engine.open(Work(**{**vars(work), "verify": verify}))
    engine.measure("get", None, 16)
    assert engine.check() == work.population
    with open(work.paths[0], "r+b") as file:
        file.seek(5 * PAGE)
        file.write(os.urandom(64))
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
        FioEngine().open(Work(**{**vars(work), "population": 1000}))


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
