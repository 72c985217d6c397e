# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""nvmf-setup check: every finding, on a host that is ready and on hosts that are not.

Method: a host made of files and prepared answers (nvmf_check_support), of which one thing is changed; one row of the
table is one such host, with the verdict and the mend it gets. Then every single thing is taken away or garbled in turn:
that never ends in ok all over, and never in an exception.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from nvmf_check_support import (
    COMMANDS,
    FILES,
    FOLDER,
    GIDS,
    LATENCY,
    LOCAL,
    NETDEV,
    PORT,
    RELEASE,
    SPEC,
    TARGET,
    fio,
    identify,
    machine,
    own,
    pfc,
    verbs,
)

from kvstore.errors import ConfigError
from kvstore.nvmf import cli as nvmf_cli
from kvstore.nvmf.check import Answer, Finding, findings, plan
from kvstore.nvmf.check.machine import Machine, run
from kvstore.nvmf.check.verbs import PROBE
from kvstore.nvmf.check.verbs_probe import devices
from kvstore.nvmf.cli import main

MISSING = object()
GONE = Answer(problem="is not installed")
CM = "/sys/kernel/config/rdma_cm/mlx5_0/ports/1"
MODULES = f"/lib/modules/{RELEASE}"
NVMET = "/sys/kernel/config/nvmet/subsystems/nqn.2026-11.com.example:pool/namespaces/1"
MLNX_QOS = """\
DCBX mode: OS controlled
Priority trust state: {trust}
dscp2prio mapping:
\tprio:3 dscp:31,30,29,28,27,26,25,24,
\tprio:6 dscp:30,55,54,53,52,51,50,49,
\tprio:6 dscp:48,
PFC configuration:
\tpriority    0   1   2   3   4   5   6   7
\tenabled     {on}
\tbuffer      0   0   0   1   0   0   0   0
"""


def qos(trust: str = "dscp", on: str = "0   0   0   1   0   0   0   0   ") -> dict[str, object]:
    refused = Answer(problem="dcb: Attribute read: Operation not supported")
    return {"dcb": refused, "dcb -j pfc": MISSING, "mlnx_qos -i": Answer(MLNX_QOS.format(trust=trust, on=on))}


