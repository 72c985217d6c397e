# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""kvstore doctor: every check, on machines that are well and on machines that are not.

Method: a check gets a `Machine` whose root is a folder written here, and whose answers are set here; one row of the
table below is one machine. The last test says that no check of the doctor's tables is without rows of both kinds.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore import doctor
from kvstore.cli import main
from kvstore.doctor import Finding, Machine, Target, device, software, system
from kvstore.doctor.machine import find_target
from kvstore.errors import BusyError, ConfigError, DeviceError, FormatError

NVME = Target("/dev/nvme0n1", is_block=True, device="259:0")
BY_ID = Target("/dev/disk/by-id/nvme-eui.0025", is_block=True, device="259:0")
PARTITION = Target("/dev/nvme0n1p1", is_block=True, device="259:1")
FILE = Target("/srv/pool.img", False, "259:0", size_bytes=10 << 30, allocated_bytes=4 << 30, free_bytes=20 << 30)
DISK = "/sys/devices/nvme0n1"
QUEUE = {
    "scheduler": "[none] mq-deadline",
    "write_cache": "write through",
    "max_sectors_kb": "1280",
    "max_hw_sectors_kb": "4096",
    "logical_block_size": "512",
    "physical_block_size": "4096",
}


def queue(**settings: str) -> dict[str, str]:
    """The sysfs of an NVMe drive with one partition, its settings those of a good one but for ``settings``."""
    files = {f"{DISK}/queue/{name}": value for name, value in {**QUEUE, **settings}.items()}
    return {**files, f"{DISK}/nvme0n1p1/partition": "1", f"{DISK}/nvme0n1p1/start": "2048"}


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: object) -> None:
        raise error

    return call


def mountinfo(kind: str) -> dict[str, str]:
    return {"/proc/self/mountinfo": f"29 1 259:0 / /srv rw,relatime shared:1 - {kind} /dev/nvme0n1 rw"}


def limits(locked: str) -> dict[str, str]:
    return {"/proc/self/limits": f"Max locked memory         {locked}              {locked}              bytes"}


def versions(**installed: str) -> dict[str, Any]:
    return {"package_version": lambda name: installed.get(name.replace("-", "_"))}


def loader(*libraries: str) -> dict[str, Any]:
    lines = [f"\t{Path(library).name} (libc6,x86-64) => {library}" for library in libraries]
    return {"loader_cache": lambda: "\n".join(lines), "python_path": []}


def stats(**numbers: Any) -> dict[str, Any]:
    known = {"device_kind": "uring", "checksum_engine": "avx2", "blocks": 7, "recovery_seconds": 0.01, **numbers}
    return {"open_stats": lambda _: known}


@dataclasses.dataclass(frozen=True)
class Row:
    """One machine: the check, what is looked at, files, answers, and what it is to say."""

    check: Callable[..., Finding]
    level: str
    says: str
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    answers: dict[str, Any] = dataclasses.field(default_factory=dict)
    target: Any = None
    mend: str = ""


DRIVER = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module  580.95.05",
    "/dev/nvidiactl": "",
}
CUFILE = "/usr/lib/libcufile.so.0"
CUDA = "/usr/lib/libcuda.so.1"

