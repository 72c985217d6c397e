# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Which drives a target exports: none that is somebody's, and none under a name that leads elsewhere tomorrow.

Method: files as drives, which plan_format looks at as at drives.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import kvstore
from kvstore.errors import ForeignDataError
from kvstore.nvmf.drives import check_drive
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
