# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The result in fio's schema, as text, and in the hands of tools that were made for fio. And what docs/bench.md says.

Method: real runs on a small file; the tools get the file as it was written.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_support import bench, one_job

from kvstore.bench.document import PERCENTILES, _series, latency
from kvstore.bench.options import OPTIONS, option_table
from kvstore.bench.tally import LATENCY_NS_MAX, SERIES_INTERVAL_S, Latencies, Side
from kvstore.bench.text import report

ROOT = Path(__file__).resolve().parents[2]


def fio_job(folder: Path) -> dict[str, Any]:
    """One job of fio itself."""
    if shutil.which("fio") is None:
        pytest.skip("fio is missing: apt-get install fio")
    command = ["fio", "--name=a", f"--filename={folder}/fio.img", "--size=1m", "--bs=64k", "--rw=write"]
    done = subprocess.run([*command, "--output-format=json+"], capture_output=True, text=True, check=True, cwd=folder)
    job: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    return job


def test_every_field_of_fio_is_there_with_its_type(tmp_path: Path) -> None:
    fios, ours = fio_job(tmp_path), one_job(tmp_path, "--rw=put", "--iodepth=4")

    def differing(theirs: Any, mine: Any, at: str) -> list[str]:
        if isinstance(theirs, dict) and isinstance(mine, dict):
            if at.endswith(("bins", "job options")):
                return []
            return [where for key in theirs for where in differing(theirs[key], mine.get(key), f"{at}/{key}")]
        numbers = isinstance(theirs, (int, float)) and isinstance(mine, (int, float))
        return [] if numbers or isinstance(mine, type(theirs)) else [at]

    assert differing(fios, ours, "") == []


def test_figures_of_a_job_agree_with_each_other(tmp_path: Path) -> None:
    job = one_job(tmp_path, "--rw=get", "--iodepth=4", "--numjobs=2")
    read, own = job["read"], job["kvbench"]
    assert read["total_ios"] == read["clat_ns"]["N"] == sum(read["clat_ns"]["bins"].values()) == 32
    assert read["bw_bytes"] == pytest.approx(read["io_bytes"] / own["seconds"], rel=1e-6)
    assert read["iops"] == pytest.approx(read["bw_bytes"] / 65536, rel=1e-3)
    series = own["series"]
    whole = sum(series["read_bytes_per_s"][:-1]) * series["interval_s"]
    assert whole <= read["io_bytes"]
    share = (job["usr_cpu"] + job["sys_cpu"]) / 100
    in_whole_ms = 0.001 * share  # as which fio, and so the document, tells the time of a job
    assert own["cpu_s"] == pytest.approx(share * job["job_runtime"] / 1000, rel=0.01, abs=in_whole_ms)
    percentiles = list(read["clat_ns"]["percentile"].values())
    assert len(percentiles) == len(PERCENTILES)
    assert percentiles == sorted(percentiles)
    shares = sum(sum(job[name].values()) for name in ("latency_ns", "latency_us", "latency_ms"))
    assert shares == pytest.approx(100)


def test_the_document_tells_the_machine_and_the_devices(tmp_path: Path) -> None:
    machine = bench(tmp_path, "--rw=put")["kvbench"]["machine"]
    assert {"kernel", "cpu", "cores", "load", "devices"} <= set(machine)
    assert machine["devices"][0]["path"] == str(tmp_path / "bench.img")


def test_the_text_has_a_line_for_each_job(tmp_path: Path) -> None:
    document = bench(tmp_path, "--name=a", "--rw=put", "--name=b", "--rw=get")
    lines = report(document).splitlines()
    assert lines[0].startswith("a: rw=put, bs=64KiB, engine=kvstore, iodepth=1, numjobs=1: err= 0")
    assert [line.split()[-1] for line in lines[lines.index("Run status:") + 1 :]] == ["a", "b"]


def python_with(module: str) -> str:
    """An interpreter that has it: this one, or the system's, for which Debian's tools are made."""
    for python in (sys.executable, "/usr/bin/python3"):
        has_it = [python, "-c", f"import {module}"]
        if Path(python).exists() and subprocess.run(has_it, capture_output=True).returncode == 0:
            return python
    pytest.skip(f"the Python module {module} is missing, which the tool needs")