ROWS = [
    Row(system.check_kernel, "ok", "6.8.0-45", {"/proc/sys/kernel/osrelease": "6.8.0-45-generic"}),
    Row(system.check_kernel, "warn", "DEFER_TASKRUN", {"/proc/sys/kernel/osrelease": "5.15.0-1"}, mend="6.1"),
    Row(system.check_kernel, "fail", "too old", {"/proc/sys/kernel/osrelease": "4.18.0-553.el8"}, mend="6.1"),
    Row(system.check_kernel, "fail", "unknown"),
    Row(system.check_uring, "ok", "allowed", answers={"uring_problem": lambda: ""}),
    Row(
        system.check_uring,
        "warn",
        "EPERM. The engine is threads",
        {"/proc/sys/kernel/io_uring_disabled": "2"},
        {"uring_problem": lambda: "EPERM"},
        mend="sysctl -w kernel.io_uring_disabled=0",
    ),
    Row(
        system.check_uring,
        "warn",
        "EPERM",
        {"/.dockerenv": "", "/proc/sys/kernel/io_uring_disabled": "0"},
        {"uring_problem": lambda: "EPERM"},
        mend="run the container with a seccomp profile",
    ),
    Row(system.check_uring, "warn", "ENOSYS", answers={"uring_problem": lambda: "ENOSYS"}, mend="seccomp policy"),
    Row(system.check_memlock, "ok", "CAP_IPC_LOCK", {"/proc/self/status": "Name:\tx\nCapEff:\t000001ffffffffff"}),
    Row(system.check_memlock, "ok", "unlimited", limits("unlimited")),
    Row(system.check_memlock, "ok", "1GiB may be locked", limits(str(1 << 30))),
    Row(system.check_memlock, "warn", "8MiB may be locked", limits("8388608"), mend="LimitMEMLOCK=infinity"),
    Row(system.check_memlock, "warn", "cannot be read"),
    Row(
        system.check_hugepages,
        "ok",
        "1024 of 2MiB reserved, transparent ones: never",
        {
            "/proc/meminfo": "MemTotal: 1 kB\nHugePages_Total:    1024\nHugepagesize:       2048 kB",
            "/sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]",
        },
    ),
    Row(
        system.check_hugepages,
        "ok",
        "madvise",
        {"/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never"},
    ),
    Row(system.check_hugepages, "warn", "transparent ones: absent", mend="nr_hugepages"),
    Row(software.check_package, "ok", f"kvstore {kvstore.__version__}", answers=versions()),
    Row(
        software.check_package, "fail", "'kvstore' 1.2 is another project", answers=versions(kvstore="1.2"), mend="pip"
    ),
    Row(software.check_package, "warn", "9.9 is installed", answers=versions(nvme_kvstore="9.9"), mend="pip install"),
    Row(software.check_lmcache, "ok", "not installed", answers=versions()),
    Row(software.check_lmcache, "ok", "0.5.6, supported", answers=versions(lmcache="0.5.6", torch="2.13.0")),
    Row(software.check_lmcache, "fail", "0.4.2", answers=versions(lmcache="0.4.2"), mend="pip install lmcache==0.5.6"),
    Row(software.check_lmcache, "fail", "torch", answers=versions(lmcache="0.5.6"), mend="pip install torch"),
    Row(software.check_cuda, "ok", "none; not needed", answers=loader()),
    Row(software.check_cuda, "ok", "driver 580.95.05, /usr/lib/libcuda.so.1", DRIVER, loader(CUDA)),
    Row(software.check_cuda, "warn", "no libcuda.so.1", DRIVER, loader(), mend="install"),
    Row(software.check_cuda, "warn", "no /dev/nvidiactl", answers=loader(CUDA), mend="--gpus all"),
    Row(software.check_cufile, "ok", "none; not needed", answers=loader()),
    Row(software.check_cufile, "ok", "nvidia-fs loaded", {"/proc/modules": "nvidia_fs 1 0"}, loader(CUFILE)),
    Row(software.check_cufile, "warn", "never returns", answers=loader(CUFILE), mend="do not use GPUDirect Storage"),
    Row(software.check_cufile, "warn", "no nvidia-fs", {"/proc/modules": "ext4 1 0"}, loader(CUFILE), mend="modprobe"),
    Row(device.check_name, "ok", "stays with the device", target=BY_ID),
    Row(device.check_name, "warn", "after the next boot", target=NVME, mend="udev"),
    Row(device.check_name, "ok", "a file on xfs", mountinfo("xfs"), target=FILE),
    Row(device.check_name, "warn", "a file on btrfs", mountinfo("btrfs"), target=FILE, mend="block device"),
    Row(device.check_name, "warn", "unknown file system", target=FILE, mend="block device"),
    Row(
        device.check_content,
        "ok",
        "kvstore store 1",
        answers={"what_is_there": lambda _: "kvstore store 1"},
        target=NVME,
    ),
    Row(device.check_content, "warn", "no store", answers={"what_is_there": lambda _: ""}, target=NVME, mend="format"),
    Row(
        device.check_content,
        "warn",
        "in use: process 7",
        answers={"what_is_there": raising(BusyError("in use: process 7"))},
        target=NVME,
        mend="wait_s",
    ),
    Row(
        device.check_content,
        "warn",
        "in use in shared mode: process 7",
        answers={
            "what_is_there": raising(BusyError("in use in shared mode: process 7")),
            "superblock": lambda _: {"shared_mode": True, "pool_uuid": "2"},
        },
        target=NVME,
        mend='mode="shared"',
    ),
    Row(
        device.check_content,
        "ok",
        "kvstore store 1, formatted today, a member of pool 2 in shared mode",
        answers={
            "what_is_there": lambda _: "kvstore store 1, formatted today",
            "superblock": lambda _: {"shared_mode": True, "pool_uuid": "2"},
        },
        target=NVME,
    ),
    Row(
        device.check_content,
        "fail",
        "something else is on it: ext4",
        answers={"what_is_there": lambda _: "ext4 file system"},
        target=NVME,
        mend="another device",
    ),
    Row(
        device.check_content,
        "fail",
        "damaged",
        answers={"what_is_there": lambda _: "damaged kvstore store"},
        target=NVME,
        mend="--force",
    ),
    Row(
        device.check_content,
        "fail",
        "denied",
        answers={"what_is_there": raising(DeviceError("denied"))},
        target=NVME,
        mend="message",
    ),
    Row(device.check_direct_io, "ok", "a page was read", answers={"read_directly": lambda _: None}, target=FILE),
    Row(
        device.check_direct_io,
        "fail",
        "O_DIRECT is refused",
        answers={"read_directly": raising(OSError(errno.EINVAL, "Invalid argument"))},
        target=FILE,
        mend="ext4 or xfs",
    ),
    Row(
        device.check_direct_io,
        "fail",
        "permission",
        answers={"read_directly": raising(PermissionError(errno.EACCES, "Permission denied"))},
        target=NVME,
        mend='group "disk"',
    ),
    Row(
        device.check_direct_io,
        "fail",
        "Input/output error",
        answers={"read_directly": raising(OSError(errno.EIO, "Input/output error"))},
        target=NVME,
        mend="kernel's log",
    ),
    Row(device.check_alignment, "ok", "logical block 512, physical 4096", queue(), target=NVME),
    Row(device.check_alignment, "ok", "logical block 512", queue(), target=PARTITION),
    Row(device.check_alignment, "ok", "tells nothing", target=NVME),
    Row(
        device.check_alignment,
        "fail",
        "logical block 8192",
        queue(logical_block_size="8192"),
        target=NVME,
        mend="--lbaf",
    ),
    Row(
        device.check_alignment,
        "warn",
        "starts at byte 32,256",
        {**queue(), f"{DISK}/nvme0n1p1/start": "63"},
        target=PARTITION,
        mend="1 MiB",
    ),
    Row(device.check_write_cache, "ok", "a flush is free", queue(), target=NVME),
    Row(device.check_write_cache, "ok", "not known", target=NVME),
    Row(
        device.check_write_cache,
        "warn",
        "volatile",
        queue(write_cache="write back"),
        target=PARTITION,
        mend="power-loss",
    ),
    Row(device.check_scheduler, "ok", "none", queue(), target=NVME),
    Row(
        device.check_scheduler,
        "warn",
        "mq-deadline",
        queue(scheduler="none [mq-deadline]"),
        target=PARTITION,
        mend="echo none > /sys/block/nvme0n1/queue/scheduler",
    ),
    Row(device.check_request_size, "ok", "up to 1280 KiB", queue(), target=PARTITION),
    Row(device.check_request_size, "ok", "not known", target=NVME),
    Row(
        device.check_request_size,
        "warn",
        "at most 128 KiB",
        queue(max_sectors_kb="128"),
        target=NVME,
        mend="echo 1024 > /sys/block/nvme0n1/queue/max_sectors_kb",
    ),
    Row(
        device.check_request_size,
        "ok",
        "takes no larger ones",
        queue(max_sectors_kb="256", max_hw_sectors_kb="256"),
        target=NVME,
    ),
    Row(device.check_space, "ok", "a device", target=NVME),
    Row(device.check_space, "ok", "6GiB of the file", target=FILE),
    Row(
        device.check_space,
        "fail",
        "1GiB are free",
        target=dataclasses.replace(FILE, free_bytes=1 << 30),
        mend="smaller file",
    ),
    Row(device.check_engine, "ok", "uring, checksums by avx2", answers=stats(), target=["/dev/nvme0n1"]),
    Row(
        device.check_engine,
        "warn",
        "threads",
        answers=stats(device_kind="threads"),
        target=["/dev/nvme0n1"],
        mend="io_uring",
    ),
    Row(
        device.check_engine,
        "warn",
        "no store here",
        answers={"open_stats": raising(FormatError("no store here"))},
        target=["/dev/nvme0n1"],
        mend="format",
    ),
    Row(
        device.check_engine,
        "fail",
        "name all of them",
        answers={"open_stats": raising(ConfigError("name all of them"))},
        target=["/dev/nvme0n1"],
        mend="message",
    ),
]


