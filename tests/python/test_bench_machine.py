# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Facts of machine and devices for benchmark results.

Method: a `Machine` whose root is a folder written here; which device a path means is said here too.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstore.bench.machine import UNKNOWN, device_facts, fill_level, machine, revision
from kvstore.doctor.machine import Machine, Target

DISK = "/sys/devices/nvme0n1"
NVME = {
    f"{DISK}/size": "7814037168",
    f"{DISK}/nuse": "195350929",
    f"{DISK}/serial": "S3CRET",
    f"{DISK}/metadata_bytes": "8",
    f"{DISK}/queue/logical_block_size": "4096",
    f"{DISK}/queue/physical_block_size": "4096",
    f"{DISK}/queue/write_cache": "write back",
    f"{DISK}/queue/scheduler": "[none] mq-deadline",
    f"{DISK}/queue/nr_requests": "1023",
    f"{DISK}/queue/max_sectors_kb": "512",
    f"{DISK}/mq/0/cpu_list": "0",
    f"{DISK}/mq/1/cpu_list": "1",
    f"{DISK}/device/model": "SAMSUNG MZQL23T8HCLS-00A07  ",
    f"{DISK}/device/firmware_rev": "GDC5602Q",
    f"{DISK}/device/serial": "S3CRET",
    f"{DISK}/device/transport": "pcie",
    f"{DISK}/device/device/current_link_speed": "16.0 GT/s PCIe",
    f"{DISK}/device/device/current_link_width": "4",
    f"{DISK}/nvme0n1p1/partition": "1",
    f"{DISK}/nvme0n1p1/size": "2048",
}
DEVICES = {"259:0": DISK, "259:1": f"{DISK}/nvme0n1p1"}
TARGETS = {
    "/dev/nvme0n1": Target("/dev/nvme0n1", True, "259:0"),
    "/dev/nvme0n1p1": Target("/dev/nvme0n1p1", True, "259:1"),
    "/dev/loop7": Target("/dev/loop7", True, "7:7"),
    "/dev/mapper/both": Target("/dev/mapper/both", True, "252:3"),
    "/srv/pool.img": Target("/srv/pool.img", False, "259:1", size_bytes=4 << 30, allocated_bytes=1 << 30),
    "/dev/shm/pool.img": Target("/dev/shm/pool.img", False, "0:26", size_bytes=1 << 30),
}
MOUNTS = "29 1 259:1 / /srv rw shared:1 - xfs /dev/nvme0n1p1 rw\n30 1 0:26 / /dev/shm rw shared:2 - tmpfs tmpfs rw"


@pytest.fixture
def host(tmp_path: Path) -> Callable[..., Machine]:
    """A machine of these files, and of the block devices of these numbers."""

    def build(files: dict[str, str], devices: dict[str, str]) -> Machine:
        for name, text in ({"/proc/self/mountinfo": MOUNTS} | files).items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        links = tmp_path / "sys/dev/block"
        links.mkdir(parents=True)
        for number, folder in devices.items():
            (links / number).symlink_to(tmp_path / folder.lstrip("/"))
        return Machine(root=tmp_path)

    return build


def facts(path: str, host: Machine) -> dict[str, Any]:
    return device_facts(path, host, TARGETS.__getitem__)


def test_a_drive_tells_model_firmware_format_cache_scheduler_and_queues(host: Callable[..., Machine]) -> None:
    assert facts("/dev/nvme0n1", host(NVME, DEVICES)) == {
        "path": "/dev/nvme0n1",
        "place": "nvme0n1",
        "disk": "nvme0n1",
        "model": "SAMSUNG MZQL23T8HCLS-00A07",
        "firmware": "GDC5602Q",
        "size": "3.639TiB",
        "lba_format": "4096 B logical, 4096 B physical, 8 B of metadata",
        "write_cache": "write back",
        "scheduler": "none",
        "queue": "2 of 1023 requests of up to 512 KiB",
        "transport": "pcie",
        "link": "16.0 GT/s PCIe x4",
        "in_use": "20 %",
    }


def test_no_serial_number_is_told(host: Callable[..., Machine]) -> None:
    assert "S3CRET" not in json.dumps(facts("/dev/nvme0n1", host(NVME, DEVICES)))


def test_a_partition_has_its_own_size_and_the_rest_of_its_disk(host: Callable[..., Machine]) -> None:
    found = facts("/dev/nvme0n1p1", host(NVME, DEVICES))
    assert (found["place"], found["size"]) == ("nvme0n1p1", "1MiB")
    assert (found["disk"], found["firmware"], found["scheduler"]) == ("nvme0n1", "GDC5602Q", "none")


def test_a_file_is_at_its_file_system_and_that_at_its_disk(host: Callable[..., Machine]) -> None:
    found = facts("/srv/pool.img", host(NVME, DEVICES))
    assert (found["place"], found["model"]) == ("xfs on nvme0n1", "SAMSUNG MZQL23T8HCLS-00A07")
    assert (found["file_size"], found["file_allocated"]) == ("4GiB", "1GiB")


