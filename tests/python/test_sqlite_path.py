# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: all openers of a pool on a host come to one SQLite file, without being told which, or to none.

Method: real files, links and folders, and loop devices.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from python_support import IDENTITY
from test_process import in_child

import kvstore
from kvstore.cluster import Put, default_sqlite_path, file_of_url, open_engine
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


@pytest.fixture
def device(loop_device, tmp_path, monkeypatch):
    """A block device that has no file behind it, as far as can be seen."""
    (tmp_path / "sys").mkdir()
    monkeypatch.setattr("kvstore.cluster.sqlite_path._SYSFS", tmp_path / "sys")
    return loop_device


@pytest.fixture
def attach():
    """Return a function that puts a loop device over a file or device."""
    if os.geteuid() != 0:
        pytest.skip("loop devices need root")
    if shutil.which("losetup") is None:
        pytest.skip("losetup is missing: install util-linux")
    attached = []

    def make(path):
        if Path(path).is_file() and Path(path).stat().st_size == 0:
            os.truncate(path, 1 << 20)
        done = subprocess.run(["losetup", "--find", "--show", "--direct-io=on", path], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"no loop device here: {done.stderr.strip()}")
        attached.append(done.stdout.strip())
        return attached[-1]

    yield make
    for name in reversed(attached):
        subprocess.run(["losetup", "--detach", name], check=True)


def test_of_a_device_it_is_in_the_state_folder_by_uuid(device, images, tmp_path, monkeypatch):
    folder = tmp_path / "made" / "state"
    monkeypatch.setenv("KVSTORE_STATE_DIR", str(folder))
    wanted = str(folder / f"{UUID}.sqlite")
    assert default_sqlite_path([device], UUID, make_folder=False) == wanted
    assert not folder.exists()
    assert default_sqlite_path([device], UUID) == wanted
    assert default_sqlite_path([images[0], device], UUID) == wanted
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_of_a_loop_device_it_is_that_of_the_file_behind_it(attach, images, tmp_path):
    wanted = images[0] + ".sqlite"
    (tmp_path / "link").symlink_to(images[0])
    over_link = attach(str(tmp_path / "link"))
    for path in (over_link, attach(images[0]), attach(over_link)):
        assert default_sqlite_path([path], UUID) == wanted
    assert default_sqlite_path([over_link, images[1]], UUID) == wanted


def test_openers_of_a_loop_device_and_of_its_file_find_each_other(attach, pool_path):
    with (
        kvstore.open(attach(pool_path), mode="shared", lease_s=2) as of_device,
        kvstore.open(pool_path, mode="shared", lease_s=2) as of_file,
    ):
        assert of_device.space(**IDENTITY).put(b"key", b"value", durable=True)
        of_file.refresh(10)
        assert of_file.space(**IDENTITY).get(b"key", bytearray(5)) == 5
        assert of_file.stats()["openers"] == 2


def test_a_loop_device_whose_file_has_not_that_name_any_more_has_none(attach, images):
    device = attach(images[0])
    Path(images[0]).rename(images[0] + ".moved")
    assert default_sqlite_path([device], UUID) == images[0] + ".moved.sqlite"
    mended = r'give all openers the same engine="sqlite:/absolute/path"$'
    Path(images[0] + ".moved").unlink()
    with pytest.raises(
        ConfigError, match=rf"^{device} is a loop device of the deleted file {images[0]}.moved, .*{mended}"
    ):
        default_sqlite_path([device], UUID)


def test_a_loop_device_whose_file_is_another_one_here_has_none(attach, images, tmp_path, monkeypatch):
    device = attach(images[0])
    number = Path(device).stat().st_rdev
    said = tmp_path / "sys" / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}" / "loop"
    said.mkdir(parents=True)
    (said / "backing_file").write_text(images[1] + "\n")  # as sysfs says it in another mount namespace
    monkeypatch.setattr("kvstore.cluster.sqlite_path._SYSFS", tmp_path / "sys")
    with pytest.raises(ConfigError, match=f"{images[1]}, a file that does not bear this name here"):
        default_sqlite_path([device], UUID)