def changed(whole: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """``whole`` with changes, or without what is MISSING."""
    return {name: value for name, value in {**changes, **{k: v for k, v in whole.items() if k not in changes}}.items()
            if value is not MISSING}  # fmt: skip


def look(root: Path, files: Mapping[str, object] = {}, commands: Mapping[str, object] = {}, *,
         peer: str | None = TARGET, has_file: bool = True, host: str | None = None) -> dict[str, Finding]:  # fmt: skip
    made = machine(root, changed(FILES, files), changed(COMMANDS, commands))  # type: ignore[arg-type]
    found = findings(SPEC if has_file else None, host, peer=peer, machine=made)
    by_subject = {one.subject: one for one in found}
    assert len(by_subject) == len(found), "a subject twice"
    for one in found:
        assert bool(one.mend) == (one.verdict != "ok"), one
        assert one.told
    return by_subject


def test_a_host_that_is_ready_is_ok_in_everything(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert {one.verdict for one in found.values()} == {"ok"}, [one for one in found.values() if one.verdict != "ok"]
    assert found["GID for 10.0.0.1"].told.startswith("index 3 of mlx5_0/1")
    assert found["GID for 10.0.0.1"].source == "pyverbs"
    assert found["mlx5_0/1 GIDs"].told == "RoCE v2 at 1 (fe80::ba3f:d2ff:fe00:1), 3 (10.0.0.2)"


@dataclass(frozen=True)
class Row:
    subject: str
    verdict: str
    told: str
    mend: str
    files: Mapping[str, object] = field(default_factory=dict)
    commands: Mapping[str, object] = field(default_factory=dict)
    has_file: bool = True
    peer: str | None = TARGET


ROWS = [
    # link, rate, MTU
    Row("mlx5_0/1 link", "fail", "DOWN", "ip link set dev eth0 up", {f"{PORT}/state": "1: DOWN"}),
    Row("mlx5_0/1 link", "fail", "INIT", "ip link set dev eth0 up", {f"{PORT}/state": "2: INIT"}),
    Row("mlx5_0/1 link", "fail", "Disabled", "cable", {f"{PORT}/phys_state": "3: Disabled"}),
    Row("mlx5_0/1 link", "fail", "InfiniBand", "LINK_TYPE_P1=2", {f"{PORT}/link_layer": "InfiniBand"}),
    Row("mlx5_0/1 link", "warn", "state not available", "dmesg", {f"{PORT}/state": "who knows"}),
    Row("mlx5_0/1 rate", "warn", "25 Gb/s, eth0 100 Gb/s", "ethtool eth0", {f"{PORT}/rate": "25 Gb/sec (1X EDR)"}),
    Row("mlx5_0/1 rate", "warn", "speed of the interface not available", "ethtool", {f"{NETDEV}/speed": "-1"}),
    Row("mlx5_0/1 rate", "warn", "speed of the interface not available", "ethtool", {f"{NETDEV}/speed": "EINVAL"}),
    Row("mlx5_0/1 rate", "warn", "rate not available", "rate", {f"{PORT}/rate": "1.2.3 Gb/sec"}),
    Row("mlx5_0/1 MTU", "warn", "eth0 1500, RDMA 1024", "ip link set dev eth0 mtu 4200.*other end",
        {f"{NETDEV}/mtu": "1500"}, {"verbs_probe.py": verbs(active_mtu=1024)}),
    Row("mlx5_0/1 MTU", "warn", "RDMA 2048, and the port can do no more than 2048", "firmware", {},
        {"verbs_probe.py": verbs(active_mtu=2048, max_mtu=2048)}),
    Row("mlx5_0/1 MTU", "warn", "eth0 9000, RDMA 1024", "down, and up", {f"{NETDEV}/mtu": "9000"},
        {"verbs_probe.py": verbs(active_mtu=1024)}),
    Row("mlx5_0/1 MTU", "warn", "eth0 4200; MTU in use by RDMA not available", "python3-pyverbs", {},
        {"verbs_probe.py": GONE}),
    # GIDs
    Row("pyverbs", "warn", "did not end within 30 s", "see dmesg", {},
        {"verbs_probe.py": Answer(problem="python3 did not end within 30 s", is_late=True)}),
    Row("pyverbs", "warn", "No module named 'pyverbs'", "apt install python3-pyverbs", {},
        {"verbs_probe.py": Answer(problem="python3: ModuleNotFoundError: No module named 'pyverbs'")}),
    Row("pyverbs", "warn", "no JSON", "python3-pyverbs", {}, {"verbs_probe.py": Answer("Segmentation fault")}),
    Row("pyverbs", "warn", "mlx5_0: Failed to open", "ib_uverbs", {},
        {"verbs_probe.py": Answer('{"mlx5_0": {"problem": "Failed to open device mlx5_0"}}')}),
    Row("mlx5_0/1 GIDs", "fail", "empty or not available", "ip address add", {}, {"verbs_probe.py": verbs(gids=[])}),
    Row("mlx5_0/1 GIDs", "fail", "no RoCE v2 entry among 1: RoCE v1", "mlxconfig", {},
        {"verbs_probe.py": verbs(gids=GIDS[:1])}),
    Row("mlx5_0/1 GIDs", "warn", "none is of an IP address", "ip address add", {},
        {"verbs_probe.py": verbs(gids=GIDS[:2])}),
    Row("mlx5_0/1 GIDs", "fail", "connections ask for IB/RoCE v1", "echo RoCE v2 > .*default_roce_mode",
        {f"{CM}/default_roce_mode": "IB/RoCE v1"}),
    Row("GID for 10.0.0.1", "fail", "no RoCE v2 entry for 10.0.0.2", "ip link set dev eth0 down, and up", {},
        {"verbs_probe.py": verbs(gids=GIDS[:3])}),
    Row("GID for 10.0.0.1", "fail", "no way to it", "ip route get 10.0.0.1", {},
        {"ip -j route": Answer(problem="ip: RTNETLINK answers: Network is unreachable")}),
    Row("GID for 10.0.0.1", "fail", "reached from 10.9.9.9 on eth7, which has no RDMA port: mlx5_0/1 on eth0",
        "rdma link add rxe0 type rxe netdev eth7", {},
        {"ip -j route": Answer('[{"dst":"10.0.0.1","dev":"eth7","prefsrc":"10.9.9.9"}]')}),
    Row("RDMA ports", "fail", "there are none", "rdma link add", {f"{PORT}/{name}": MISSING for name in
        ("state", "phys_state", "link_layer", "rate")}),
    # classes
    Row("mlx5_0/1 DSCP", "warn", "nobody has set a class", f"echo 106 > {CM}", {f"{CM}/default_roce_tos": MISSING}),
    Row("mlx5_0/1 DSCP", "warn", "DSCP 0: RDMA shares", "echo 106", {f"{CM}/default_roce_tos": "0"}),
    Row("mlx5_0/1 DSCP", "warn", "no priority", "dscp-prio 26:3", {}, {"dcb -j app": Answer("{}")}),
    Row("mlx5_0/1 DSCP", "warn", "priority that is: not available", "dscp-prio 26:3", {},
        {"dcb -j app": Answer(problem="dcb: Attribute not found")}),
    Row("mlx5_0/1 DSCP", "warn", "which the adapter gives no priority", "--trust dscp", {}, qos(trust="pcp")),
    Row("mlx5_0/1 PFC", "warn", "off, not for RDMA's priority 3", "prio-pfc all:off 3:on.*--pfc 0,0,0,1,0,0,0,0", {},
        {"dcb -j pfc": pfc()}),
    Row("mlx5_0/1 PFC", "warn", "on for every priority", "all:off 3:on", {}, {"dcb -j pfc": pfc(*range(8))}),
    Row("mlx5_0/1 PFC", "warn", "on for priority 4, not", "3:on", {}, {"dcb -j pfc": pfc(4)}),
    Row("mlx5_0/1 PFC", "warn", "priority is not known", "3:on", {f"{CM}/default_roce_tos": MISSING}),
    Row("mlx5_0/1 PFC", "warn", "not available: dcb: .*not supported; mlnx_qos is not installed", "on the switch", {},
        {"dcb": Answer(problem="dcb: Attribute read: Operation not supported"), "dcb -j pfc": MISSING}),
    Row("mlx5_0/1 PFC", "warn", "not available: dcb told nothing", "on the switch", {}, {"dcb -j pfc": Answer("[]")}),
    Row("mlx5_0/1 PFC", "warn", "off, not for", "3:on", {}, qos(on="0 0 0 0 0 0 0 0")),
    Row("mlx5_0/1 ECN", "warn", "roce_np off, roce_rp on", "echo 1 > .*enable/3",
        {f"{NETDEV}/ecn/roce_np/enable/3": "0"}),
    Row("mlx5_0/1 ECN", "warn", "not available", "adapter's own tool", {f"{NETDEV}/ecn/roce_rp/enable/3": MISSING}),
    Row("mlx5_0/1 ECN", "warn", "priority is not known", "enable/3", {}, {"dcb -j app": Answer("{}")}),
    # the host
    Row("module nvme_rdma", "warn", "not loaded, but there", "modprobe nvme-rdma; .*modules-load.d",
        {"/sys/module/nvme_rdma": MISSING, f"{MODULES}/modules.dep": "kernel/drivers/nvme/host/nvme-rdma.ko.xz: a b"}),
    Row("module nvme_rdma", "fail", f"not there for Linux {RELEASE}", f"linux-modules-extra-{RELEASE}",
        {"/sys/module/nvme_rdma": MISSING, f"{MODULES}/modules.dep": "kernel/nvmet-rdma.ko.xz: kernel/nvme-tcp.ko"}),
    Row("module nvme_rdma", "fail", "not available, no", "on the host itself", {"/sys/module/nvme_rdma": MISSING}),
    Row("module nvmet_rdma", "fail", "not available, no", "modprobe nvmet-rdma", {}, {"ip -j address": own(TARGET)}),
    Row("module nvme_rdma", "warn", "loaded; the kernel's release is not available", "mount /proc",
        {"/proc/sys/kernel/osrelease": MISSING}),
    Row("module nvme_rdma", "warn", "not loaded; the kernel's release is not available", "modprobe nvme-rdma",
        {"/sys/module/nvme_rdma": MISSING, "/proc/sys/kernel/osrelease": "unknown"}),
    Row("module nvme_rdma", "ok", "part of the kernel", "^$",
        {"/sys/module/nvme_rdma": MISSING, f"{MODULES}/modules.builtin": "kernel/drivers/nvme/host/nvme-rdma.ko"}),
    Row("multipath", "warn", "off: a lost path", "multipath=Y.*GPU direct",
        {"/sys/module/nvme_core/parameters/multipath": "N"}),
    Row("multipath", "warn", "cufile.json asks for PCI P2PDMA", "decide: failover",
        {"/etc/cufile.json": '{"properties": {"use_pci_p2pdma": true}}'}),
    Row("multipath", "warn", "asks for PCI P2PDMA.*fails with EIO before Linux 7.1", "nvidia-fs",
        {"/sys/module/nvme_core/parameters/multipath": "N", "/etc/cufile.json": '{"use_pci_p2pdma" : true}'}),
    Row("multipath", "ok", "asks for PCI P2PDMA, which wants that$", "^$",
        {"/sys/module/nvme_core/parameters/multipath": "N", "/etc/cufile.json": '{"use_pci_p2pdma": true}',
         "/proc/sys/kernel/osrelease": "7.1.0-rc2"}),
    Row("multipath", "warn", "not available", "modprobe nvme-fabrics",
        {"/sys/module/nvme_core/parameters/multipath": MISSING}),
    Row("multipath", "warn", "unreadable: 'perhaps'", "multipath=Y",
        {"/sys/module/nvme_core/parameters/multipath": "perhaps"}),
    Row("memlock", "warn", "8MiB may be locked", "ulimit -l unlimited",
        {"/proc/self/limits": "Max locked memory         8388608              8388608              bytes"}),
    Row("memlock", "warn", "cannot be read", "LimitMEMLOCK=infinity", {"/proc/self/limits": MISSING}),
    Row("IOMMU", "warn", r"translates \(DMA-FQ\).*booted with iommu=force", "iommu=pt",
        {f"{FOLDER}/device/iommu_group/type": "DMA-FQ", "/proc/cmdline": "quiet iommu=force"}),
    Row("IOMMU", "warn", "mode is not available", "iommu=pt",
        {f"{FOLDER}/device/iommu_group/type": MISSING}),
    Row("IOMMU", "warn", r"translates \(DMA\)", "iommu=pt", {f"{FOLDER}/device/iommu_group/type": MISSING,
        f"{FOLDER}/device/net/eth0": MISSING, "/sys/kernel/iommu_groups/7": MISSING,
        "/sys/kernel/iommu_groups/7/type": "DMA"}),
    Row("IOMMU", "warn", "not available", "mount sysfs", {"/sys/kernel/iommu_groups/7": MISSING}),
    Row("IOMMU", "ok", "off: adapters reach memory directly", "^$",
        {"/sys/kernel/iommu_groups/7": MISSING, "/sys/kernel/iommu_groups": None}),
    Row("IOMMU", "warn", "cannot be listed", "mount sysfs",
        {"/sys/kernel/iommu_groups/7": MISSING, "/sys/kernel/iommu_groups": "no folder"}),
    # measured
    Row("path to peer", "fail", "4200 bytes do not arrive at 10.0.0.1, smaller ones do", "same MTU on all ends", {},
        {"ping": MISSING, "ping -n -c 1 -W 2 -M do -s 4172": Answer(problem="ping: exit status 1"),
         "ping -n -c 1 -W 2 -M do -s 1471": Answer("1 received")}),
    Row("path to peer", "warn", "not measured: ping is not installed", "VLANs", {}, {"ping": MISSING}),
    Row("round trip", "warn", "88.1 µs one way", "PFC", {}, {"ib_write_lat": Answer(LATENCY.format("88.1"))}),
    Row("round trip", "warn", "not measured: .*Couldn't connect", "start ib_write_lat -x INDEX", {},
        {"ib_write_lat": Answer("Couldn't connect to 10.0.0.1:18515", "ib_write_lat: Couldn't connect")}),
    Row("round trip", "fail", "does not get through", "UDP port 4791", {},
        {"ib_write_lat": Answer("Failed to modify QP 282 to RTR", "ib_write_lat: Unable to Connect the HCA's")}),
    Row("round trip", "warn", "nothing that can be read", "start ib_write_lat", {}, {"ib_write_lat": Answer("")}),
    Row("round trip", "warn", "not installed", "apt install perftest", {}, {"ib_write_lat": MISSING}),
    Row("round trip", "warn", "REJECTED", "start rping -s", {}, {"ib_write_lat": MISSING, "rping":
        Answer("cma event RDMA_CM_EVENT_REJECTED, error 8\nconnect error -1", "rping: connect error -1")}),
    Row("round trip", "fail", "UNREACHABLE", "UDP port 4791", {}, {"ib_write_lat": MISSING, "rping":
        Answer("cma event RDMA_CM_EVENT_UNREACHABLE, error -110\nconnect error -1", "rping: connect error -1")}),
    Row("read", "warn", "40 Gb/s from /dev/nvme2n1, 40% of the line's 100", "io_queues", {}, {"fio": fio(5e9)}),
    Row("read", "warn", "no namespace of the file is connected", "host connect",
        {"/sys/class/nvme/nvme2/state": "connecting"}),
    Row("read", "warn", "no namespace of the file is connected", "host connect",
        {"/sys/block/nvme2n1/nguid": "00000000-0000-0000-0000-000000000002"}),
    Row("read", "warn", "not measured: fio is not installed", "apt install fio", {}, {"fio": MISSING}),
    Row("read", "warn", "not measured: fio told nothing", "dmesg", {}, {"fio": fio(12e9, error=5)}),
    Row("read", "warn", "94.4 Gb/s .*line's rate is not available", "ethtool", {f"{PORT}/rate": MISSING}),
    Row("round trip", "warn", "no RDMA port leads to", "ip route get", {}, {"verbs_probe.py": verbs(gids=[])}),
    Row("round trip", "warn", "100 exchanges came back right in 1.50 s, .*: slow", "perftest", {},
        {"ib_write_lat": MISSING, "rping": Answer(seconds=1.5)}),
    Row("round trip", "ok", "100 exchanges came back right in 0.25 s", "^$", {},
        {"ib_write_lat": MISSING, "rping": Answer(seconds=0.25)}),
    Row("round trip", "warn", "no peer was named", "--peer ADDRESS", peer=None),
    Row("path to peer", "warn", "no peer was named", "--peer ADDRESS", peer=None),
    # what they can do
    Row("mlx5_0/1 driver", "warn", "Soft-RoCE: .*does not survive a link that is taken down", "never ip link set down",
        {f"{FOLDER}/parent": "eth0"}),
    Row("mlx5_0/1 driver", "warn", "not available", "rdma link show",
        {f"{FOLDER}/device/net/eth0": MISSING, f"{FOLDER}/device/iommu_group/type": MISSING}),
    Row("abilities of the target", "warn", "no persistent reservations: /dev/nvme2n1$", "one owner for each pool.*6.13",
        {}, {"nvme id-ns": Answer('{"rescap": 1}')}),
    Row("abilities of the target", "warn", "^no compare: /dev/nvme2n1; no fused compare and write: /dev/nvme2n1$",
        "kvstore's sake", {}, {"nvme id-ctrl": identify(oncs=0x5E)}),
    Row("abilities of the target", "warn", "^no fused compare and write: /dev/nvme2n1$", "kvstore's sake", {},
        {"nvme id-ctrl": identify(fuses=0)}),
    Row("abilities of the target", "warn", r"no placement \(FDP\): /dev/nvme2n1$", "drives with FDP", {},
        {"nvme id-ctrl": identify(ctratt=0x80)}),
    Row("abilities of the target", "warn", "not available: nvme is not installed", "apt install nvme-cli", {},
        {"nvme id-ctrl": MISSING, "nvme id-ns": MISSING}),
    Row("abilities of the target", "warn", "not available: nvme told nothing", "nvme id-ctrl /dev/nvme2n1", {},
        {"nvme id-ctrl": identify(oncs="many")}),
    Row("abilities of the target", "warn", "not available: no namespace is connected", "host connect",
        {"/sys/class/nvme/nvme2/state": "connecting"}),
    Row("abilities of this target", "warn", "^no persistent reservations: this kernel's nvmet.*; no compare, no fused",
        "6.13", {f"{NVMET}/enable": "1"}, {"ip -j address": own(TARGET)}),
    Row("abilities of this target", "warn", "^no compare, no fused commands", "kvstore's sake",
        {f"{NVMET}/resv_enable": "0"}, {"ip -j address": own(TARGET)}),
    Row("abilities of this target", "warn", "not available: nothing is exported", "target apply", {},
        {"ip -j address": own(TARGET)}),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.subject}: {row.told}")
def test_what_is_wrong_is_told_with_its_mend(row: Row, tmp_path: Path) -> None:
    found = look(tmp_path, row.files, row.commands, has_file=row.has_file, peer=row.peer)[row.subject]
    assert found.verdict == row.verdict, found
    assert re.search(row.told, found.told), found
    assert re.search(row.mend, found.mend), found


def test_each_subject_has_a_row_in_which_it_is_not_ok(tmp_path: Path) -> None:
    always_ok = {"module nvme_fabrics"}  # judged as nvme_rdma is
    assert set(look(tmp_path)) - {row.subject for row in ROWS if row.verdict != "ok"} == always_ok


def test_the_mend_of_ecn_turns_it_on(tmp_path: Path) -> None:
    points = [f"{NETDEV}/ecn/{point}/enable/3" for point in ("roce_np", "roce_rp")]
    mend = look(tmp_path, dict.fromkeys(points, "0"))["mlx5_0/1 ECN"].mend
    shell = mend.partition("; on the switch")[0].replace("/sys/", f"{tmp_path}/sys/")
    subprocess.run(["sh", "-ec", shell], check=True, timeout=60)
    assert [(tmp_path / one.lstrip("/")).read_text() for one in points] == ["1\n", "1\n"]


def test_every_sentence_that_gives_a_verdict_was_heard(tmp_path: Path) -> None:
    """Each place in the source that makes a finding makes one in the rows, or in what is ready."""
    folder = Path(sys.modules["kvstore.nvmf.check"].__file__ or "").parent
    places = {
        (path.name, node.lineno)
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding"
    }
    heard = set()

    def heed(frame: FrameType, event: str, argument: object) -> Any:
        if event == "call" and frame.f_code is Finding.__init__.__code__ and frame.f_back:
            heard.add((Path(frame.f_back.f_code.co_filename).name, frame.f_back.f_lineno))

    before = sys.gettrace()
    sys.settrace(heed)
    try:
        for number, row in enumerate(ROWS):
            look(tmp_path / str(number), row.files, row.commands, has_file=row.has_file, peer=row.peer)
        look(tmp_path / "ready")
    finally:
        sys.settrace(before)
    assert places - heard == set()


@pytest.mark.parametrize("gone", [*FILES, *COMMANDS])
def test_without_any_one_source_not_all_is_ok(gone: str, tmp_path: Path) -> None:
    found = look(tmp_path, *({gone: MISSING} if gone in part else {} for part in (FILES, COMMANDS)))
    assert {one.verdict for one in found.values()} != {"ok"}


@pytest.mark.parametrize("garbage", ["", "\udcff\udcfe", "-", "1e999", "0x", "EINVAL", "4: \n\n", "[" * 50])
@pytest.mark.parametrize("name", [name for name, text in FILES.items() if text is not None])
def test_a_malformed_file_is_told_and_is_not_ok(name: str, garbage: str, tmp_path: Path) -> None:
    assert {one.verdict for one in look(tmp_path, {name: garbage}).values()} != {"ok"}


@pytest.mark.parametrize(
    "garbage", ["", "null", "[]", "{}", "[[]]", '{"mlx5_0": {"ports": [1]}}', "{", "\x00" * 9, "7"]
)
@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "ping"])
def test_an_answer_that_cannot_be_read_is_told_and_is_not_ok(command: str, garbage: str, tmp_path: Path) -> None:
    assert {one.verdict for one in look(tmp_path, {}, {command: Answer(garbage)}).values()} != {"ok"}


