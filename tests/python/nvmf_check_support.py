# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A host that is ready for RoCE v2, as `nvmf-setup check` sees it: files, and what commands answer. Tests break it.

One 100 GbE port of ConnectX kind, in the kernel's own formats: Documentation/ABI for sysfs, dcb and ip of iproute2,
ib_write_lat of perftest, fio.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvstore.nvmf.check import Answer, Machine
from kvstore.nvmf.spec import Connection, Host, Namespace, Port, Spec, Subsystem

TARGET, LOCAL = "10.0.0.1", "10.0.0.2"
RELEASE = "6.12.0-test"
FOLDER = "/sys/class/infiniband/mlx5_0"
PORT = f"{FOLDER}/ports/1"
NETDEV = "/sys/class/net/eth0"

SPEC = Spec(
    "pool.yaml",
    (
        Subsystem(
            "nqn.2026-11.com.example:pool",
            "pool0",
            (Namespace(1, "/dev/disk/by-id/nvme-a", "00000001-0000-4000-8000-000000000000", f"{1:032x}"),),
            ("decode1",),
            (1,),
        ),
    ),
    (Port(1, "rdma", TARGET, 4420),),
    (Host("decode1", "nqn.2026-11.com.example:decode1", "11111111-0000-4000-8000-000000000000"),),
    Connection(),
)

#: None: a folder.
FILES: dict[str, str | None] = {
    f"{PORT}/state": "4: ACTIVE",
    f"{PORT}/phys_state": "5: LinkUp",
    f"{PORT}/link_layer": "Ethernet",
    f"{PORT}/rate": "100 Gb/sec (4X EDR)",
    f"{FOLDER}/device/net/eth0": None,
    f"{FOLDER}/device/iommu_group/type": "identity",
    f"{NETDEV}/mtu": "4200",
    f"{NETDEV}/speed": "100000",
    f"{NETDEV}/ecn/roce_np/enable/3": "1",
    f"{NETDEV}/ecn/roce_rp/enable/3": "1",
    "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos": "106",
    "/sys/module/nvme_fabrics": None,
    "/sys/module/nvme_rdma": None,
    "/sys/module/nvme_core/parameters/multipath": "Y",
    "/sys/kernel/iommu_groups/7": None,
    "/sys/class/nvme/nvme2/transport": "rdma",
    "/sys/class/nvme/nvme2/address": f"traddr={TARGET},trsvcid=4420,src_addr={LOCAL}",
    "/sys/class/nvme/nvme2/subsysnqn": "nqn.2026-11.com.example:pool",
    "/sys/class/nvme/nvme2/state": "live",
    "/sys/block/nvme2n1/nguid": "00000000-0000-0000-0000-000000000001",
    "/sys/block/nvme2n1/device/subsysnqn": "nqn.2026-11.com.example:pool",
    "/proc/sys/kernel/osrelease": RELEASE,
    "/proc/self/limits": "Max locked memory         unlimited            unlimited            bytes",
}

GIDS: list[dict[str, Any]] = [
    {"index": 0, "gid": "fe80::ba3f:d2ff:fe00:1", "type": "RoCE v1", "netdev_index": 2},
    {"index": 1, "gid": "fe80::ba3f:d2ff:fe00:1", "type": "RoCE v2", "netdev_index": 2},
    {"index": 2, "gid": "::ffff:10.0.0.2", "type": "RoCE v1", "netdev_index": 2},
    {"index": 3, "gid": "::ffff:10.0.0.2", "type": "RoCE v2", "netdev_index": 2},
]


def verbs(**changes: Any) -> Answer:
    """What the probe prints of the port."""
    port = {"state": 4, "is_ethernet": True, "active_mtu": 4096, "max_mtu": 4096, "gids": GIDS, **changes}
    return Answer(json.dumps({"mlx5_0": {"firmware": "22.31.1014", "ports": {"1": port}}}))


def pfc(*priorities: int) -> Answer:
    on = [one in priorities for one in range(8)]
    return Answer(json.dumps({"pfc_cap": 8, "macsec_bypass": False, "delay": 0, "prio_pfc": on}))


def own(address: str, netdev: str = "eth0") -> Answer:
    return Answer(json.dumps([{"ifname": netdev, "addr_info": [{"family": "inet", "local": address}]}]))


LATENCY = """\
 Data ex. method : Ethernet
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:00:00:01
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]  99% percentile[usec]
Conflicting CPU frequency values detected: 2400.000000 != 1873.463000. CPU Frequency is not max.
 2       1000          1.76           6.12         {0}  \t       1.80     \t0.06\t\t1.88 \t\t6.12
"""


def fio(bytes_per_s: float, error: int = 0) -> Answer:
    job = {"jobname": "nvme2n1", "error": error, "read": {"bw_bytes": bytes_per_s, "io_bytes": 1 << 30}}
    return Answer("fio: something it notes first\n" + json.dumps({"fio version": "fio-3.33", "jobs": [job]}))


def identify(oncs: object = 0x5F, fuses: object = 1, ctratt: object = 1 << 19) -> Answer:
    """Of a controller that can do all there is, as `nvme id-ctrl` prints it."""
    return Answer(json.dumps({"vid": 5555, "oncs": oncs, "fuses": fuses, "ctratt": ctratt}))


#: By the beginning of the command, without the path of its program.
COMMANDS: dict[str, Answer] = {
    "verbs_probe.py": verbs(),
    "ip -j address": own(LOCAL),
    "ip -j route": Answer(json.dumps([{"dst": TARGET, "dev": "eth0", "prefsrc": LOCAL, "flags": [], "cache": []}])),
    "dcb -j pfc": pfc(3),
    "dcb -j app": Answer('{"dscp_prio":[[26,3],[48,6]]}'),
    "ib_write_lat": Answer(LATENCY.format("1.79")),
    "ping": Answer("1 packets transmitted, 1 received"),
    "fio": fio(11_800_000_000),
    "nvme id-ctrl": identify(),
    "nvme id-ns": Answer('{"nsze": 8, "rescap": 255}'),
}


def machine(root: Path, files: Mapping[str, str | None], commands: Mapping[str, Answer]) -> Machine:
    """The host of these files; a file that is "EINVAL" refuses to be read. Commands that are not here do not exist."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        if text is None or text == "EINVAL":
            path.mkdir(parents=True)  # reading a folder is refused
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, errors="surrogateescape")

    def run(command: Sequence[str], within_s: float) -> Answer:
        assert within_s > 0
        line = " ".join([Path(command[0]).name, *command[1:]])
        line = "verbs_probe.py" if "verbs_probe.py" in line else line
        found = [answer for start, answer in commands.items() if line.startswith(start)]
        return found[0] if found else Answer(problem=f"{command[0]}: not prepared for {line}")

    def which(program: str) -> str | None:
        name = Path(program).name
        is_there = name.startswith("python") or any(start.split()[0] == name for start in commands)
        return program if is_there else None

    return Machine(root, run, which)
