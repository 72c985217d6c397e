# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""In the guest: target and host on one machine, from nothing to a pool and back."""

from __future__ import annotations

import json
from pathlib import Path

import fabrics
from fabrics import FILE, NVMET, do, program, setup
from support import POOL, direct_bytes, fio_verifies, keys, open_pool, put, read, run

import kvstore

COUNT = 24


def from_nothing_to_a_target() -> None:
    """Plan, apply, status, by the program itself once; a second run changes nothing, and neither does a dry one."""
    fabrics.network(fabrics.ADDRESS)
    for transport in fabrics.TRANSPORTS:
        fabrics.mapped(f"under-{transport}", f"UNDER-{transport.upper()}")
    fabrics.clear()
    fabrics.write_file(FILE)
    run("modprobe", "nvmet")
    planned = do("plan", str(FILE))
    assert planned["changes"]
    do("target", "apply", str(FILE), "--dry-run")
    assert not list((NVMET / "subsystems").iterdir())
    assert json.loads(program("target", "apply", str(FILE), "--json"))["commands"] == planned["commands"]
    assert not do("target", "apply", str(FILE))["changed"]
    assert not do("plan", str(FILE))["changes"]
    assert do("target", "status", str(FILE))["as_wanted"]
    for transport in fabrics.TRANSPORTS:
        folder = NVMET / "subsystems" / fabrics.nqn(transport)
        assert (folder / "attr_allow_any_host").read_text().strip() == "0"
        assert (folder / "namespaces/1/enable").read_text().strip() == "1"


def connects(transport: str) -> list[str]:
    """The options as the kernel has them; a second run changes nothing."""
    fabrics.prepare()
    fabrics.disconnect(transport)
    name = fabrics.host_name(transport)
    words = [str(FILE), "--host", name]
    assert do("host", "connect", *words)["changed"]
    assert not do("host", "connect", *words)["changed"]
    assert not do("plan", *words)["changes"]
    report = do("host", "status", *words)
    assert report["as_wanted"]
    (path,) = [part for part in report["parts"] if "controller" in part]
    return [path[key] for key in ("queue_size", "keep_alive_s", "fast_io_fail_s", "controller_loss_s")]


def verifies(transport: str) -> None:
    """fio, through io_uring; and what it wrote is on the drive under the target."""
    fabrics.prepare()
    device = fabrics.connect(transport)
    fio_verifies(device)
    under = f"/dev/mapper/under-{transport}"
    assert direct_bytes(device, 8 << 20) == direct_bytes(under, 8 << 20)
    run("blkdiscard", "-z", "-l", str(16 << 20), device)


def survives_a_new_connection(transport: str) -> str:
    """Puts, gets, disconnects, connects; the message that refuses to disconnect under an open pool."""
    fabrics.prepare()
    device, wanted = fabrics.connect(transport), keys(transport, COUNT)
    kvstore.format(device, force=True, **POOL)
    with open_pool(device) as pool:
        put(pool, wanted)
        assert read(pool, wanted) == ["hit"] * COUNT
        status, _, refused = setup("host", "disconnect", str(FILE), "--host", fabrics.host_name(transport))
        assert status == 1
        assert read(pool, wanted) == ["hit"] * COUNT
    fabrics.disconnect(transport)
    assert fabrics.state(transport) == "gone"
    device = fabrics.connect(transport)
    with open_pool(device) as pool:
        assert read(pool, wanted) == ["hit"] * COUNT
    return refused


def removes_what_it_made() -> None:
    fabrics.prepare()
    for transport in fabrics.TRANSPORTS:
        fabrics.disconnect(transport)
    theirs = NVMET / "subsystems" / "nqn.2026-11.com.example:theirs"
    theirs.mkdir()
    do("target", "remove")
    assert [path.name for path in (NVMET / "subsystems").iterdir()] == [theirs.name]
    assert not list((NVMET / "ports").iterdir())
    assert not list((NVMET / "hosts").iterdir())
    theirs.rmdir()
    assert not do("target", "remove")["changed"]


def rollback_of_an_address_in_use() -> str:
    """A port that cannot listen: the message, and that nothing of the run is left."""
    fabrics.network(fabrics.ADDRESS)
    fabrics.prepare()
    do("target", "remove")
    run("modprobe", "nvmet-tcp")
    taken = Path("/sys/kernel/config/nvmet/ports/77")
    other = NVMET / "subsystems" / "nqn.2026-11.com.example:theirs"
    other.mkdir()
    taken.mkdir()
    for name, value in fabrics.port("tcp").items():
        attribute = {"transport": "addr_trtype", "address": "addr_traddr", "service": "addr_trsvcid"}.get(name)
        if attribute:
            (taken / attribute).write_text(str(value))
    (taken / "addr_adrfam").write_text("ipv4")
    link = taken / "subsystems" / other.name
    link.symlink_to(other)
    status, _, errors = setup("target", "apply", str(FILE))
    left = [path.name for kind in ("subsystems", "ports", "hosts") for path in (NVMET / kind).iterdir()]
    link.unlink()
    taken.rmdir()
    other.rmdir()
    assert status == 1
    assert sorted(left) == sorted([other.name, taken.name])
    return errors
