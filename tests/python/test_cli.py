# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""kvstore format | info | dump, and what all verbs have in common: exit statuses, JSON, errors.

Method: ``main()`` is called in this process on pools in files; what it prints is compared with what the Python API says
of the same pool. A child process holds a pool where somebody else must.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from python_support import IDENTITY, MIB, random_bytes

import kvstore
from kvstore.cli import main

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a verb and returns its exit status and standard output."""

    def call(*arguments: object) -> tuple[int, str]:
        status = main([str(argument) for argument in arguments])
        return status, capsys.readouterr().out

    return call


@pytest.fixture
def run_json(run: Run) -> Callable[..., tuple[int, Any]]:
    """The same with --json, the output parsed."""

    def call(*arguments: object) -> tuple[int, Any]:
        status, output = run(*arguments, "--json")
        return status, json.loads(output)

    return call


@pytest.fixture
def filled(pool_path: str) -> str:
    """Path of a pool with ten blocks in two spaces, closed."""
    with kvstore.open(pool_path) as pool:
        for name, blocks in (("one", 7), ("two", 3)):
            space = pool.space(**{**IDENTITY, "model": name})
            keys = [f"{name}-{number}".encode() for number in range(blocks)]
            values = [random_bytes(MIB, number) for number in range(blocks)]
            assert all(space.put_many(keys, values, chain=True, salts=b"salt", metas=b"meta").wait())
    return pool_path


# ---- format ----


def test_format_says_what_it_will_do_and_does_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "pool.img"
    status, output = run("format", path, "--size", "192MiB", "--region-bytes", "4MiB")
    assert status == 0
    assert output.index("of 4MiB") < output.index("formatted: pool")
    with kvstore.open(path) as pool:
        geometry = pool.superblocks()[0]["geometry"]
    assert geometry["device_bytes"] == 192 * MIB
    assert geometry["region_bytes"] == 4 * MIB


def test_format_takes_block_sizes(run_json: Callable[..., tuple[int, Any]], tmp_path: Path) -> None:
    status, report = run_json(
        "format", tmp_path / "a", "--size", "1GiB", "--block-bytes", "1MiB", "--min-block-bytes", "64KiB"
    )
    assert status == 0
    assert report["formatted"]
    (device,) = report["devices"]
    assert device["geometry"]["min_block_bytes"] == 64 << 10
    assert device["capacity_bytes"] == device["geometry"]["region_bytes"] * device["geometry"]["region_count"]


def test_a_dry_run_changes_nothing(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "pool.img"
    assert run("format", path, "--size", "192MiB", "--dry-run")[0] == 0
    assert not path.exists()


def test_a_store_is_overwritten_only_by_force(run: Run, filled: str) -> None:
    before = Path(filled).read_bytes()
    assert run("format", filled, "--dry-run")[0] == 2
    assert run("format", filled)[0] == 2
    assert Path(filled).read_bytes() == before
    status, output = run("format", filled, "--force")
    assert status == 0
    assert "will be overwritten" in output
    with kvstore.open(filled, read_only=True) as pool:
        assert pool.stats()["blocks"] == 0


def test_a_file_with_data_is_refused_and_left_alone(run_json: Callable[..., tuple[int, Any]], tmp_path: Path) -> None:
    path = tmp_path / "letters.txt"
    path.write_text("dear all")
    status, report = run_json("format", path, "--size", "192MiB")
    assert (status, report["error"]["code"]) == (2, "foreign")
    assert path.read_text() == "dear all"


@pytest.mark.parametrize("size", ["-1", "4 parsecs", "1.5B"])
def test_a_size_that_is_none_is_a_usage_error(run: Run, tmp_path: Path, size: str) -> None:
    with pytest.raises(SystemExit) as error:
        run("format", tmp_path / "pool.img", f"--size={size}")
    assert error.value.code == 2


def test_a_size_without_room_for_a_region_is_refused(run_json: Callable[..., tuple[int, Any]], tmp_path: Path) -> None:
    status, report = run_json("format", tmp_path / "pool.img", "--size", "1MiB")
    assert (status, report["error"]["code"]) == (2, "invalid")


def test_format_of_a_missing_path_asks_for_a_size(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["format", str(tmp_path / "none")]) == 2
    assert "give a size" in capsys.readouterr().err


# ---- info ----


def test_info_tells_what_the_pool_tells(run_json: Callable[..., tuple[int, Any]], filled: str) -> None:
    status, report = run_json("info", filled, "--spaces")
    with kvstore.open(filled, read_only=True) as pool:
        stats, superblock = pool.stats(), pool.superblocks()[0]
    assert status == 0
    assert report["pool_uuid"] == superblock["pool_uuid"]
    assert report["clean"]
    assert report["owner"]["epoch"] == 1
    assert (report["blocks"], report["live_bytes"]) == (10, 10 * MIB)
    assert report["occupied_bytes"] == stats["occupied_bytes"] == 3 * 4 * MIB
    assert sum(report["regions"][state] for state in ("free", "open", "sealed")) == report["regions"]["total"]
    assert {space["space"]["model"]: space["blocks"] for space in report["spaces"]} == {"one": 7, "two": 3}


def test_info_for_people_has_the_same_numbers(run: Run, filled: str) -> None:
    status, output = run("info", filled)
    assert status == 0
    for text in ("10, 10MiB live", "12MiB of", "closed cleanly", "owner mode", filled):
        assert text in output


def test_info_and_dump_look_at_a_pool_in_use(run_json: Callable[..., tuple[int, Any]], run: Run, filled: str) -> None:
    with kvstore.open(filled) as pool:
        pool.space(**IDENTITY).put(b"fresh", b"value", durable=True)
        status, report = run_json("info", filled)
        _, output = run("dump", filled, "--json")
    assert status == 0
    assert not report["clean"]
    assert report["blocks"] == 11
    assert report["regions"]["open"] == 1
    assert len(output.splitlines()) == 11


# ---- dump ----


def dumped(run: Run, *arguments: object) -> list[dict[str, Any]]:
    status, output = run("dump", *arguments, "--json")
    assert status == 0
    return [json.loads(line) for line in output.splitlines()]


def test_dump_lists_every_block_with_all_that_is_known_of_it(run: Run, filled: str) -> None:
    blocks = dumped(run, filled)
    with kvstore.open(filled, read_only=True) as pool:
        known = {block.key.hex(): block for block in pool.blocks()}
    assert len(blocks) == len(known) == 10
    for block in blocks:
        same = known[block["key"]]
        assert block["space"] == same.space
        assert (block["salt"], block["meta"]) == (b"salt".hex(), b"meta".hex())
        for name in ("nbytes", "depth", "device", "region", "slot", "generation", "write_seq", "checksum"):
            assert block[name] == getattr(same, name)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["--space", "model=one"], 7),
        (["--space", "model=one", "--space", "tp_size=2"], 0),
        (["--space", "tp_size=1"], 10),
        (["--key", b"two-".hex()], 3),
        (["--key", b"one-3".hex()], 1),
        (["--salt", b"salt".hex()], 10),
        (["--salt", ""], 0),
        (["--device", "0"], 10),
        (["--device", "1"], 0),
        (["--limit", "4"], 4),
    ],
)
def test_dump_filters(run: Run, filled: str, filters: list[str], expected: int) -> None:
    assert len(dumped(run, filled, *filters)) == expected


def test_dump_for_people_names_each_space_once(run: Run, filled: str) -> None:
    _, output = run("dump", filled)
    lines = output.splitlines()
    assert len([line for line in lines if line.startswith("# space")]) == 2
    assert len(lines) == 1 + 2 + 10
    assert any(b"one-3".hex() in line for line in lines)


def test_dump_into_a_pipe_that_closes_is_quiet(filled: str) -> None:
    command = f"{sys.executable} -m kvstore dump {filled} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout.split()[0] == "space"
    assert done.stderr == ""


# ---- what all verbs share ----

ANY_VERB = ["info PATH", "check PATH", "dump PATH --json", "--help", "info /nowhere --json"]


def run_in_shell(arguments: str, path: str, redirection: str) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m kvstore {arguments.replace('PATH', path)} {redirection}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("arguments", [verb for verb in ANY_VERB if verb != "--help"])  # argparse hides it
def test_an_output_that_cannot_be_written_is_an_error_of_one_line(filled: str, arguments: str) -> None:
    done = run_in_shell(arguments, filled, ">/dev/full")
    assert (done.returncode, done.stderr) == (3, "error: standard output: No space left on device\n")


@pytest.mark.parametrize("arguments", ANY_VERB)
@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_stream_that_is_closed_changes_nothing(filled: str, arguments: str, redirection: str) -> None:
    expected = run_in_shell(arguments, filled, "")
    done = run_in_shell(arguments, filled, redirection)
    assert done.returncode == expected.returncode
    assert done.stderr in ("", expected.stderr)


@pytest.mark.parametrize("arguments", ANY_VERB)
def test_a_reader_that_went_away_is_no_finding(filled: str, arguments: str) -> None:
    done = run_in_shell(arguments, filled, "| true")
    assert done.returncode in (0, 2, 130)
    assert done.stderr == ""


def test_a_limit_beyond_any_number_is_no_limit(run: Run, filled: str) -> None:
    status, output = run("dump", filled, "--limit", 10**30, "--json")
    assert (status, len(output.splitlines())) == (0, 10)


def test_a_size_of_nothing_is_refused_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["format", str(tmp_path / "new.img"), "--size", "0"]) == 2
    assert "size is 0: a store needs more than 33 MiB" in capsys.readouterr().err
    assert not (tmp_path / "new.img").exists()


@pytest.mark.parametrize("verb", ["info", "check", "dump"])
def test_no_store_is_refused_with_the_reason(run: Run, verb: str, tmp_path: Path) -> None:
    path = tmp_path / "zeros"
    path.write_bytes(bytes(MIB))
    status, output = run(verb, path, "--json")
    error = json.loads(output)["error"]
    assert (status, error["code"]) == (2, "not_found")
    assert str(path) in error["message"]


@pytest.mark.parametrize("verb", ["info", "check", "dump"])
def test_a_missing_path_is_device_trouble(run: Run, verb: str, tmp_path: Path) -> None:
    assert run(verb, tmp_path / "none")[0] == 3


def test_a_destroyed_store_is_found_bad(run: Run, filled: str) -> None:
    with kvstore.open(filled, read_only=True) as pool:
        size = pool.superblocks()[0]["geometry"]["device_bytes"]
    with open(filled, "r+b") as file:
        for offset in (0, 8 * MIB, 24 * MIB, size - 4096):
            file.seek(offset + 100)
            file.write(b"\xff" * 8)
    status, output = run("info", filled, "--json")
    assert (status, json.loads(output)["error"]["code"]) == (1, "corrupt")


def test_writing_to_a_pool_in_use_is_refused_and_names_the_holder(run: Run, filled: str, python: Any) -> None:
    child = python("import kvstore, sys\nwith kvstore.open(sys.argv[1]):\n print('open', flush=True); input()", filled)
    try:
        assert child.stdout.readline() == "open\n"
        for verb in (["format", filled, "--force"], ["check", filled, "--repair"]):
            status, output = run(*verb, "--json")
            error = json.loads(output)["error"]
            assert (status, error["code"]) == (2, "busy")
            assert str(child.pid) in error["message"]
    finally:
        child.communicate("\n", timeout=30)


@pytest.mark.parametrize("arguments", [["--help"], ["format", "--help"], ["check", "--help"], ["--version"]])
def test_help_and_version_end_well(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 0
    output = capsys.readouterr().out
    assert "exit status" in output or kvstore.__version__ in output


def test_the_module_runs_as_a_program(filled: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvstore", "info", filled, "--json"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["blocks"] == 10