def test_fio_jsonplus_clat2csv_reads_it(tmp_path: Path) -> None:
    tool = shutil.which("fio_jsonplus_clat2csv")
    if tool is None:
        pytest.skip("fio_jsonplus_clat2csv is missing: apt-get install fio")
    document = bench(tmp_path, "--iodepth=4", "--name=a", "--rw=put", "--name=b", "--rw=get", "--name=c", "--rw=lookup")
    command = [python_with("six"), tool, "result.json", "result.csv"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run([*command, "--validate"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.count("validated") == 3
    rows = (tmp_path / "result_job1.csv").read_text().splitlines()[1:]
    assert len(rows) == len(document["jobs"][1]["read"]["clat_ns"]["bins"])


def test_fio_plot_reads_it(tmp_path: Path) -> None:
    tool = shutil.which("fio-plot")
    if tool is None:
        pytest.skip("fio-plot is missing: pip install fio-plot")
    bench(tmp_path, "--rw=get", "--iodepth=4")
    command = [tool, "-i", ".", "-T", "kvbench", "-r", "randread", "-L", "-t", "iops", "lat", "-d", "4", "-n", "1"]
    subprocess.run([*command, "-o", "plot.png"], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_latencies_of_threads_add_up() -> None:
    first, second = Latencies(), Latencies()
    first.record(1000, 3)
    second.record(2_000_000)
    second.record(LATENCY_NS_MAX * 10)
    first.add(second)
    assert first.count == sum(first.bins().values()) == 5
    assert max(first.bins()) == first.max == LATENCY_NS_MAX
    assert latency(first)["percentile"]["50.000000"] == pytest.approx(1000, rel=0.01)


def test_a_percentile_is_a_latency_that_so_many_do_not_exceed() -> None:
    counted = Latencies()
    counted.record(1000, 149)
    counted.record(2_000_000, 2)
    told = latency(counted)["percentile"]  # 99 % of 151 blocks are 150
    assert (told["95.000000"], told["99.000000"]) == (pytest.approx(1000, rel=0.01), pytest.approx(2e6, rel=0.01))


def test_bytes_are_spread_over_the_time_they_took() -> None:
    side = Side()
    side.batch(hits=1, misses=0, nbytes=300, seconds=1.5, begun_s=0.25, ended_s=1.75)
    assert side.series == pytest.approx([50, 100, 100, 50])


def test_a_miss_is_no_latency_and_no_block() -> None:
    side = Side()
    side.batch(hits=0, misses=2, nbytes=0, seconds=1e-6, begun_s=0.0, ended_s=1e-6)
    side.batch(hits=1, misses=1, nbytes=10, seconds=1.0, begun_s=0.0, ended_s=1.0)
    assert (side.asked, side.blocks, side.misses, side.latencies.count) == (4, 1, 3, 1)
    assert side.latencies.min == pytest.approx(10**9, rel=0.01)


@pytest.mark.parametrize("seconds", [1.5, 1.5001, 1.9])
def test_the_series_adds_up_to_what_was_moved_and_has_no_spike_at_its_end(seconds: float) -> None:
    side = Side()
    side.spread(1000, 0.0, seconds)
    series = _series(side, seconds)
    whole = (len(series) - 1) * SERIES_INTERVAL_S
    assert sum(series[:-1]) * SERIES_INTERVAL_S + series[-1] * (seconds - whole) == pytest.approx(1000, rel=0.01)
    assert max(series) == pytest.approx(min(series), rel=0.01)


def test_the_manual_has_the_table_of_options() -> None:
    assert option_table() in (ROOT / "docs/bench.md").read_text()


def test_job_files_of_the_repository_are_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvstore.bench.jobfile import read_job_file
    from kvstore.bench.options import job_specs

    monkeypatch.setenv("PLACE", "/dev/x")
    files = sorted((ROOT / "bench/jobs").glob("*.fio"))
    assert files
    for file in files:
        assert job_specs(read_job_file(str(file)))


def test_every_option_says_what_it_does() -> None:
    assert all(len(option.help) > 5 for option in OPTIONS.values())
