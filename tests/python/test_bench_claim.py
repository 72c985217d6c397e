# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Whoever works at a place is left alone: stores that are open, other runs, what is no place at all; and a run that is
killed leaves nobody at work.

Method: places in a temporary folder; another process, or this one, is there already.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench_support import bench

import kvstore
from kvstore.bench.claim import Claims
from kvstore.bench.engines import processes
from kvstore.bench.places import device_bytes, loop_on_memory, refuse_data, remove
from kvstore.cli import main
from kvstore.errors import BusyError, ConfigError

MIB = 1 << 20


@pytest.mark.parametrize("engine", ["kvstore", "preadv"])
def test_a_pool_in_use_is_refused_whatever_the_user_allows(
    tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = str(tmp_path / "pool.img"), bytearray(5)
    kvstore.format(path, size="64MiB")
    with kvstore.open(path) as pool:
        space = pool.space(engine="mine")
        space.put(b"key", b"block", durable=True)
        run = ["bench", "--eta=never", f"--engine={engine}", f"--filename={path}", "--rw=get", "--size=1m"]
        assert main([*run, "--overwrite=1"]) == 2
        assert "is in use" in capsys.readouterr().err
        assert (space.get(b"key", out), out) == (5, b"block")


def test_places_of_a_run_are_refused_to_others_also_before_they_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, link = tmp_path / "new.img", tmp_path / "link.img"
    link.symlink_to(path)
    with Claims() as run:
        run.take(path)
        run.take(link)  # its own
        assert main(["bench", "--eta=never", f"--filename={link}", "--rw=get"]) == 2
        assert "another benchmark" in capsys.readouterr().err
        assert main(["bench", "order", "--engine=preadv", f"--filename={tmp_path}/other.img,{path}"]) == 2
        assert "another benchmark" in capsys.readouterr().err
        assert not path.exists()


def test_a_pipe_is_no_place(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match="neither a file, a folder nor a block device"):
            refuse_data(tmp_path / "pipe", overwrite=overwrite)


def test_what_a_link_leads_to_is_removed_when_the_run_made_it(tmp_path: Path) -> None:
    (tmp_path / "link.img").symlink_to(tmp_path / "made.img")
    bench(tmp_path, f"--filename={tmp_path}/link.img", "--rw=get")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".img"] == ["link.img"]
    remove(tmp_path / "nothing")


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing: apt-get install util-linux")
def test_a_program_ends_with_a_run_that_is_killed() -> None:
    code = """if True:
        import sys
        from kvstore.bench.engines.processes import start
        child = start([sys.executable, "-c", "print('up', flush=True); input()"], stdin=-1)
        child.wait()"""
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "up\n"
    run.send_signal(signal.SIGKILL)
    assert run.stdout.read() == ""  # nobody has it open: the program is gone, too
    run.wait()
    run.stdout.close()


def test_a_program_bears_its_own_name() -> None:
    process = processes.start(["true"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert processes.outcome(process, 60) == ("", "")
    assert process.args == ["true"]


@pytest.mark.root
def test_a_killed_run_leaves_no_memory_and_no_device() -> None:
    if os.geteuid() or shutil.which("losetup") is None:
        pytest.skip("needs root and a loop device")
    with loop_on_memory(16 * MIB) as device:
        assert device_bytes(device) == 16 * MIB
        backing = Path("/sys/block", Path(device).name, "loop", "backing_file").read_text().strip()
        assert backing.endswith("(deleted)")
        assert Path("/sys/block", Path(device).name, "loop", "autoclear").read_text().strip() == "1"


def test_a_claim_ends_with_its_run(tmp_path: Path) -> None:
    with Claims() as other:
        with Claims() as run:
            run.take(tmp_path)
            with pytest.raises(BusyError):
                other.take(tmp_path)
        other.take(tmp_path)
