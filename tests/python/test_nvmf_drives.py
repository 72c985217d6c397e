# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Which drives a target exports: none that is somebody's, and none under a name that leads elsewhere tomorrow.

Method: files as drives, which plan_format looks at as at drives.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvmf_support import FakeConfigfs

import kvstore
from kvstore.errors import BusyError, ConfigError, ForeignDataError
from kvstore.nvmf.drives import check_drive, drive_identity, lasting_name, refuse_exported
from kvstore.nvmf.held import HeldDrive
from kvstore.nvmf.spec import Namespace

BYTES = 48 << 20


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    path = tmp_path / "drive"
    path.open("wb").truncate(BYTES)
    return path


def namespace(drive: Path) -> Namespace:
    return Namespace(1, str(drive), "00000001-0000-4000-8000-000000000000", f"{1:032x}")


def write(drive: Path, at: int, data: bytes) -> None:
    with drive.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_blank_drives_and_pools_pass(drive: Path) -> None:
    check_drive(namespace(drive), ())
    kvstore.format(drive, region_bytes="1MiB")
    check_drive(namespace(drive), ())


@pytest.mark.parametrize(
    ("at", "magic"),
    [(0, b"XFSB"), (512, b"LABELONE" + bytes(16) + b"LVM2 001"), (512, b"EFI PART"), (1080, b"\x53\xef")],
    ids=["xfs", "lvm", "gpt", "ext4"],
)  # fmt: skip
def test_what_was_made_on_a_drive_of_a_former_pool_is_not_exported(drive: Path, at: int, magic: bytes) -> None:
    kvstore.format(drive, region_bytes="1MiB")
    write(drive, 0, bytes(1 << 20))
    check_drive(namespace(drive), ())  # a pool still: its other superblocks are a quorum
    write(drive, at, magic)
    with pytest.raises(ForeignDataError, match=r"hosts would overwrite it\. If that may go: --force"):
        check_drive(namespace(drive), ())
    check_drive(namespace(drive), (str(drive),))


def test_a_held_drive_cannot_be_taken_and_is_free_afterwards(loop_device: str) -> None:
    def take() -> None:
        os.close(os.open(loop_device, os.O_RDONLY | os.O_EXCL))

    with HeldDrive(loop_device) as held:
        held.check_name()
        os.close(os.open(loop_device, os.O_RDWR))  # without a holder, as nvmet opens it
        with pytest.raises(OSError, match="busy"):
            take()
        with pytest.raises(BusyError, match="was free and is not any more"):
            HeldDrive(loop_device)
    take()