def test_where_pyverbs_is_missing_the_gids_are_those_of_sysfs_and_say_so(tmp_path: Path) -> None:
    table = {"gids/0": "fe80:0000:0000:0000:ba3f:d2ff:fe00:0001", "gid_attrs/types/0": "RoCE v2",
             "gids/1": "0000:0000:0000:0000:0000:ffff:0a00:0002", "gid_attrs/types/1": "RoCE v2",
             "gids/2": "0000:0000:0000:0000:0000:0000:0000:0000", "gid_attrs/types/2": "EINVAL",
             "gids/3": "fe80:0000:0000:0000:0000:0000:0000:0000", "gids/many": "fe80::1"}  # fmt: skip
    found = look(tmp_path, {f"{PORT}/{name}": text for name, text in table.items()}, {"verbs_probe.py": GONE})
    assert found["GID for 10.0.0.1"].verdict == "ok"
    assert found["GID for 10.0.0.1"].told.startswith("index 1 ")
    assert {found[one].source for one in ("GID for 10.0.0.1", "mlx5_0/1 GIDs")} == {"sysfs"}
    assert found["pyverbs"].verdict == "warn"


def test_a_namespace_over_tcp_is_measured_against_the_interface_of_each_way_to_it(tmp_path: Path) -> None:
    second = {"transport": "tcp", "address": "traddr=10.0.0.8", "subsysnqn": SPEC.subsystems[0].nqn, "state": "live"}
    files = {f"/sys/class/nvme/nvme3/{name}": text for name, text in second.items()}
    files |= {f"{NETDEV}/speed": "25000", "/sys/class/nvme/nvme2/transport": "tcp"}
    found = look(tmp_path, files, {"fio": fio(3e9)})["read"]
    assert (found.verdict, found.told) == ("ok", "24 Gb/s from /dev/nvme2n1, 96% of the line's 25")


