# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Places of a benchmark that are files: written whole before anybody is measured, and kept so.

Method: files in a temporary folder; what an engine finds is looked at when it is opened.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from bench_support import MemoryEngine, bench, one_job

from kvstore.bench import places
from kvstore.bench.engines.base import Work
from kvstore.bench.places import loop_on_memory, write_zeros
from kvstore.cli import main
from kvstore.errors import ConfigError

MIB = 1 << 20


class Looking(MemoryEngine):
    """Notes what is at its path when it is opened."""

    found: tuple[os.stat_result, bool]

    def open(self, work: Work) -> None:
        super().open(work)
        path = Path(work.paths[0])
        self.found = path.stat(), any(path.read_bytes())


@pytest.mark.parametrize("rw", ["put", "get"])
def test_the_file_is_written_whole_before_the_engine_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rw: str
) -> None:
    engine = Looking()
    monkeypatch.setattr("kvstore.bench.contender.make_engine", lambda name: engine)
    one_job(tmp_path, f"--rw={rw}", "--capacity=9m")
    found, dirty = engine.found
    assert (found.st_size, dirty) == (9 * MIB, False)
    assert found.st_blocks * 512 >= 9 * MIB
    assert not (tmp_path / "bench.img").exists()  # unlink=1


@pytest.mark.parametrize("engine", ["kvstore", "preadv", "fio"])
def test_engines_keep_the_file_that_was_written(tmp_path: Path, engine: str) -> None:
    if engine == "fio" and shutil.which("fio") is None:
        pytest.skip("fio is missing: apt-get install fio")
    image = tmp_path / "bench.img"
    list(write_zeros(image, 160 * MIB))
    before = image.stat()
    for job in bench(tmp_path, f"--engine={engine}", "--overwrite=1", "--name=a", "--rw=put", "--name=b",
                     "--rw=get")["jobs"]:  # fmt: skip
        assert (job["error"], job["kvbench"]["wrong"], job["kvbench"]["misses"]) == (0, 0, 0)
    after = image.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert after.st_blocks >= before.st_blocks


def test_a_file_has_every_byte_of_its_size_written(tmp_path: Path) -> None:
    image = tmp_path / "a.img"
    image.write_bytes(b"x" * 12_345)
    assert sum(write_zeros(image, 9 * MIB + 5)) >= 9 * MIB + 5
    assert (image.stat().st_size, any(image.read_bytes())) == (9 * MIB + 5, False)
    image.write_bytes(b"x" * 12_345)  # larger than is asked for
    list(write_zeros(image, 1))
    assert image.read_bytes() == bytes(12_345)


def test_a_device_that_is_not_there_does_not_become_a_file() -> None:
    with pytest.raises(RuntimeError, match="there is no device"):
        list(write_zeros("/dev/kvstore-is-no-device", MIB))
    assert not Path("/dev/kvstore-is-no-device").exists()


def test_a_place_without_room_is_its_engines_result_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    jobs = bench(tmp_path, "--engine=kvstore,preadv", f"--filename={tmp_path}/none/a.img,{tmp_path}/a/b.img",
                 status=1)["jobs"]  # fmt: skip
    assert "No such file or directory" in jobs[0]["kvbench"]["failed"]
    assert jobs[1]["error"] == 0


def test_more_memory_than_is_free_is_refused_before_any_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Nothing of it is made, whatever the code does: such a size would take the machine down.
    monkeypatch.setattr(places, "_free_memory", lambda: 100 * MIB)
    monkeypatch.setattr(places, "run", lambda *command: pytest.fail(f"{command} was run"))
    with (
        pytest.raises(ConfigError, match="104,857,600 bytes of memory free in"),
        loop_on_memory(1 << 50),
    ):
        pytest.fail("it was made")
    assert main(["bench", "--eta=never", "--filename=ram", "--engine=kvstore,preadv", "--size=1024t"]) == 2
    assert "bytes of memory free in /dev/shm" in capsys.readouterr().err


def test_a_command_that_fails_is_told_with_what_it_said() -> None:
    with pytest.raises(ConfigError, match="No space left on device"):
        places.run("dd", "if=/dev/zero", "of=/dev/full", "bs=4096", "count=1")
    with pytest.raises(ConfigError, match="kvstore-has-no-such-program cannot be run"):
        places.run("kvstore-has-no-such-program")