@pytest.mark.parametrize("name", ["pool.img", "pool-link"])
def test_an_image_with_two_names_has_none_for_either(images, tmp_path, name):
    image = tmp_path / "pool.img"
    os.link(images[0], image)
    (tmp_path / "pool-link").symlink_to(image)
    mended = r'give all openers the same engine="sqlite:/absolute/path"'
    for path in (images[0], str(tmp_path / name)):
        with pytest.raises(ConfigError, match=f"has 2 hard links.*{mended}"):
            default_sqlite_path([path], UUID)
    image.unlink()
    assert default_sqlite_path([images[0]], UUID) == images[0] + ".sqlite"


def test_an_image_that_is_mounted_without_its_folder_has_none(images, tmp_path, monkeypatch):
    mounts = tmp_path / "mounts"
    monkeypatch.setattr("kvstore.cluster.sqlite_path._MOUNTS", mounts)
    image = tmp_path / "a pool.img"
    image.touch()
    mounts.write_text(
        f"36 35 98:0 / / rw - ext4 /dev/vda rw\n37 36 98:0 /x {tmp_path}/a\\040pool.img rw - ext4 /dev/vda rw\n"
    )
    with pytest.raises(ConfigError, match=r"is a mount by itself.*or mount its folder"):
        default_sqlite_path([str(image)], UUID)
    assert default_sqlite_path([images[0]], UUID) == images[0] + ".sqlite"


def test_the_state_folder_depends_on_who_asks(device, tmp_path, monkeypatch, no_state_folder):
    made = []
    monkeypatch.setattr(Path, "mkdir", lambda self, **unused: made.append(str(self)))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_sqlite_path([device], UUID) == f"/var/lib/kvstore/{UUID}.sqlite"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    assert default_sqlite_path([device], UUID) == f"{home}/.local/state/kvstore/{UUID}.sqlite"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_sqlite_path([device], UUID) == f"{tmp_path}/kvstore/{UUID}.sqlite"
    assert made == ["/var/lib/kvstore", f"{home}/.local/state/kvstore", f"{tmp_path}/kvstore"]


def test_a_state_folder_that_depends_on_the_current_directory_is_none(device, tmp_path, monkeypatch, no_state_folder):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    wanted = f"{tmp_path}/.local/state/kvstore/{UUID}.sqlite"
    assert default_sqlite_path([device], UUID, make_folder=False) == wanted
    monkeypatch.setenv("KVSTORE_STATE_DIR", "state")
    with pytest.raises(ConfigError, match="KVSTORE_STATE_DIR is 'state': write an absolute path"):
        default_sqlite_path([device], UUID)


def test_a_state_folder_that_cannot_be_made_says_what_to_set(device, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVSTORE_STATE_DIR", str(tmp_path / "file" / "state"))
    with pytest.raises(EngineError, match=r"file/state.*: Not a directory; set KVSTORE_STATE_DIR"):
        default_sqlite_path([device], UUID)


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


@pytest.mark.parametrize(
    "rest",
    [
        "?timeout=5", ":memory:", " ", "\0", "file:foo?mode=memory", "pool.sqlite", "./pool.sqlite", "~/pool.sqlite",
        "//pool.sqlite", "/pool.sqlite?mode=ro", "/pool\0", " /pool.sqlite", "/pool.sqlite\n", "/\udcff",
    ],
)  # fmt: skip
def test_a_url_that_would_name_another_file_for_each_opener_is_refused_and_makes_none(rest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^engine 'sqlite:.*; write sqlite: alone, or sqlite:/"):
        open_engine(f"sqlite:{rest}", default_path=lambda: str(tmp_path / "default.sqlite"))
    assert list(tmp_path.iterdir()) == []


def test_a_url_names_the_default_file_an_absolute_path_or_another_engine():
    assert file_of_url("sqlite:", lambda: "/default") == "/default"
    assert file_of_url("sqlite:/var/lib/x.db") == "/var/lib/x.db"
    assert file_of_url("sqlite:///var/lib/x.db") == "///var/lib/x.db"
    assert file_of_url("etcd://host:2379") is None
    for url in ("sqlite", "sqlite:"):
        with pytest.raises(ConfigError, match="write sqlite: alone, or"):
            file_of_url(url)
