# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""In the guest: who is not let in, drives that are not what they were, and what these kernels cannot do."""

from __future__ import annotations

import json
import time
from pathlib import Path

import fabrics
from fabrics import FILE, NVMET, TRANSPORTS, connect, disconnect, do, host_name, nqn, setup
from support import drive, keys, open_pool, put, read, run, statistics

import kvstore

COUNT = 12
WITHIN_S = 60.0  # for one connection: 15 s until it is given up, the same for taking it back, an emulated machine


def stranger(transport: str) -> str:
    """A host that the target's file does not have."""
    fabrics.prepare()
    hosts = [fabrics.host(host_name(one), number) for number, one in enumerate(TRANSPORTS, 0x40)]
    file = fabrics.write_file(Path("/run/stranger.yaml"), hosts=hosts)
    status, _, errors = setup("host", "connect", str(file), "--host", host_name(transport))
    assert status == 1
    assert fabrics.state(transport) in ("gone", "live")  # live: the host that is let in, from another test
    return errors


def key_file(name: str) -> str:
    path = Path("/run", name)
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(run("nvme", "gen-dhchap-key", "--hmac=1").strip() + "\n")
    return str(path)


def wrong_key(transport: str) -> tuple[str, bool]:
    """What is said of a wrong key, and whether the kernel is stuck with it; where it is not the right one connects."""
    fabrics.prepare()
    for one in TRANSPORTS:
        disconnect(one)
    do("target", "remove")
    right, wrong = (
        fabrics.write_file(
            Path("/run", f"{name}.yaml"),
            hosts=[
                fabrics.host(host_name(one), number, key_file=key_file(name))
                for number, one in enumerate(TRANSPORTS, 0x10)
            ],
        )
        for name in ("right", "wrong")
    )
    do("target", "apply", str(right))
    try:
        begin = time.monotonic()
        words = ["host", "connect", str(wrong), "--host", host_name(transport), "--json", "--timeout", "15"]
        status, out, errors = setup(*words)
        assert time.monotonic() - begin < WITHIN_S
        assert status == 1
        assert Path(key_file("wrong")).read_text().strip() not in out + errors
        if "cannot be stopped" in errors:
            words[2] = str(right)
            assert "does not answer within 15 s" in setup(*words)[2]
            return errors, True
        do("host", "connect", str(right), "--host", host_name(transport))
        do("host", "disconnect", str(right), "--host", host_name(transport))
    except BaseException:
        do("target", "remove")
        raise
    do("target", "remove")
    return errors, False


def swapped_drives() -> list[str]:
    """Two pools whose drives the target exchanges: what `nvmf-setup pool` and kvstore say; nothing is written."""
    fabrics.prepare()
    made = {}
    for number, transport in enumerate(TRANSPORTS, 1):
        words = ["pool", str(FILE), "--host", host_name(transport)]
        device = connect(transport)
        run("blkdiscard", "-z", "-l", str(64 << 20), device)
        run("blkdiscard", device)
        made[transport] = do(*words, "--force", fabrics.namespace(number, device)["nguid"])
        with open_pool(made[transport]["paths"]) as pool:
            put(pool, keys(transport, COUNT))
        disconnect(transport)
    do("target", "remove")
    other = dict(zip(TRANSPORTS, reversed(TRANSPORTS), strict=True))
    crossed = fabrics.write_file(
        Path("/run/crossed.yaml"),
        subsystems=[
            fabrics.subsystem(one, [fabrics.namespace(number, f"/dev/mapper/under-{other[one]}")], [host_name(one)])
            for number, one in enumerate(TRANSPORTS, 1)
        ],
    )
    do("target", "apply", str(crossed))
    drives = [drive(f"UNDER-{one.upper()}") for one in TRANSPORTS]
    before = [statistics(one)["sectors_written"] for one in drives]
    said = []
    for transport in TRANSPORTS:
        device = connect(transport)
        status, _, errors = setup("pool", str(FILE), "--host", host_name(transport))
        assert status == 1
        said.append(errors)
        try:
            open_pool(device).close()
            said.append("opened")
        except kvstore.errors.KvStoreError as error:
            said.append(error.code)
        disconnect(transport)
    assert [statistics(one)["sectors_written"] for one in drives] == before
    do("target", "remove")
    fabrics.prepare()
    for transport in TRANSPORTS:
        connect(transport)
        again = do("pool", str(FILE), "--host", host_name(transport))
        assert (again["pool_uuid"], again["changed"]) == (made[transport]["pool_uuid"], False)
        with open_pool(again["paths"]) as pool:
            assert read(pool, keys(transport, COUNT)) == ["hit"] * COUNT
    return said


def swapped_names() -> dict[str, object]:
    """Two pools whose names in /dev change places, as at a boot: each is found by what it is."""
    fabrics.prepare()
    before, pools = {}, {}
    for number, transport in enumerate(TRANSPORTS, 1):
        before[transport] = device = connect(transport)
        run("blkdiscard", "-z", "-l", str(64 << 20), device)
        nguid = fabrics.namespace(number, device)["nguid"]
        pools[transport] = do("pool", str(FILE), "--host", host_name(transport), "--force", nguid)
        with open_pool(device) as pool:
            put(pool, keys(transport, COUNT))
    for transport in TRANSPORTS:
        disconnect(transport)
    after = {transport: connect(transport) for transport in reversed(TRANSPORTS)}
    drives = [drive(f"UNDER-{one.upper()}") for one in TRANSPORTS]
    written = [statistics(one)["sectors_written"] for one in drives]
    found = {one: do("pool", str(FILE), "--host", host_name(one)) for one in TRANSPORTS}
    try:
        open_pool(list(after.values())).close()
        both = "opened"
    except kvstore.errors.KvStoreError as error:
        both = error.code
    with open_pool(after["rdma"], read_only=True) as pool:  # by the name that the other pool had
        misses = read(pool, keys("tcp", COUNT))
    assert [statistics(one)["sectors_written"] for one in drives] == written
    return {
        "exchanged": (before["tcp"], before["rdma"]) == (after["rdma"], after["tcp"]),
        "pools": all(found[one]["pool_uuid"] == pools[one]["pool_uuid"] for one in TRANSPORTS),
        "paths": all(found[one]["paths"] == [after[one]] for one in TRANSPORTS),
        "both": both,
        "by the other's name": sorted(set(misses)),
    }


def what_is_absent() -> dict[str, object]:
    """What these kernels and drives do not have; kvstore may not rely on it where it is tested."""
    fabrics.prepare()
    device = connect("tcp")
    identify = json.loads(run("nvme", "id-ctrl", device, "-o", "json"))
    namespace = json.loads(run("nvme", "id-ns", device, "-o", "json"))
    emulated = json.loads(run("nvme", "id-ctrl", drive("LBA4K"), "-o", "json"))
    return {
        "reservations of the target": namespace["rescap"],
        "reservations can be turned on": (NVMET / "subsystems" / nqn("tcp") / "namespaces/1/resv_enable").exists(),
        "compare over fabrics": identify["oncs"] & 1,
        "fused commands": identify["fuses"],
        "placement (FDP) of the drive": emulated["ctratt"] >> 19 & 1,
    }