def test_fio_is_told_to_read_only_and_what_is_connected_elsewhere_is_not_read(tmp_path: Path) -> None:
    local = {"/sys/block/nvme0n1/nguid": f"{1:032x}", "/sys/block/nvme0n1/device/subsysnqn": "nqn.local",
             "/sys/class/nvme/nvme0/transport": "pcie", "/sys/class/nvme/nvme0/subsysnqn": "nqn.local",
             "/sys/class/nvme/nvme0/state": "live"}  # fmt: skip
    made = machine(tmp_path, {**FILES, **local}, COMMANDS)
    line = next(line for line in plan(SPEC, machine=made) if line.startswith("run fio"))
    assert {"--readonly", "--rw=read", "--direct=1", "--runtime=5"} < set(line.split())
    assert [part for part in line.split() if "/dev/" in part] == ["--filename=/dev/nvme2n1"]


def test_an_entry_without_a_type_is_never_used(tmp_path: Path) -> None:
    table = {f"{PORT}/gids/1": "0000:0000:0000:0000:0000:ffff:0a00:0002", f"{PORT}/gid_attrs/types/1": "EINVAL"}
    found = look(tmp_path, table, {"verbs_probe.py": GONE})
    assert found["GID for 10.0.0.1"].verdict == "fail"
    assert (found["mlx5_0/1 GIDs"].verdict, "type not available" in found["mlx5_0/1 GIDs"].told) == ("warn", True)


