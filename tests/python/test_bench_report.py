# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""kvstore bench report: every picture is there, the page has every row and needs nothing else, what is lost is told."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import re
import struct
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import bench_results as made
import pytest
from bench_support import bench

pytest.importorskip("matplotlib", reason="matplotlib is missing: pip install 'nvme-kvstore[bench]'")

from kvstore.bench.report import write_report
from kvstore.bench.report.charts import WIDTH_PX, styles_of
from kvstore.bench.report.tables import markdown_tables
from kvstore.bench.report.text import block_text, latency_text, lost_rows, size_text, verdicts
from kvstore.bench.results import load_results
from kvstore.bench.rows import Results
from kvstore.cli import main
from kvstore.errors import ConfigError

KINDS = ("bandwidth", "ratio", "cpu", "latency", "time")
MIB = 1 << 20


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report on six engines; made once, since it takes seconds."""
    folder = tmp_path_factory.mktemp("report")
    jobs = [one for one in made.all_jobs() if one["job options"]["rw"] == "randread"]
    jobs.append(made.job("absent", "get", MIB, 16, 1, failed="OSError: <gone>"))
    write_report([made.write(folder / "result.json", made.document(jobs))], folder)
    return folder


def results_of(folder: Path, *jobs: dict[str, object]) -> Results:
    return load_results([made.write(folder / "r.json", made.document(jobs))])


class Page(HTMLParser):
    """What a page refers to, its rows, its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_every_kind_of_picture_is_a_png_of_the_right_width(report: Path) -> None:
    pictures = sorted(report.glob("*.png"))
    assert {picture.stem.split("-")[1] for picture in pictures} == set(KINDS)
    for picture in pictures:
        head = picture.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", head[16:])
        assert (width, 300 < height < 2000) == (WIDTH_PX, True)


def test_the_page_refers_to_nothing_outside_of_it(report: Path) -> None:
    text = (report / "report.html").read_text()
    page = Page(text)
    pictures = list(report.glob("*.png"))
    assert len(page.references) == len(pictures)
    assert all(reference.startswith("data:image/png;base64,") for reference in page.references)
    assert not page.tags & {"script", "link", "iframe"}
    assert "url(" not in text
    assert "@import" not in text


def test_the_page_has_every_row(report: Path) -> None:
    found = {tuple(row[:4]) for row in Page((report / "report.html").read_text()).rows}
    wanted = {(size_text(s), str(d), "1", e) for s in made.SIZES for d in made.DEPTHS for e in made.ENGINES}
    assert wanted <= found
    assert ("1 MiB", "16", "1", "absent") in found


def test_the_page_tells_machine_device_and_commands(report: Path) -> None:
    text = (report / "report.html").read_text()
    command = "kvstore bench bench/jobs/sizes.fio --engine=all"
    for fact in ("6.12.9", "AMD EPYC 9654", "GDC5602Q", "abc1234", "result.json: Mon, load 0.1 0.2 0.3", command):
        assert fact in text
        assert fact in (report / "tables.md").read_text()


def test_what_was_not_measured_says_why_and_is_escaped(report: Path) -> None:
    text = (report / "report.html").read_text()
    assert "not measured: OSError: &lt;gone&gt;" in text
    assert "<gone>" not in text


def test_lost_is_marked_as_won_is(tmp_path: Path) -> None:
    jobs = [made.job(e, "get", MIB, d, s) for d, speeds in ((1, (1, 0.5)), (16, (0.5, 1)))
            for e, s in zip(("kvstore", "preadv"), speeds, strict=True)]  # fmt: skip
    results = results_of(tmp_path, *jobs)
    won, lost = (verdicts(results, row) for row in results.rows if row.ours)
    assert [verdict.word for verdict in won] == ["won"] * 3
    assert [verdict.word for verdict in lost] == ["lost"] * 3
    assert lost[0].text == "lost: GB/s 0.50 × preadv"
    assert [row.cell.iodepth for row, _ in lost_rows(results)] == [16] * 3
    tables = markdown_tables(results)
    assert tables.index("Lost, the worst first") < tables.index("## get at nvme1n1")


def test_the_same_within_the_margin_is_even(tmp_path: Path) -> None:
    results = results_of(tmp_path, made.job("kvstore", "get", MIB, 16, 0.98), made.job("fio", "get", MIB, 16, 1))
    assert [verdict.word for verdict in verdicts(results, results.rows[0])] == ["even"]


def test_who_brings_wrong_blocks_wins_nothing(tmp_path: Path) -> None:
    jobs = made.job("kvstore", "get", MIB, 16, 2, wrong=1), made.job("preadv", "get", MIB, 16, 1)
    results = results_of(tmp_path, *jobs)
    assert verdicts(results, results.rows[0]) == []
    assert "1 blocks WRONG" in markdown_tables(results)


def test_engines_look_alike_in_all_pictures_and_no_two_the_same() -> None:
    engines = ["kvstore", "fio", "kvstore verify_reads=off", "fio read", *(f"e{number}" for number in range(20))]
    styles = styles_of(engines)
    looks = {(style.color, style.marker, str(style.dashes)) for style in styles.values()}
    assert len(looks) == len(engines)
    assert styles["kvstore"].color == styles["kvstore verify_reads=off"].color
    assert styles_of(engines[:1])["kvstore"] == styles["kvstore"]


def test_one_row_alone_can_be_drawn(tmp_path: Path) -> None:
    path = made.write(tmp_path / "r.json", made.document([made.job("kvstore", "put", MIB, 1, 1)]))
    assert {file.name for file in write_report([path], tmp_path / "out")} >= {"report.html", "01-bandwidth-put.png"}


