# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""nvmf-setup's keys, and what runs at a boot: taken only from files that nobody else can read or replace.

Method: files of a temporary folder, whose modes are changed; another owner is another user that asks.
"""

from __future__ import annotations

import base64
import binascii
import os
import sys
from pathlib import Path

import pytest

from kvstore.errors import ConfigError
from kvstore.nvmf.keys import read_key
from kvstore.nvmf.persist import default_program
from kvstore.nvmf.steps import Step

KEY = bytes(range(32))
TEXT = f"DHHC-1:00:{base64.b64encode(KEY + binascii.crc32(KEY).to_bytes(4, 'little')).decode()}:"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A file that is as it should be."""
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o755)
    file = folder / "decode1.key"
    file.write_text(TEXT + "\n")
    file.chmod(0o600)
    return file


def be_another_user(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Who runs this is neither root nor the owner of the file."""
    status = os.stat_result([*file.stat()[:4], 12345, *file.stat()[5:10]])
    fstat, lstat = os.fstat, Path.lstat
    inode = file.stat().st_ino
    monkeypatch.setattr(os, "fstat", lambda fd: status if fstat(fd).st_ino == inode else fstat(fd))
    monkeypatch.setattr(Path, "lstat", lambda path: status if lstat(path).st_ino == inode else lstat(path))


def test_a_key_that_only_its_owner_can_read_is_taken_also_by_a_link(key: Path) -> None:
    link = key.with_name("link")
    link.symlink_to(key)
    assert read_key(str(key)) == read_key(str(link)) == TEXT


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_key_that_others_can_read_or_write_is_refused(key: Path, mode: int) -> None:
    key.chmod(mode)
    with pytest.raises(ConfigError, match="can be read by others: chmod 600"):
        read_key(str(key))


def test_a_key_of_another_user_is_refused(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be_another_user(monkeypatch, key)
    with pytest.raises(ConfigError, match=r"decode1\.key can be replaced by others, who own or may write .*1\.key:"):
        read_key(str(key))


def test_a_key_in_a_folder_that_others_can_write_is_refused_and_one_as_tmp_is_not(key: Path) -> None:
    key.parent.chmod(0o777)
    with pytest.raises(ConfigError, match=rf"can be replaced by others, who own or may write {key.parent}:"):
        read_key(str(key))
    key.parent.chmod(0o1777)
    assert read_key(str(key)) == TEXT


def test_a_fifo_is_no_key_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(ConfigError, match=r"holds no key: make one with \(umask 077; nvme gen-dhchap-key > "):
        read_key(str(tmp_path / "fifo"))


def test_a_program_that_others_can_replace_is_not_run_at_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "venv/bin/nvmf-setup"
    script.parent.mkdir(parents=True)
    script.write_text("")
    script.parent.parent.chmod(0o777)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    monkeypatch.setattr("kvstore.__file__", str(script))
    with pytest.raises(ConfigError, match=rf"and others own or may write {script.parent.parent}:.*--program"):
        default_program()
    script.parent.parent.chmod(0o755)
    assert default_program() == f"/bin/sh {script}"


def test_no_text_of_a_step_holds_what_it_writes() -> None:
    assert TEXT not in repr(Step("write", "hosts/a/dhchap_key", TEXT, (Step("write", "a", TEXT),), is_secret=True))
