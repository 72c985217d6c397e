# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Options and job files: fio's words, and a message that says what is wrong where."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench_support import bench

from kvstore.bench.engines import ENGINES
from kvstore.bench.jobfile import parse_job_text, read_job_file, sections_of_command_line
from kvstore.bench.options import OPTIONS, JobSpec, job_specs
from kvstore.cli import main
from kvstore.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
_ = bench  # its module skips where the extra is not installed


def spec(**options: str) -> JobSpec:
    (made,) = job_specs([("job", options)])
    return made


def test_the_table_has_every_field_of_a_job() -> None:
    fields = {field.name for field in dataclasses.fields(JobSpec)}
    assert fields == set(OPTIONS) | {"name", "engine_options", "given", "loop"}


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("bs", "64k", (65536,)),
        ("size", "1.5g", 3 << 29),
        ("runtime", "500ms", 0.5),
        ("ramp_time", "2m", 120.0),
        ("rate", "100MB", 100_000_000),
        ("verify", "0", "none"),
        ("random_distribution", "zipf:0.9", ("zipf", 0.9)),
        ("filename", "/dev/a:/dev/b", (("/dev/a", "/dev/b"),)),
        ("filename", r"/dev/pci-0000\:01", (("/dev/pci-0000:01",),)),
        ("bssplit", "64k/25:1m", ((65536, 25.0), (1 << 20, 75.0))),
        ("unlink", "0", False),
    ],
)
def test_values_are_read_as_fio_reads_them(option: str, text: str, value: object) -> None:
    assert getattr(spec(**{option: text}), option) == value


def test_fios_names_mean_the_same() -> None:
    made = spec(ioengine="preadv", blocksize="4k", readwrite="put", rwmixread="70", direct="1", time_based="1")
    assert (made.engine, made.bs, made.rw, made.rwmixget) == (("preadv",), (4096,), "put", 70)


def test_a_list_of_sizes_is_a_job_for_each() -> None:
    made = job_specs([("a", {"bs": "64k,1m"})])
    assert [(one.name, one.block_sizes) for one in made] == [("a-64KiB", (65536,)), ("a-1MiB", (1 << 20,))]


def test_a_list_of_depths_and_of_threads_likewise() -> None:
    made = job_specs([("a", {"bssplit": "4k/50:64k/50", "iodepth": "1,16", "numjobs": "1,4"})])
    assert [one.name for one in made] == ["a-depth1-jobs1", "a-depth1-jobs4", "a-depth16-jobs1", "a-depth16-jobs4"]
    assert [(one.iodepth, one.numjobs) for one in made] == [(1, 1), (1, 4), (16, 1), (16, 4)]
    assert {one.block_sizes for one in made} == {(4096, 65536)}