def test_lookups_move_no_bytes_and_are_reported_all_the_same(tmp_path: Path) -> None:
    lookup = made.job("kvstore", "lookup", MIB, 16, 1)
    lookup["read"] |= {"bw_bytes": 0, "io_bytes": 0}
    lookup["kvbench"]["series"] = {"interval_s": 0.5, "read_bytes_per_s": []}
    path = made.write(tmp_path / "r.json", made.document([lookup]))
    assert [file.name for file in write_report([path], tmp_path / "out")] == [
        "report.html", "tables.md", "01-latency-lookup.png",
    ]  # fmt: skip


def test_results_of_two_machines_get_a_place_of_their_own(tmp_path: Path) -> None:
    documents = [
        made.document([made.job("kvstore", "get", MIB, 1, 1)], {"kernel": kernel}) for kernel in ("6.1", "6.9")
    ]
    paths = [made.write(tmp_path / f"{number}.json", one) for number, one in enumerate(documents)]
    text = markdown_tables(load_results(paths))
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "Machine, setup 1", "Machine, setup 2", "Won and lost", "get at nvme1n1, setup 1", "get at nvme1n1, setup 2",
    ]  # fmt: skip


def test_units_are_those_people_read() -> None:
    assert [latency_text(us) for us in (0.5, 85.3, 12_345, 2_500_000)] == ["0.5 µs", "85.3 µs", "12.3 ms", "2.5 s"]
    assert [size_text(size) for size in (100, 65536, 3 * MIB // 2, 1 << 30)] == ["100 B", "64 KiB", "1.5 MiB", "1 GiB"]


def test_blocks_of_several_sizes_are_told_by_the_largest_as_that(tmp_path: Path) -> None:
    (row,) = results_of(tmp_path, made.job("kvstore", "get", MIB, 16, 1)).rows
    assert block_text(row.cell) == "1 MiB"
    assert block_text(dataclasses.replace(row.cell, variant="bssplit=64k/50:1m/50")) == "up to 1 MiB"


def test_the_command_writes_the_folder_and_says_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = made.write(tmp_path / "fio.json", made.fio_document())
    assert main(["bench", "report", str(path), "--out", str(tmp_path / "out"), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert sorted(files) == sorted(str(file) for file in (tmp_path / "out").iterdir())


def test_a_run_of_bench_writes_its_own_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "made" / "report"
    bench(tmp_path, "--rw=put", f"--report={folder}")
    assert f"the report is {folder}/report.html" in capsys.readouterr().err
    assert json.loads((folder / "result.json").read_text())["jobs"][0]["kvbench"]["engine"] == "kvstore"
    assert {"report.html", "tables.md", "result.json"} < {file.name for file in folder.iterdir()}


def test_a_folder_of_reports_that_cannot_be_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    arguments = ["bench", "--rw=put", f"--filename={tmp_path}/x.img", f"--report={tmp_path}/file/report"]
    assert main(arguments) != 0
    assert not (tmp_path / "x.img").exists()


def test_the_command_refuses_what_is_no_result_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text('{"rows": []}')
    assert main(["bench", "report", str(tmp_path / "x.json"), "--out", str(tmp_path / "out")]) == 2
    assert "x.json is not a result of `kvstore bench" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_says_how_to_get_a_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else there(name))
    assert main(["bench", "report", "x.json", "--out", str(tmp_path)]) == 2
    assert "pip install 'nvme-kvstore[bench]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "spoil",
    [
        lambda job: job["read"].update(bw_bytes=math.nan),
        lambda job: job["read"].update(bw_bytes=10**400),
        lambda job: job["read"].update(iops=-1),
        lambda job: job["read"].update(clat_ns={"bins": {"1000": -3}}),
        lambda job: job["kvbench"].update(block_sizes=[0]),
        lambda job: job["job options"].update(iodepth="0"),
        lambda job: job["kvbench"]["series"].update(interval_s=math.inf),
        lambda job: job.update(usr_cpu=math.nan),
        lambda job: job.pop("write"),
    ],
)
def test_figures_that_nobody_measures_are_told_with_file_and_job(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], object]
) -> None:
    one = made.job("kvstore", "get", 1 << 20, 1, 1.0)
    spoil(one)
    with pytest.raises(ConfigError, match=f"a.json, job {one['jobname']}: "):
        write_report([made.write(tmp_path / "a.json", made.document([one]))], tmp_path / "report")


def test_latencies_below_a_nanosecond_and_dollars_in_names_are_drawn(tmp_path: Path) -> None:
    one = made.job("a$x_{a$", "get", MIB, 1, 1.0)
    one["read"]["clat_ns"] = {"bins": {"0": 4, "1000": 0, "2000": 6}}
    written = write_report([made.write(tmp_path / "a.json", made.document([one]))], tmp_path / "report")
    assert [path.name for path in written[2:]] == ["01-bandwidth-get.png", "02-cpu-get.png", "03-latency-get.png",
                                                   "04-time-get.png"]  # fmt: skip


def test_a_file_that_is_named_twice_is_no_repetition(tmp_path: Path) -> None:
    file = made.write(tmp_path / "a.json", made.document([made.job("kvstore", "get", 1 << 20, 1, 1.0)]))
    (tmp_path / "link.json").symlink_to(file)
    (row,) = load_results([file, file, tmp_path / "link.json"]).rows
    assert row.repetitions == 1


def test_an_engine_alone_has_neither_won_nor_lost(tmp_path: Path) -> None:
    one = made.job("kvstore", "get", MIB, 1, 1.0)
    page, tables, *_ = write_report([made.write(tmp_path / "a.json", made.document([one]))], tmp_path / "report")
    for text in (page.read_text(), tables.read_text()):
        assert "nothing to compare with" in text
        assert "No row is lost" not in text
