# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""nvmf-setup pool: namespaces are known by what they are, and nothing is written where one is not what it should be.

Method: a fake /sys with namespaces, and files of those names in the place of /dev.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from nvmf_host_support import FakeHostKernel
from test_nvmf_host import NQN, SPEC, host_of

import kvstore
from kvstore import _core
from kvstore.errors import BusyError, ConfigError, ForeignDataError, OtherStoreError
from kvstore.nvmf.pool import HostPool, line_for_lmcache

SIZES = {"region_bytes": 1 << 20}
BYTES = 48 << 20
NGUIDS = [f"{number:032x}" for number in (1, 2)]


@pytest.fixture
def pool(tmp_path: Path) -> HostPool:
    """Of a host with two blank namespaces, nvme9n1 and nvme9n2."""
    kernel = FakeHostKernel(tmp_path / "sys", SPEC)
    host = host_of(kernel)
    host.connect()
    (tmp_path / "dev/disk/by-id").mkdir(parents=True)
    for name in ("nvme9n1", "nvme9n2"):
        with (tmp_path / "dev" / name).open("wb") as file:
            file.truncate(BYTES)
    return HostPool(host, tmp_path / "dev", tmp_path / "state/pool.json", sleep=lambda seconds: None)


def contents(pool: HostPool) -> list[str]:
    """Of the devices and the record, to compare."""
    files = [pool.dev / "nvme9n1", pool.dev / "nvme9n2"]
    said = [pool.record_path.read_text() if pool.record_path.exists() else ""]
    return said + [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


def swap(pool: HostPool) -> None:
    first, second, between = pool.dev / "nvme9n1", pool.dev / "nvme9n2", pool.dev / "between"
    first.rename(between)
    second.rename(first)
    between.rename(second)


def test_blank_namespaces_become_a_pool_and_a_second_run_changes_nothing(pool: HostPool) -> None:
    plan, uuid = pool.make(**SIZES)
    assert plan.is_blank
    before = contents(pool)
    again, same = pool.make(**SIZES)
    assert (again.is_blank, again.paths, same) == (False, plan.paths, uuid)
    assert contents(pool) == before
    assert _core.read_superblock(plan.paths[0])["pool_uuid"] == uuid


def test_a_pool_that_is_in_use_gives_the_same_line(pool: HostPool) -> None:
    plan, uuid = pool.make(**SIZES)
    with kvstore.open(plan.paths):
        assert pool.make(**SIZES)[1] == uuid


def test_looking_writes_nothing(pool: HostPool) -> None:
    before = contents(pool)
    assert pool.plan().is_blank
    assert contents(pool) == before


def test_a_name_that_stays_is_taken_where_udev_makes_one(pool: HostPool) -> None:
    folder = pool.dev / "disk/by-id"
    for name in ("lvm-pv-x", "nvme-Linux_pool0", "nvme-uuid.00000001-0000-4000-8000-000000000000"):
        (folder / name).symlink_to("../../nvme9n1")
    (folder / "nvme-eui.2").symlink_to("../../nvme9n7")  # left over, of another device
    assert pool.plan().paths == [
        str(folder / "nvme-uuid.00000001-0000-4000-8000-000000000000"),
        str(pool.dev / "nvme9n2"),
    ]


def test_swapped_namespaces_are_refused_and_nothing_is_written(pool: HostPool) -> None:
    pool.make(**SIZES)
    swap(pool)
    before = contents(pool)
    with pytest.raises(OtherStoreError, match=r"nvme9n1 held store .* and holds store .* now: drives swapped"):
        pool.make(**SIZES)
    assert contents(pool) == before


def test_a_swap_is_noticed_without_a_record_by_what_the_superblock_says(pool: HostPool) -> None:
    pool.make(**SIZES)
    pool.record_path.unlink()

    def superblock(path: str) -> dict[str, Any]:
        return _core.read_superblock(path) | {"nguid": f"{3 - int(path[-1]):032x}"}

    pool.superblock = superblock
    with pytest.raises(OtherStoreError, match=f"store of another namespace .NGUID {2:032x}, not {1:032x}"):
        pool.make(**SIZES)


def test_a_second_host_takes_on_what_the_first_one_made(pool: HostPool) -> None:
    _, uuid = pool.make(**SIZES)
    pool.record_path.unlink()
    plan, same = pool.make(**SIZES)
    assert (plan.is_blank, same) == (False, uuid)
    assert sorted(json.loads(pool.record_path.read_text())) == [one.namespace.nguid for one in plan.found]


def test_a_store_that_is_gone_is_refused_until_somebody_says_that_it_may(pool: HostPool) -> None:
    pool.make(**SIZES)
    for name in ("nvme9n1", "nvme9n2"):
        (pool.dev / name).write_bytes(b"")
        with (pool.dev / name).open("wb") as file:
            file.truncate(BYTES)
    with pytest.raises(OtherStoreError, match=r"nvme9n1 held store .* and holds none now"):
        pool.make(**SIZES)
    plan, _ = pool.make(NGUIDS, **SIZES)
    assert plan.is_blank
    assert not pool.make(**SIZES)[0].is_blank


def test_what_somebody_put_over_a_store_is_neither_adopted_nor_repaired(pool: HostPool) -> None:
    pool.make(**SIZES)
    pool.record_path.unlink()
    with (pool.dev / "nvme9n2").open("r+b") as file:
        file.write(b"XFSB")
    before = contents(pool)
    with pytest.raises(ForeignDataError, match=rf"nvme9n2 holds xfs .*, over kvstore .*--force {NGUIDS[1]}"):
        pool.make(**SIZES)
    assert contents(pool) == before
    assert pool.make(NGUIDS, **SIZES)[0].is_blank


def test_a_file_system_that_is_mounted_over_a_store_is_no_pool(pool: HostPool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool.make(**SIZES)

    def mounted(path: str, **options: Any) -> list[dict[str, Any]]:
        raise BusyError(f"{path} is in use: mounted at /mnt")

    monkeypatch.setattr(kvstore, "plan_format", mounted)
    with pytest.raises(BusyError, match="mounted at /mnt"):
        pool.make(**SIZES)


def test_half_a_pool_is_refused(pool: HostPool) -> None:
    kvstore.format(pool.dev / "nvme9n1", **SIZES)
    before = contents(pool)
    with pytest.raises(OtherStoreError, match="of 2 namespaces only some hold a store"):
        pool.make(**SIZES)
    assert contents(pool) == before


def test_two_pools_are_refused(pool: HostPool) -> None:
    for name in ("nvme9n1", "nvme9n2"):
        kvstore.format(pool.dev / name, **SIZES)
    with pytest.raises(OtherStoreError, match="stores of 2 pools with 2 members"):
        pool.make(**SIZES)


def test_what_is_somebody_elses_is_overwritten_only_by_its_name(pool: HostPool) -> None:
    with (pool.dev / "nvme9n2").open("r+b") as file:
        file.seek(510)
        file.write(b"\x55\xaa")
    before = contents(pool)
    with pytest.raises(ForeignDataError, match=rf"nvme9n2 holds .*--force {NGUIDS[1]}"):
        pool.make(NGUIDS[:1], **SIZES)
    assert contents(pool) == before
    assert pool.make(NGUIDS[1:], **SIZES)[0].is_blank


def test_force_takes_names_that_stay_and_no_other(pool: HostPool) -> None:
    link = pool.dev / "disk/by-id/nvme-eui.2"
    link.symlink_to("../../nvme9n2")
    for name in ("nvme9n2", "/dev/nvme9n2", str(pool.dev / "nvme9n2"), "f" * 32, ""):
        with pytest.raises(ConfigError, match=rf"--force {name} is no namespace of pool\.yaml: .*{NGUIDS[0]}"):
            pool.make([name], **SIZES)
    assert [one.is_forced for one in pool.plan([str(link)]).found] == [False, True]
    assert [one.is_forced for one in pool.plan([str(UUID(NGUIDS[0])).upper()]).found] == [True, False]


def test_force_of_one_namespace_forces_no_other_that_was_blank_when_it_was_looked_at(pool: HostPool) -> None:
    first, second = (str(pool.dev / name) for name in ("nvme9n1", "nvme9n2"))
    made: list[dict[str, Any]] = []

    def superblock(path: str) -> dict[str, Any]:
        if path == second and not made:  # the first one has been looked at: another host takes it
            made.extend(kvstore.format(first, **SIZES))
        return _core.read_superblock(path)

    pool.superblock = superblock
    with pytest.raises(ForeignDataError, match=r"nvme9n1 was blank and holds kvstore store .* now"):
        pool.make(NGUIDS[1:], **SIZES)
    assert _core.read_superblock(first)["store_uuid"] == made[0]["store_uuid"]


def test_a_host_that_formats_at_the_same_time_is_noticed(pool: HostPool) -> None:
    paths = [str(pool.dev / name) for name in ("nvme9n1", "nvme9n2")]
    others: list[dict[str, Any]] = []
    pool.sleep = lambda seconds: others.extend(kvstore.format(paths, force=True, **SIZES))
    with pytest.raises(OtherStoreError, match=r"nvme9n1 holds store .*another host formatted it at the same time"):
        pool.make(**SIZES)
    assert [_core.read_superblock(path) for path in paths] == others
    assert not pool.record_path.exists()


def test_a_namespace_that_is_not_there_is_told(pool: HostPool) -> None:
    pool.host.disconnect()
    with pytest.raises(ConfigError, match=f"namespace 1 of {NQN} .* is not there: nvmf-setup host connect pool.yaml"):
        pool.plan()


@pytest.mark.parametrize(
    ("file", "value"), [("nguid", "f" * 32), ("uuid", "f" * 8), ("device/subsysnqn", "nqn.2020-01.org.other:x")]
)
def test_a_namespace_of_a_wrong_identity_is_refused(pool: HostPool, tmp_path: Path, file: str, value: str) -> None:
    (tmp_path / "sys/block/nvme9n1" / file).write_text(value)
    with pytest.raises(OtherStoreError, match="the file and the target differ"):
        pool.plan()


def test_of_an_arrays_namespace_the_nguid_is_enough(pool: HostPool, tmp_path: Path) -> None:
    (tmp_path / "sys/block/nvme9n1/uuid").unlink()
    subsystem = SPEC.subsystems[0]
    bare = tuple(replace(namespace, device="", uuid="") for namespace in subsystem.namespaces)
    pool.host.spec = replace(SPEC, subsystems=(replace(subsystem, namespaces=bare),))
    assert [one.device.name for one in pool.plan().found] == ["nvme9n1", "nvme9n2"]


def test_two_devices_of_one_namespace_are_refused(tmp_path: Path) -> None:
    kernel = FakeHostKernel(tmp_path / "sys", SPEC, multipath=False)
    host = host_of(kernel)
    host.connect()
    with pytest.raises(ConfigError, match=r"there as /dev/nvme2n1 and /dev/nvme3n1: .*nvme_core\.multipath=Y"):
        HostPool(host, tmp_path, tmp_path / "record").plan()


def test_of_two_hosts_on_one_machine_each_has_its_own_devices(tmp_path: Path) -> None:
    spec = replace(SPEC, subsystems=(replace(SPEC.subsystems[0], ports=(2,)),))
    kernel = FakeHostKernel(tmp_path / "sys", spec, multipath=False)
    pools = []
    for name in ("decode1", "decode2"):
        host = host_of(kernel, spec, name)
        host.connect()
        pools.append(HostPool(host, tmp_path, tmp_path / "record"))
    for name in kernel.names("block"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(BYTES)
    assert [[one.device.name for one in pool.plan().found] for pool in pools] == [
        ["nvme2n1", "nvme2n2"],
        ["nvme3n1", "nvme3n2"],
    ]


def test_the_line_is_what_the_door_takes() -> None:
    pytest.importorskip("lmcache", reason="needs lmcache")
    from kvstore.lmcache.config import DoorConfig

    word, text = shlex.split(line_for_lmcache(["/dev/a", "/dev/b"], mode="shared", engine="etcd://h:1"))
    adapter = json.loads(text)
    assert (word, adapter["module_path"], adapter["class_name"]) == (
        "--l2-adapter",
        "kvstore.lmcache",
        "KVStoreL2Adapter",
    )
    door = DoorConfig.from_mapping(adapter["adapter_params"], "adapter_params")
    assert (door.path, door.mode, door.engine) == (("/dev/a", "/dev/b"), "shared", "etcd://h:1")