def test_a_file_in_memory_has_no_disk(host: Callable[..., Machine]) -> None:
    found = facts("/dev/shm/pool.img", host({}, {}))
    assert found["place"] == "tmpfs"
    assert "model" not in found


def test_a_loop_device_is_over_what_its_file_lies_on(host: Callable[..., Machine]) -> None:
    loop = "/sys/devices/loop7"
    files = NVME | {f"{loop}/size": "8", f"{loop}/loop/backing_file": "/srv/pool.img"}
    found = facts("/dev/loop7", host(files, DEVICES | {"7:7": loop}))
    assert found["place"] == "loop over xfs on nvme0n1"  # without its number: all are alike
    assert found["under"][0]["firmware"] == "GDC5602Q"


def test_a_folder_is_at_its_file_system_and_that_at_what_is_under_it(host: Callable[..., Machine]) -> None:
    loop = "/sys/devices/loop7"
    mounts = f"{MOUNTS}\n31 1 7:7 / /mnt rw shared:3 - ext4 /dev/loop7 rw"
    files = {"/proc/self/mountinfo": mounts, f"{loop}/loop/backing_file": "/dev/shm/pool.img"}
    targets = TARGETS | {"/mnt/blocks": Target("/mnt/blocks", False, "7:7")}
    found = device_facts("/mnt/blocks", host(files, {"7:7": loop}), targets.__getitem__)
    assert found["place"] == "ext4 on loop over tmpfs"
    assert "file_size" not in found


def test_a_folder_is_where_a_file_in_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert device_facts(str(tmp_path))["place"] == device_facts(str(tmp_path / "file"))["place"] != UNKNOWN


def test_a_mapped_device_tells_every_device_under_it(host: Callable[..., Machine]) -> None:
    mapped = "/sys/devices/dm-3"
    slaves = {f"{mapped}/slaves/nvme0n1/dev": "259:0", f"{mapped}/slaves/nvme0n1p1/dev": "259:1"}
    found = facts("/dev/mapper/both", host(NVME | slaves | {f"{mapped}/dm/name": "both"}, DEVICES | {"252:3": mapped}))
    assert (found["place"], found["model"]) == ("dm over nvme0n1 + nvme0n1p1", "both")
    assert [below["size"] for below in found["under"]] == ["3.639TiB", "1MiB"]


def test_devices_that_lie_on_each_other_come_to_an_end(host: Callable[..., Machine]) -> None:
    loop = "/sys/devices/loop7"
    found = facts("/dev/loop7", host({f"{loop}/loop/backing_file": "/dev/loop7"}, {"7:7": loop}))
    assert found["place"].startswith("loop over loop over")


def test_what_cannot_be_read_is_unknown(tmp_path: Path, host: Callable[..., Machine]) -> None:
    bare = host({f"{DISK}/size": "?"}, DEVICES)
    found = facts("/dev/nvme0n1", bare)
    assert {found[name] for name in ("model", "firmware", "size", "write_cache", "scheduler")} == {UNKNOWN}
    assert device_facts(str(tmp_path / "nowhere"))["place"] == UNKNOWN
    told = machine(host=bare)
    assert {told[name] for name in ("kernel", "cpu", "cores", "memory_gib", "governor", "load")} == {UNKNOWN}


def test_a_machine_tells_its_processor_memory_and_devices(host: Callable[..., Machine]) -> None:
    processors = "processor\t: 0\nmodel name\t: AMD EPYC 9654\n\nprocessor\t: 1\nmodel name\t: AMD EPYC 9654"
    files = {
        "/proc/cpuinfo": processors,
        "/proc/meminfo": "MemTotal:       24641536 kB\nMemFree: 1 kB",
        "/proc/sys/kernel/osrelease": "6.12.9",
        "/proc/loadavg": "0.10 0.20 0.30 1/234 567",
        "/proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-1",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
    }
    told = machine(["/dev/nvme0n1"], host(NVME | files, DEVICES), TARGETS.__getitem__)
    named = ("kernel", "cpu", "cores", "cores_allowed", "memory_gib", "governor", "load")
    assert [told[name] for name in named] == [
        "6.12.9", "AMD EPYC 9654", "2", "0-1", "23.5", "performance", "0.10 0.20 0.30",
    ]  # fmt: skip
    assert [device["firmware"] for device in told["devices"]] == ["GDC5602Q"]


def test_this_machine_is_told_without_privileges() -> None:
    told = machine([__file__])
    assert told["kernel"] != UNKNOWN
    assert told["devices"][0]["place"] != UNKNOWN
    json.dumps(told)


def test_a_package_inside_another_checkout_does_not_bear_its_revision(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    installed = tmp_path / "machine.py"
    installed.touch()
    assert revision(installed).startswith("version ")


def test_the_fill_level_is_what_regions_hold() -> None:
    assert fill_level({"occupied_bytes": 30, "capacity_bytes": 40}) == "75 %"
    assert fill_level({"occupied_bytes": 0, "capacity_bytes": 0}) == UNKNOWN
    assert fill_level({}) == UNKNOWN