def test_without_a_file_every_port_is_looked_at_and_nothing_needs_an_address(tmp_path: Path) -> None:
    found = look(tmp_path, {"/sys/class/infiniband/rxe0/ports/1/state": "4: ACTIVE"}, has_file=False, peer=None)
    assert {"mlx5_0/1 link", "rxe0/1 link"} <= set(found)
    assert not [subject for subject in found if subject.startswith("GID for")]
    assert (found["round trip"].verdict, "--peer" in found["round trip"].mend) == ("warn", True)


def test_ports_that_no_address_of_the_file_leads_to_are_left_out(tmp_path: Path) -> None:
    found = look(tmp_path, {"/sys/class/infiniband/rxe0/ports/1/state": "1: DOWN"})
    assert not [subject for subject in found if subject.startswith("rxe0")]


def test_an_ipv6_address_is_its_own_gid_however_it_is_written(tmp_path: Path) -> None:
    route = Answer(json.dumps([{"dst": TARGET, "dev": "eth0", "prefsrc": "fd00::2"}]))
    gids = [*GIDS, {"index": 4, "gid": "fd00:0000:0000:0000:0000:0000:0000:0002", "type": "RoCE v2", "netdev_index": 2}]
    found = look(tmp_path, {}, {"ip -j route": route, "verbs_probe.py": verbs(gids=gids)})
    assert found["GID for 10.0.0.1"].told.startswith("index 4 of mlx5_0/1")


