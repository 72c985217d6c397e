# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: all openers of a pool on a host come to one SQLite file, without being told which.

Method: real files and folders, and a loop device.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from test_process import in_child

from kvstore.cluster import Put, default_sqlite_path, open_engine
from kvstore.errors import ConfigError, EngineError
from kvstore.testing import SimDisk

UUID = "12345678-1234-5678-1234-567812345678"


@pytest.fixture
def images(tmp_path):
    paths = [tmp_path / "b" / "pool-0.img", tmp_path / "a" / "pool-1.img"]
    for path in paths:
        path.parent.mkdir()
        path.touch()
    return [str(path) for path in paths]


@pytest.fixture
def no_state_folder(monkeypatch):
    monkeypatch.delenv("KVSTORE_STATE_DIR", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


def test_it_is_beside_the_image_however_that_is_named(images, tmp_path, monkeypatch):
    wanted = images[0] + ".sqlite"
    (tmp_path / "link").symlink_to(images[0])
    monkeypatch.chdir(tmp_path / "b")
    for path in (images[0], "pool-0.img", "../b/./pool-0.img", str(tmp_path / "link")):
        assert default_sqlite_path([path], UUID) == wanted


def test_of_several_images_it_is_beside_the_same_in_any_order(images):
    wanted = images[0] + ".sqlite"
    assert default_sqlite_path(images, UUID) == default_sqlite_path(images[::-1], UUID) == wanted


def test_of_a_device_it_is_in_the_state_folder_by_uuid(loop_device, images, tmp_path, monkeypatch):
    folder = tmp_path / "made" / "state"
    monkeypatch.setenv("KVSTORE_STATE_DIR", str(folder))
    wanted = str(folder / f"{UUID}.sqlite")
    assert default_sqlite_path([loop_device], UUID) == wanted
    assert default_sqlite_path([images[0], loop_device], UUID) == wanted
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_state_folder_depends_on_who_asks(loop_device, tmp_path, monkeypatch, no_state_folder):
    made = []
    monkeypatch.setattr(Path, "mkdir", lambda self, **unused: made.append(str(self)))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_sqlite_path([loop_device], UUID) == f"/var/lib/kvstore/{UUID}.sqlite"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    assert default_sqlite_path([loop_device], UUID) == f"{home}/.local/state/kvstore/{UUID}.sqlite"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_sqlite_path([loop_device], UUID) == f"{tmp_path}/kvstore/{UUID}.sqlite"
    assert made == ["/var/lib/kvstore", f"{home}/.local/state/kvstore", f"{tmp_path}/kvstore"]


def test_a_state_folder_that_cannot_be_made_says_what_to_set(loop_device, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVSTORE_STATE_DIR", str(tmp_path / "file" / "state"))
    with pytest.raises(EngineError, match=r"file/state.*: Not a directory; set KVSTORE_STATE_DIR"):
        default_sqlite_path([loop_device], UUID)


def test_what_is_neither_a_file_nor_a_device_has_none(tmp_path):
    for path in (str(tmp_path), str(tmp_path / "not there"), "/dev/null", SimDisk("128MiB").path):
        with pytest.raises(ConfigError, match="write sqlite:/path/to/file"):
            default_sqlite_path([path], UUID)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_url_without_a_path_opens_it_for_its_user_only(images):
    def use() -> None:
        os.umask(0)
        engine = open_engine("sqlite:", default_path=lambda: default_sqlite_path(images, UUID))
        engine.txn([], [Put("a", b"")])
        for end in ("", "-wal", "-shm"):
            assert stat.S_IMODE(Path(images[0] + ".sqlite" + end).stat().st_mode) == 0o600

    assert in_child(use) == 0
    engine = open_engine(f"sqlite:{images[0]}.sqlite")
    assert [item.key for item in engine.range("").items] == ["a"]
    engine.close()
