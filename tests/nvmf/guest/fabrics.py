# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""In the guest: a target and its hosts, made by nvmf-setup. By hand is only the hardware: drives and networks.

A drive each for TCP and for RoCEv2, under device mapper, so that a drive can fail; two host NQNs for each guest. In the
guest "alone" target and host are on one machine, else the guests "one" and "two" are hosts of the guest "target".
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
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
ADDRESS = "10.77.0.1"  # of the target in the guest "alone"; on link N it is 10.77.N.1
LINKS = {"one": 1, "two": 2}  # by host, when there are three guests
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


def port(transport: str, number: int = 0) -> dict[str, Any]:
    """On a link."""
    kind = PORT_IDS[transport]
    return {"id": 10 * number + kind, "transport": transport, "address": f"10.77.{number}.1", "service": 4419 + kind}


def subsystem(
    transport: str, namespaces: Sequence[dict[str, Any]], hosts: Sequence[str], links: Sequence[int] = (0,)
) -> dict[str, Any]:
    return {
        "nqn": nqn(transport),
        "serial": f"KV{transport.upper()}",
        "namespaces": list(namespaces),
        "hosts": list(hosts),
        "ports": [port(transport, number)["id"] for number in links],
    }


def host_name(transport: str, guest: str | None = None) -> str:
    """Of this guest in the file: a host NQN for each transport, so that each has a pool of its own."""
    return f"{guest or os.uname().nodename}-{transport}"


def write_file(path: Path, guests: Sequence[str] = (), links: Sequence[int] = (0,), **changed: Any) -> Path:
    """The file for these guests, or this one, as hosts; ``changed``: its parts by name. JSON is YAML."""
    names = {transport: [host_name(transport, guest) for guest in guests or [None]] for transport in TRANSPORTS}
    whole = {
        "subsystems": [
            subsystem(transport, [namespace(number, f"/dev/mapper/under-{transport}")], names[transport], links)
            for number, transport in enumerate(TRANSPORTS, 1)
        ],
        "ports": [port(transport, number) for transport in TRANSPORTS for number in links],
        "hosts": [host(name, number) for number, name in enumerate(itertools.chain(*names.values()), 0x10)],
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


def interface(number: int) -> str:
    """To the other end of a link between guests (scripts/vm/guest.py)."""
    for path in Path("/sys/class/net").iterdir():
        if read_text(path / "address").startswith(f"52:54:00:00:{number:02x}:"):
            return path.name
    raise AssertionError(f"no link {number}")


def netdev() -> str:
    """In a guest without a link: one end of a pair, which need not lead anywhere."""
    if Path("/sys/class/net/rdma0").exists():
        return "rdma0"
    run("ip", "link", "add", "rdma0", "type", "veth", "peer", "name", "rdma0-peer")
    run("ip", "link", "set", "rdma0-peer", "mtu", "4200", "up")
    return "rdma0"


def network(address: str, number: int = 0) -> None:
    """An address, and a Soft-RoCE device whose MTU of 4096 fits. 0: in a guest that has no link."""
    rxe = f"rxe{number}"
    if Path("/sys/class/infiniband", rxe).exists():
        return
    run("modprobe", "-a", "rdma_rxe", "ib_uverbs", "rdma_ucm", "veth", "virtio_net", "sch_netem")
    name = interface(number) if number else netdev()
    run("ip", "addr", "add", f"{address}/24", "dev", name)
    run("ip", "link", "set", name, "mtu", "4200", "up")
    run("rdma", "link", "add", rxe, "type", "rxe", "netdev", name)
    state = Path("/sys/class/infiniband", rxe, "ports/1/state")
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


def clear() -> None:
    """No connection and no target, whatever earlier tests have left."""
    if FILE.exists():
        for transport in TRANSPORTS:
            disconnect(transport)
        do("target", "remove")


# ---- hosts ----


def connect(transport: str, file: Path = FILE) -> str:
    """Connected, if it was not; the namespace's device."""
    do("host", "connect", str(file), "--host", host_name(transport))
    return device(transport, file)


def device(transport: str, file: Path = FILE) -> str:
    report = do("host", "status", str(file), "--host", host_name(transport))
    (found,) = [part["devices"] for part in report["parts"] if "nguid" in part]
    return found[0]


def disconnect(transport: str) -> None:
    do("host", "disconnect", str(FILE), "--host", host_name(transport))


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