def test_a_name_of_this_boot_is_refused_where_the_drive_has_one_that_stays(
    drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = drive.parent
    assert lasting_name(str(drive), dev) == ""  # no udev here, as in a guest
    by_id = dev / "disk/by-id"
    by_id.mkdir(parents=True)
    (by_id / "nvme-OTHER").symlink_to("../../other")
    assert lasting_name(str(drive), dev) == ""
    for name in ("dm-name-x", "nvme-MODEL_SERIAL"):
        (by_id / name).symlink_to("../../drive")
    (dev / "own-rule").symlink_to("drive")
    assert lasting_name(str(by_id / "dm-name-x"), dev) == lasting_name(str(dev / "own-rule"), dev) == ""
    monkeypatch.setattr("kvstore.nvmf.drives.lasting_name", lambda path: lasting_name(path, dev))
    with pytest.raises(ConfigError, match=r"after the next boot: write .*/by-id/nvme-MODEL_SERIAL in the file"):
        check_drive(namespace(drive), (str(drive),))


THEIRS = "nqn.2020-01.org.other:x"


def exporting(device: str, *, passthru: bool = False) -> FakeConfigfs:
    """Somebody else's subsystem, with this device."""
    tree = FakeConfigfs()
    tree.mkdir(f"subsystems/{THEIRS}")
    part = f"subsystems/{THEIRS}/passthru" if passthru else f"subsystems/{THEIRS}/namespaces/1"
    if not passthru:
        tree.mkdir(part)
    tree.nodes |= {f"{part}/device_path": device, f"{part}/enable": "1"}
    return tree


def test_a_drive_that_somebody_elses_subsystem_exports_is_refused_by_whatever_name(drive: Path) -> None:
    other = drive.with_name("by-another-name")
    os.link(drive, other)
    tree = exporting(str(other))
    with pytest.raises(BusyError, match=f"subsystem {THEIRS} exports .*drive already"):
        refuse_exported([namespace(drive)], tree, ())
    refuse_exported([namespace(drive)], tree, (THEIRS,))
    tree.nodes[f"subsystems/{THEIRS}/namespaces/1/enable"] = "0"
    refuse_exported([namespace(drive)], tree, ())


@pytest.fixture
def sys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Controllers nvme0 and nvme1, the second one with multipath, each with a drive of two partitions."""
    sys = tmp_path / "sys"
    modes = {}
    for major, kind, name, folder in [
        (1, "char", "nvme0", "devices/nvme0"),
        (2, "block", "nvme0n1", "devices/nvme0/nvme0n1"),
        (3, "block", "nvme0n1p1", "devices/nvme0/nvme0n1/nvme0n1p1"),
        (4, "block", "nvme0n1p2", "devices/nvme0/nvme0n1/nvme0n1p2"),
        (5, "char", "nvme1", "devices/nvme1"),
        (6, "block", "nvme1n1", "devices/virtual/nvme1n1"),
        (7, "block", "nvme1n1p1", "devices/virtual/nvme1n1/nvme1n1p1"),
    ]:
        (sys / folder).mkdir(parents=True)
        for link in (sys / "dev" / kind / f"{major}:0", sys / "class/block" / name):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(sys / folder)
        if "p" in name:
            (sys / folder / "partition").touch()
        mode = stat.S_IFBLK if kind == "block" else stat.S_IFCHR
        modes[f"/dev/{name}"] = SimpleNamespace(st_mode=mode, st_rdev=os.makedev(major, 0))
    (sys / "devices/nvme1/nvme1c1n1").mkdir()
    real = os.stat
    monkeypatch.setattr("kvstore.nvmf.drives.os.stat", lambda path, **more: modes.get(str(path)) or real(path, **more))
    return sys


def test_a_drive_that_the_kernel_gave_up_is_not_what_it_was(sys: Path) -> None:
    size = sys / "devices/nvme0/nvme0n1/size"
    told = []
    for sectors in (2000, 0):
        size.write_text(f"{sectors}\n")
        told.append(drive_identity("/dev/nvme0n1", sys))
    size.unlink()
    assert [*told, drive_identity("/dev/nvme0n1", sys)] == ["2:0 of 2000 sectors", "2:0 of 0 sectors", ""]


@pytest.mark.parametrize(
    ("mine", "other", "is_refused"),
    [
        ("nvme0n1", "nvme0n1", True),
        ("nvme0n1", "nvme0n1p1", True),
        ("nvme0n1p1", "nvme0n1", True),
        ("nvme0n1p1", "nvme0n1p2", False),
        ("nvme0n1p1", "nvme0", True),
        ("nvme0n1", "nvme1", False),
        ("nvme1n1", "nvme1", True),
        ("nvme1n1p1", "nvme1", True),
        ("nvme1n1", "nvme0n1", False),
    ],
)
def test_a_drive_is_refused_with_what_is_in_it_and_what_it_is_in(
    sys: Path, mine: str, other: str, is_refused: bool
) -> None:
    tree = exporting(f"/dev/{other}", passthru="n" not in other[4:])
    if not is_refused:
        refuse_exported([namespace(Path("/dev", mine))], tree, (), sys)
        return
    with pytest.raises(BusyError, match=f"as /dev/{other}, and"):
        refuse_exported([namespace(Path("/dev", mine))], tree, (), sys)