def test_a_vlan_is_found_by_its_entry_and_not_by_its_name(tmp_path: Path) -> None:
    route = Answer(json.dumps([{"dst": TARGET, "dev": "eth0.100", "prefsrc": LOCAL}]))
    assert look(tmp_path, {}, {"ip -j route": route})["GID for 10.0.0.1"].told.startswith("index 3 of mlx5_0/1")


def test_a_host_that_the_file_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are decode1"):
        look(tmp_path, host="decode9")
    assert look(tmp_path / "again", host="decode1")["module nvme_rdma"].verdict == "ok"


def test_a_plan_names_what_is_read_and_run_and_measures_nothing(tmp_path: Path) -> None:
    made = machine(tmp_path, FILES, {**COMMANDS, "ib_write_lat": GONE, "ping": GONE})
    ran: list[str] = []
    answer = made.run
    made.run = lambda command, within_s: (ran.append(command[0]), answer(command, within_s))[1]
    lines = plan(SPEC, peer=TARGET, machine=made)
    assert {f"read {PORT}/state", "run dcb -j pfc show dev eth0"} < set(lines)
    assert f"run ib_write_lat -d mlx5_0 -i 1 -x 3 -F {TARGET}" in lines
    assert not {"ib_write_lat", "ping"} & set(ran)
    assert "dcb" in ran


