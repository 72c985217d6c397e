# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""In the guest: what `nvmf-setup check` tells of a Soft-RoCE port, whole, broken, and mended as it says."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from fabrics import (
    ADDRESS,
    FILE,
    connect,
    host,
    host_name,
    namespace,
    netdev,
    network,
    port,
    prepare,
    setup,
    subsystem,
    write_file,
)
from support import drive, run, statistics, wait_for

from kvstore.nvmf import check
from kvstore.nvmf.spec import read_spec

RDMA_ONLY = Path("/run/rdma.yaml")
GID_SUBJECT = f"GID for {ADDRESS}"


def ready() -> None:
    """A host that has all but what only hardware has, whatever was broken before."""
    if Path("/sys/class/net/rdma0").exists() and not Path("/sys/class/infiniband/rxe0").exists():
        run("ip", "address", "flush", "dev", "rdma0")
    network(ADDRESS)
    run("ip", "link", "set", netdev(), "mtu", "4200", "up")
    run("modprobe", "-a", "nvme_rdma", "rdma_cm")
    write_file(
        RDMA_ONLY,
        subsystems=[subsystem("rdma", [namespace(2, "/dev/not-looked-at")], ["rdma-host"])],
        ports=[port("rdma")],
        hosts=[host("rdma-host", 0x11)],
    )


def look(*words: str) -> dict[str, dict[str, str]]:
    """The findings of the verb, by subject."""
    _, out, errors = setup("check", str(RDMA_ONLY), "--host", "rdma-host", "--json", *words)
    assert out, errors
    return {one["subject"]: one for one in json.loads(out)["findings"]}


def shell(command: str) -> None:
    run("sh", "-ec", command)


def sources() -> dict[str, Any]:
    """What the verb tells of GIDs and MTU, and what sysfs alone tells, as where pyverbs is missing."""
    ready()
    found = look()
    real = check.Machine()
    real.which = lambda program: None if "python" in program else check.Machine().which(program)
    without = {one.subject: one for one in check.findings(read_spec(RDMA_ONLY), "rdma-host", machine=real)}
    index, alone = found[GID_SUBJECT], without[GID_SUBJECT]
    assert without["pyverbs"].verdict == "warn"
    return {
        "with": [index["verdict"], index["source"], index["told"]],
        "without": [alone.verdict, alone.source, alone.told],
        "mtu": [found["rxe0/1 MTU"][name] for name in ("verdict", "source", "told")],
        "not ok": sorted(subject for subject, one in found.items() if one["verdict"] != "ok"),
    }


def broken_and_mended(subject: str, breaking: str, told: str, mend: str) -> list[str]:
    """The verdict when something is broken, and the one after this part of its mend was run."""
    ready()
    shell(breaking)
    found = look()[subject]
    assert re.search(told, found["told"]), found
    assert mend in found["mend"], found
    shell(mend.replace("NETDEV", netdev()))
    state = Path("/sys/class/infiniband/rxe0/ports/1/state")
    wait_for("the port is active", lambda: state.exists() and "ACTIVE" in state.read_text())
    return [found["verdict"], look().get(subject, {"verdict": "gone"})["verdict"]]


def class_as_the_mend_sets_it() -> str:
    """What is told of the class after the mend."""
    ready()
    found = look()["rxe0/1 DSCP"]
    assert "nobody has set" in found["told"], found
    shell(found["mend"].split(", before")[0])
    return look()["rxe0/1 DSCP"]["told"]


def without_the_module() -> list[str]:
    """The verdict of a module that this kernel has not."""
    ready()
    run("modprobe", "-r", "nvme_rdma")
    listed = Path("/lib/modules", run("uname", "-r").strip(), "modules.dep")
    whole = listed.read_text()
    listed.write_text("".join(line for line in whole.splitlines(True) if "/nvme-rdma.ko" not in line.split(":")[0]))
    try:
        found = look()["module nvme_rdma"]
    finally:
        listed.write_text(whole)
    return [found["verdict"], found["told"], found["mend"]]


def round_trips() -> list[list[str]]:
    """To a peer that answers, and to one where nobody listens."""
    ready()
    with subprocess.Popen(
        ["rping", "-s", "-P", "-a", ADDRESS], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as peer:
        try:
            once = ["rping", "-c", "-a", ADDRESS, "-C", "1"]
            wait_for("rping answers", lambda: subprocess.run(once, capture_output=True, timeout=60).returncode == 0)
            answered = look("--peer", ADDRESS)
        finally:
            peer.kill()
    alone = look("--peer", ADDRESS)
    return [[found[one]["verdict"], found[one]["told"]] for found, one in
            ((answered, "path to peer"), (answered, "round trip"), (alone, "round trip"))]  # fmt: skip


def reads() -> dict[str, Any]:
    """What is told of the namespace's speed, and what was written to the drive meanwhile."""
    prepare()
    connect("rdma")
    before = statistics(drive("UNDER-RDMA"))
    _, out, _ = setup("check", str(FILE), "--host", host_name("rdma"), "--json")
    after = statistics(drive("UNDER-RDMA"))
    found = {one["subject"]: one for one in json.loads(out)["findings"]}
    written = after["sectors_written"] - before["sectors_written"]
    read = after["reads"] - before["reads"]
    of_target = check.findings(read_spec(FILE), machine=_without_measuring())
    return {
        "found": found["read"],
        "written": written,
        "read": read,
        "abilities": [found["abilities of the target"][name] for name in ("verdict", "told", "mend", "source")],
        "driver": [found["rxe0/1 driver"][name] for name in ("verdict", "told", "mend")],
        "of target": [one.told for one in of_target if one.subject == "abilities of this target"],
    }


def _without_measuring() -> check.Machine:
    machine = check.Machine()
    machine.is_dry = True
    return machine
