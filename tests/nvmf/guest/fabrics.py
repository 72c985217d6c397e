# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""In the guest: a target and its hosts, made by nvmf-setup. By hand is only the hardware: drives and networks.

In the guest "alone" both are on one machine: a drive each for TCP and for RoCEv2, under device mapper, so that a drive
can fail; two host NQNs, one for each transport. With three guests each has its part of one file.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support import PROGRAM_S, drive, read_text, run, wait_for

from kvstore.nvmf import cli

ROOT = Path(__file__).resolve().parents[3]
FILE = Path("/run/pool.yaml")
NVMET = Path("/sys/kernel/config/nvmet")
TRANSPORTS = ("tcp", "rdma")
PORT_IDS = {"tcp": 1, "rdma": 2}
ADDRESS = "10.77.0.1"
CONNECTION = {
    "io_queues": 2,
    "queue_size": 64,
    "keep_alive_s": 10,
    "reconnect_delay_s": 1,
    "fast_io_fail_s": 5,
    "controller_loss_s": 120,
}


def nqn(transport: str) -> str:
    return f"nqn.2026-11.com.example:{transport}"


def identity(number: int) -> str:
    return f"6b766e76-6d66-4000-8000-{number:012x}"


def namespace(number: int, device: str, nsid: int = 1) -> dict[str, Any]:
    return {"nsid": nsid, "device": device, "uuid": identity(number), "nguid": identity(number + 0x100)}


def host(name: str, number: int, **more: str) -> dict[str, Any]:
    return {
        "name": name,
        "nqn": f"nqn.2014-08.org.nvmexpress:uuid:{identity(number)}",
        "host_id": identity(number),
        **more,
    }


def port(transport: str) -> dict[str, Any]:
    return {
        "id": PORT_IDS[transport],
        "transport": transport,
        "address": ADDRESS,
        "service": 4419 + PORT_IDS[transport],
    }


def subsystem(transport: str, namespaces: Sequence[dict[str, Any]], hosts: Sequence[str]) -> dict[str, Any]:
    return {
        "nqn": nqn(transport),
        "serial": f"KV{transport.upper()}",
        "namespaces": list(namespaces),
        "hosts": list(hosts),
        "ports": [PORT_IDS[transport]],
    }


def write_file(path: Path, **changed: Any) -> Path:
    """The file of the guest "alone"; ``changed``: its parts by name. JSON is YAML."""
    whole = {
        "subsystems": [
            subsystem(transport, [namespace(number, f"/dev/mapper/under-{transport}")], [f"{transport}-host"])
            for number, transport in enumerate(TRANSPORTS, 1)
        ],
        "ports": [port(transport) for transport in TRANSPORTS],
        "hosts": [host(f"{transport}-host", number) for number, transport in enumerate(TRANSPORTS, 0x10)],
        "connection": CONNECTION,
    }
    path.write_text(json.dumps(whole | changed, indent=1))
    return path


# ---- nvmf-setup ----


def setup(*words: str) -> tuple[int, str, str]:
    """nvmf-setup in this process, which has imported it: exit status, output, errors."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = cli.main(words)
    return status, out.getvalue(), errors.getvalue()


def do(*words: str) -> dict[str, Any]:
    """What must succeed; its report."""
    status, out, errors = setup(*words, "--json")
    assert status == 0, f"nvmf-setup {' '.join(words)}: {status}: {errors}{out}"
    return json.loads(out)


def program(*words: str) -> str:
    """The program itself, as a user starts it."""
    return run(sys.executable, str(ROOT / "tools" / "nvmf-setup"), *words)


# ---- the machine ----


def netdev() -> str:
    """The interface to the other guests, or one end of a pair in the only one, which need not lead anywhere."""
    real = [path.name for path in Path("/sys/class/net").iterdir() if (path / "device").exists()]
    if real:
        return real[0]
    if not Path("/sys/class/net/rdma0").exists():
        run("ip", "link", "add", "rdma0", "type", "veth", "peer", "name", "rdma0-peer")
        run("ip", "link", "set", "rdma0-peer", "mtu", "4200", "up")
    return "rdma0"


def network(address: str) -> None:
    """An address, and a Soft-RoCE device whose MTU of 4096 fits."""
    if Path("/sys/class/infiniband/rxe0").exists():
        return
    run("modprobe", "-a", "rdma_rxe", "ib_uverbs", "rdma_ucm", "veth", "virtio_net", "sch_netem")
    name = netdev()
    run("ip", "addr", "add", f"{address}/24", "dev", name)
    run("ip", "link", "set", name, "mtu", "4200", "up")
    run("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", name)
    state = Path("/sys/class/infiniband/rxe0/ports/1/state")
    wait_for("the RDMA port is active", lambda: "ACTIVE" in read_text(state))


def mapped(name: str, serial: str) -> None:
    """A device under which the drive can be exchanged for faults."""
    if not Path("/dev/mapper", name).exists():
        run("modprobe", "-a", "dm-mod", "dm-delay", "dm-flakey")
        run("dmsetup", "create", name, "--table", linear(serial))


def sectors(serial: str) -> int:
    return int(read_text(Path("/sys/block", drive(serial).removeprefix("/dev/"), "size")))


def linear(serial: str) -> str:
    return f"0 {sectors(serial)} linear {drive(serial)} 0"


def exchange(name: str, table: str) -> None:
    """Requests wait while the table is exchanged."""
    run("dmsetup", "suspend", "--noflush", name)
    run("dmsetup", "load", name, "--table", table)
    run("dmsetup", "resume", name)


def prepare() -> None:
    """All of the guest "alone" up to the target; nothing where it is there."""
    network(ADDRESS)
    for transport in TRANSPORTS:
        mapped(f"under-{transport}", f"UNDER-{transport.upper()}")
    do("target", "apply", str(write_file(FILE)))


# ---- hosts ----


def connect(transport: str, file: Path = FILE) -> str:
    """Connected, if it was not; the namespace's device."""
    do("host", "connect", str(file), "--host", f"{transport}-host")
    return device(transport, file)


def device(transport: str, file: Path = FILE) -> str:
    report = do("host", "status", str(file), "--host", f"{transport}-host")
    (found,) = [part["devices"] for part in report["parts"] if "nguid" in part]
    return found[0]


def disconnect(transport: str) -> None:
    do("host", "disconnect", str(FILE), "--host", f"{transport}-host")


def controllers(transport: str) -> list[Path]:
    """Of the connections to a subsystem; none where the kernel has given up."""
    found = []
    for path in Path("/sys/class/nvme").iterdir():
        with contextlib.suppress(OSError):  # goes while it is looked at
            if read_text(path / "subsysnqn") == nqn(transport):
                found.append(path)
    return found


def state(transport: str) -> str:
    with contextlib.suppress(OSError):
        return ",".join(read_text(path / "state") for path in controllers(transport)) or "gone"
    return "gone"


def await_state(transport: str, *wanted: str, timeout_s: float = PROGRAM_S) -> None:
    wait_for(f"{transport} is {' or '.join(wanted)}", lambda: state(transport) in wanted, timeout_s)


def kernel_log() -> str:
    return subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