@pytest.fixture
def make_machine(tmp_path: Path) -> Callable[..., Machine]:
    """Return a function that writes files under a root and makes the machine that has them."""

    def make(files: dict[str, str], answers: dict[str, Any]) -> Machine:
        for name, content in files.items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content + "\n")
        numbers = tmp_path / "sys/dev/block"
        numbers.mkdir(parents=True, exist_ok=True)
        for number, folder in (("259:0", "nvme0n1"), ("259:1", "nvme0n1/nvme0n1p1")):
            if (tmp_path / "sys/devices" / folder).is_dir():
                (numbers / number).symlink_to(f"../../devices/{folder}")
        return Machine(root=tmp_path, **{"python_path": [], **answers})

    return make


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.check.__name__}-{row.level}-{row.says}" for row in ROWS])
def test_check(row: Row, make_machine: Callable[..., Machine]) -> None:
    machine = make_machine(row.files, row.answers)
    finding = row.check(machine) if row.target is None else row.check(machine, row.target)
    assert finding.level == row.level
    assert row.says in finding.text
    assert row.mend in finding.mend
    assert finding.mend or finding.level == "ok"


def test_every_check_has_a_row_that_is_well_and_one_that_is_not() -> None:
    for check in (*doctor.MACHINE_CHECKS, *doctor.DEVICE_CHECKS, device.check_engine):
        levels = {row.level for row in ROWS if row.check is check}
        assert "ok" in levels, check.__name__
        assert levels - {"ok"}, check.__name__