def test_a_shape_gives_the_block_size() -> None:
    assert spec(shape="Llama-3-70B-TP8").block_sizes == (40_960 * 256,)
    assert spec(shape="deepseek-v3", block_tokens="64").block_sizes == (70_272 * 64,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rw": "read"}, "job job: rw is 'read': allowed are put, get"),
        ({"iodepht": "1"}, "there is no option iodepht"),
        ({"iodepth": "0"}, "iodepth is '0': allowed are whole numbers from 1"),
        ({"bssplit": "64k/50:1m/60"}, "the percentages are not 100"),
        ({"bs": "1m", "shape": "llama-3-8b"}, "give one of them"),
        ({"engine": "nobody"}, "engine is 'nobody': allowed are kvstore"),
        ({"bssplit": "64k/nan"}, "a percentage is above 0"),
        ({"bssplit": "64k/-50:1m/150"}, "a percentage is above 0"),
        ({"runtime": "soon"}, "write seconds"),
        ({"runtime": f"{10**40}d"}, "10 years at most"),
        ({"size": "0"}, "size is '0': allowed are 1 and more"),
        ({"random_distribution": "zipf:nan"}, "zipf's theta is nan: allowed are 0 to"),
        ({"random_distribution": "zipf:-1"}, "zipf's theta is -1: allowed are 0 to"),
        ({"direct": "0"}, "always works as with direct=1"),
        ({"filename": ""}, "filename is '': name a file or a device"),
        ({"bs": "3x"}, "bs is '3x': write a number and a unit"),
        ({"iodepth": "1,16", "iodepth_batch": "5"}, "iodepth is 16, no multiple of iodepth_batch=5"),
        ({"rw": "prefetch", "iodepth": "4", "iodepth_batch": "2"}, "prefetch is one call after the other"),
        ({"filename": "a,b", "engine": "kvstore"}, "2 places for 1 engines"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec(**options)


def test_global_counts_for_the_sections_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "/dev/x")
    text = """
    ; a comment
    [global]
    filename=${PLACE}   # and another
    bs=64k
    [a]
    rw=put
    [global]
    bs=1m
    [a]
    overwrite
    """
    first, second = parse_job_text(text)
    assert first == ("a", {"filename": "/dev/x", "bs": "64k", "rw": "put"})
    assert second == ("a", {"filename": "/dev/x", "bs": "1m", "overwrite": "1"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bs=1m", "jobs:1: 'bs=1m' is before the first"),
        ("[a]\n64k", "jobs:2: '64k' is no option"),
        ("[a]\nfilename=${NOT_THERE_AT_ALL}", "jobs:2: the environment has no NOT_THERE_AT_ALL"),
        ("[global]\nbs=1m", "nothing to run"),
    ],
)
def test_a_line_that_is_none_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_job_text(text, "jobs")


def test_a_job_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.fio cannot be read"):
        read_job_file("nowhere.fio")


def test_options_before_the_first_name_count_for_all() -> None:
    made = sections_of_command_line([("bs", "64k"), ("name", "a"), ("rw", "put"), ("name", "b"), ("rw", "get")])
    assert made == [("a", {"bs": "64k", "rw": "put"}), ("b", {"bs": "64k", "rw": "get"})]


def test_parse_only_says_the_jobs_and_runs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--parse-only", "--bs=64k,1m", "--name=a", "--rw=put", "--iodepth", "4"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a-64KiB: rw=put bs=65536 engine=kvstore iodepth=4",
        "a-1MiB: rw=put bs=1048576 engine=kvstore iodepth=4",
    ]


def test_a_wrong_option_is_refused_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--rw=put", "--verify=maybe"]) == 2
    assert "verify is 'maybe'" in capsys.readouterr().err


def test_the_script_of_a_checkout_runs_from_anywhere(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = [ROOT / "bench/kvbench", "--parse-only", "--rw=get"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "job: rw=get bs=1048576 engine=kvstore iodepth=1\n"), done.stderr


@pytest.mark.parametrize("verb", ["bench", "bench order"])
def test_a_result_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    place = tmp_path / "bench.img"
    assert main([*verb.split(), f"--filename={place}", f"--output={tmp_path}/absent/result.json"]) != 0
    assert "absent/result.json: No such file or directory" in capsys.readouterr().err
    assert not place.exists()


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["bench", "--rw=get"]) == 2
    assert "pip install 'nvme-kvstore[bench]'" in capsys.readouterr().err


def test_enghelp_tells_of_every_engine_whether_it_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--enghelp"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if not line.startswith(" ")} == set(ENGINES)
    assert any(line.split() == ["preadv", "can", "run"] for line in lines)
    assert any(line.strip().startswith("kvstore.verify_reads: ") for line in lines)
    assert main(["bench", "--enghelp", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(ENGINES)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_engine_options_can_be_written_in_a_job_file(engine: str) -> None:
    (section,) = parse_job_text(f"[a]\nengine={engine}\n{engine}.x=1")
    (made,) = job_specs([section])
    assert made.engine_options == {f"{engine}.x": "1"}
