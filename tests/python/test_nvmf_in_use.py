# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Who uses a device. Method: files in the place of devices, and processes that really have them open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.nvmf import in_use
from kvstore.nvmf.in_use import holder_of

BYTES = 256 << 20


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    path = tmp_path / "drive"
    path.touch()
    os.truncate(path, BYTES)
    return path


def test_a_process_that_only_has_it_open_uses_it(drive: Path) -> None:
    code = "import sys; file = open(sys.argv[1], 'rb'); print('open', flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, str(drive)], stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        assert holder_of(str(drive), 0).startswith(f"process {child.pid} ({sys.executable} -c ")
        child.communicate()
    assert holder_of(str(drive)) == ""


def test_what_cannot_be_told_is_not_free(tmp_path: Path) -> None:
    assert holder_of(str(tmp_path / "gone")) == "whether anybody uses it cannot be told (No such file or directory)"


def test_what_is_too_small_for_a_pool_is_free_all_the_same(drive: Path) -> None:
    os.truncate(drive, 4096)
    assert holder_of(str(drive)) == ""


def test_whoever_has_a_partition_open_has_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("nvme9n1p1", "259:7"), ("queue", "9:9")):
        (tmp_path / "259:5" / name).mkdir(parents=True)
        (tmp_path / "259:5" / name / "dev").write_text(f"{number}\n")
    (tmp_path / "259:5/nvme9n1p1/partition").write_text("1\n")
    monkeypatch.setattr(in_use, "_DEVICES", tmp_path)
    block = os.stat_result((0o060600, 1, 2, 1, 0, 0, 0, 0, 0, 0), {"st_rdev": os.makedev(259, 5)})
    assert in_use._identities(block) == {("device", 259, 5), ("device", 259, 7)}