def test_a_command_that_does_not_end_is_told_within_its_deadline(tmp_path: Path) -> None:
    def hang(command: object, within_s: float) -> Answer:
        return run((sys.executable, "-c", "import time; time.sleep(60)"), min(within_s, 0.05))

    made = machine(tmp_path, FILES, COMMANDS)
    made.run = hang
    started = time.monotonic()
    found = findings(SPEC, peer=TARGET, machine=made)
    assert time.monotonic() - started < 60  # one that slept to its end would take that alone
    assert [one for one in found if one.verdict == "warn" and "did not end within 0.05 s" in one.told]
    assert all(one.mend for one in found if one.verdict != "ok")


def test_a_grandchild_that_keeps_the_output_open_is_not_waited_for() -> None:
    # It leaves the process group, so that killing that does not reach it; it ends by itself.
    child = "import os, time; os.fork() or (os.setsid(), time.sleep(20)); print('done')"
    assert run((sys.executable, "-c", child), 60).seconds < 20
    child = "import os, time; os.fork() or (os.setsid(), time.sleep(20)); time.sleep(60)"
    assert "did not end within 0.5 s" in run((sys.executable, "-c", child), 0.5).problem


def test_what_a_command_complains_of_is_its_problem() -> None:
    assert run((sys.executable, "-c", "import sys; print('out'); sys.exit('no such port')"), 60).problem.endswith(
        ": no such port"
    )
    assert run(("/nowhere/dcb",), 60).problem == "/nowhere/dcb cannot be run: No such file or directory"
    assert Machine().ask("a-program-that-is-not-there").problem == "a-program-that-is-not-there is not installed"