# ---- what the table cannot say ----


def test_a_name_that_moves_is_mended_by_the_devices_own(make_machine: Callable[..., Machine], tmp_path: Path) -> None:
    machine = make_machine({"/dev/nvme0n1": "", "/dev/disk/by-id/x": ""}, {})
    for link in ("nvme-SomeModel_S1", "nvme-eui.0025"):
        (tmp_path / "dev/disk/by-id" / link).symlink_to("../../nvme0n1")
    assert device.check_name(machine, NVME).mend == "use /dev/disk/by-id/nvme-eui.0025"


def test_another_package_of_the_name_is_found(make_machine: Callable[..., Machine], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/kvstore.py").touch()
    own = str(Path(kvstore.__file__).parent.parent)
    machine = make_machine({}, {**versions(), "python_path": [own, str(tmp_path / "elsewhere")]})
    finding = software.check_package(machine)
    assert finding.level == "warn"
    assert str(tmp_path / "elsewhere") in finding.text
    assert own not in finding.text


def test_a_library_of_a_wheel_is_found(make_machine: Callable[..., Machine], tmp_path: Path) -> None:
    library = tmp_path / "site/nvidia/cu13/lib/libcufile.so.0"
    library.parent.mkdir(parents=True)
    library.touch()
    machine = make_machine({}, {"loader_cache": lambda: "", "python_path": [str(tmp_path / "site")]})
    assert str(library) in software.check_cufile(machine).text


def test_a_path_that_is_neither_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a block device nor a regular file"):
        find_target(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        find_target(str(tmp_path / "none"))


def test_the_size_of_a_sparse_file_is_told_from_what_it_occupies(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with open(path, "wb") as file:
        file.truncate(1 << 30)
    target = find_target(str(path))
    assert (target.is_block, target.size_bytes) == (False, 1 << 30)
    assert target.allocated_bytes < 1 << 20
    assert target.free_bytes > 0


# ---- the verb ----


def test_this_machine_and_a_pool_are_examined(pool_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path(pool_path).read_bytes()
    main(["doctor", pool_path, "--json"])
    output = capsys.readouterr().out
    assert Path(pool_path).read_bytes() == before
    findings = json.loads(output)["findings"]
    assert [finding["check"] for finding in findings if not finding["path"]] == [
        "package", "kernel", "io_uring", "memlock", "hugepages", "lmcache", "cuda", "cufile",
    ]  # fmt: skip
    of_pool = {finding["check"]: finding for finding in findings if finding["path"] == pool_path}
    assert of_pool["content"]["level"] == "ok"
    assert of_pool["direct I/O"]["level"] == "ok"
    assert of_pool["engine"]["level"] in ("ok", "warn")


def test_people_get_a_line_each_and_the_mend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.img"
    assert main(["doctor", str(path)]) == 1
    output = capsys.readouterr().out
    assert "fail  name" in output
    assert f"mend: kvstore format {path}" in output
    assert output.rstrip().endswith("failed")


def test_a_pool_in_use_is_not_disturbed(pool_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with kvstore.open(pool_path) as pool:
        space = pool.space(engine="test")
        main(["doctor", pool_path])
        assert str(os.getpid()) in capsys.readouterr().out
        assert space.put(b"key", b"value", durable=True)


def test_nothing_of_nvidia_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    def loaded() -> set[str]:
        return set(re.findall(r"libcu(?:da|file)\S*", Path("/proc/self/maps").read_text()))

    before = loaded()
    main(["doctor"])
    capsys.readouterr()
    assert loaded() == before