# ---- the verb ----


def check(root: Path, files: Mapping[str, object], *arguments: str) -> int:
    made = machine(root, changed(FILES, files), COMMANDS)  # type: ignore[arg-type]
    return main(["check", *arguments], nvmf_cli.Machine(checked=lambda: made))


def test_the_verb_prints_each_finding_with_its_mend_and_fails_when_one_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path / "slow", {f"{NETDEV}/mtu": "1500"}) == 0
    said = capsys.readouterr().out
    assert re.search(r"^warn  mlx5_0/1 MTU  +eth0 1500, RDMA 4096.*\n +mend: ip link set dev eth0 mtu 4200", said, re.M)
    assert said.endswith("15 ok, 3 warnings, 0 failed\n")
    assert check(tmp_path / "slow-too", {f"{NETDEV}/mtu": "1500"}, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["failed"]) == (False, False)  # a warning is not ok
    assert check(tmp_path / "down", {f"{PORT}/state": "1: DOWN"}, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["failed"]) == (False, True)
    link = next(one for one in told["findings"] if one["subject"] == "mlx5_0/1 link")
    assert (link["verdict"], link["source"]) == ("fail", "sysfs")


def test_the_verb_reads_a_file_that_is_given_and_refuses_one_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path / "a", {}, "/nowhere/pool.yaml") == 2
    assert "cannot be read" in capsys.readouterr().err
    assert check(tmp_path / "b", {}, "--dry-run", "--peer", TARGET) == 0
    assert f"run ib_write_lat -d mlx5_0 -i 1 -x 3 -F {TARGET}" in capsys.readouterr().out.splitlines()


# ---- the program that asks pyverbs ----


class Verbs:
    """pyverbs.device of Debian's 44.0 as far as the probe uses it, with one device that does not open."""

    class Error(Exception):
        pass

    class Named:
        def __init__(self, **values: object) -> None:
            self.__dict__.update(values)

    def get_device_list(self) -> list[Named]:
        return [self.Named(name=b"rxe0"), self.Named(name=b"mlx5_9")]

    def Context(self, name: str) -> Verbs:
        if name != "rxe0":
            raise self.Error(f"Failed to open device {name}")
        return self

    def __enter__(self) -> Verbs:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def query_device(self) -> Named:
        return self.Named(phys_port_cnt=1, fw_version="")

    def query_port(self, number: int) -> Named:
        return self.Named(state=4, link_layer=2, active_mtu=3, max_mtu=5, gid_tbl_len=1024)

    def query_gid_table(self, entries_max: int) -> list[Named]:
        assert entries_max == 1024
        entry = {"gid_index": 1, "gid_type": 2, "ndev_ifindex": 7, "gid_str": lambda: "::ffff:10.0.0.2"}
        return [self.Named(port_num=1, **entry), self.Named(port_num=2, **entry)]


def test_the_probe_tells_ports_mtus_in_bytes_and_gids_and_which_device_does_not_open() -> None:
    found = devices(Verbs(), Verbs.Error)
    entry = {"index": 1, "gid": "::ffff:10.0.0.2", "type": "RoCE v2", "netdev_index": 7}
    port = {"state": 4, "is_ethernet": True, "active_mtu": 1024, "max_mtu": 4096, "gids": [entry]}
    assert found["rxe0"] == {"firmware": "", "ports": {"1": port}}
    assert found["mlx5_9"] == {"problem": "Failed to open device mlx5_9"}


def test_the_probe_is_a_program_that_needs_nothing_but_pyverbs(tmp_path: Path) -> None:
    (tmp_path / "pyverbs").mkdir()
    (tmp_path / "pyverbs/__init__.py").touch()
    (tmp_path / "pyverbs/pyverbs_error.py").write_text("class PyverbsError(Exception): pass\n")
    (tmp_path / "pyverbs/device.py").write_text("get_device_list = lambda: []\n")
    script = f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); runpy.run_path({PROBE!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("{}\n", "")
