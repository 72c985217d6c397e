# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of how RoCE's packets are kept from being dropped: their class (DSCP), pause by class (PFC), marks (ECN).

A verdict is ok only when all that it needs was really told: which DSCP, which priority that is, and what holds for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvstore.nvmf.check.finding import Finding
from kvstore.nvmf.check.machine import Machine
from kvstore.nvmf.check.ports import Port

__all__ = ["check_classes"]

_TOS = 106  # DSCP 26, which switches' presets take for RDMA, and "ECN-capable"
_PRIORITY = 3
_PRIORITIES = 8


@dataclass(frozen=True)
class _Classes:
    """What holds for an interface; None: not told, of which ``problem`` says why."""

    lossless: frozenset[int] | None = None
    priorities: Mapping[int, int] | None = None  # by DSCP
    source: str = ""
    problem: str = ""


def check_classes(machine: Machine, port: Port) -> Iterator[Finding]:
    """The three findings, which belong together."""
    if not port.netdev:
        for what in ("DSCP", "PFC", "ECN"):
            told = "not available: the port has no network interface"
            yield Finding(f"{port.name} {what}", "warn", told, f"see {port.folder}, and rdma link show", "sysfs")
        return
    classes = _ask_classes(machine, port.netdev)
    tos, source = _read_tos(machine, port)
    priority = classes.priorities.get(tos >> 2) if tos and classes.priorities is not None else None
    yield _judge_dscp(port, tos, source, priority, classes)
    yield _judge_pfc(port, priority, classes)
    yield _check_ecn(machine, port, priority)


def _read_tos(machine: Machine, port: Port) -> tuple[int | None, str]:
    """The byte of which DSCP is the upper six bits: what the vendor's driver forces, or what connections ask for."""
    forced = re.search(
        r"Global tclass=(\d+)",
        machine.read(f"/sys/class/infiniband/{port.device}/tc/{port.number}/traffic_class") or "",
    )
    if forced:
        return int(forced[1]), "sysfs traffic_class"
    return machine.number(f"{_cm_folder(port)}/default_roce_tos"), "configfs rdma_cm"


def _cm_folder(port: Port) -> str:
    return f"/sys/kernel/config/rdma_cm/{port.device}/ports/{port.number}"


def _judge_dscp(port: Port, tos: int | None, source: str, priority: int | None, classes: _Classes) -> Finding:
    subject = f"{port.name} DSCP"
    mend = (
        f"modprobe rdma_cm; mkdir -p /sys/kernel/config/rdma_cm/{port.device}; "
        f"echo {_TOS} > {_cm_folder(port)}/default_roce_tos, before connecting and on both ends"
    )
    if tos is None:
        return Finding(subject, "warn", "not available: nobody has set a class for RDMA connections", mend, source)
    told = f"traffic class {tos}, DSCP {tos >> 2}"
    if tos >> 2 == 0:
        return Finding(subject, "warn", f"{told}: RDMA shares the class of everything else", mend, source)
    trust = f"dcb app add dev {port.netdev} dscp-prio {tos >> 2}:{_PRIORITY}, or mlnx_qos -i {port.netdev} --trust dscp"
    if classes.priorities is None:
        told = f"{told}; which priority that is: not available ({classes.problem})"
        return Finding(subject, "warn", told, trust, source)
    if priority is None:
        return Finding(subject, "warn", f"{told}, which the adapter gives no priority", trust, source)
    return Finding(subject, "ok", f"{told}, priority {priority}", source=f"{source}, {classes.source}")


def _judge_pfc(port: Port, priority: int | None, classes: _Classes) -> Finding:
    subject = f"{port.name} PFC"
    wanted = _PRIORITY if priority is None else priority
    mend = (
        f"dcb pfc set dev {port.netdev} prio-pfc all:off {wanted}:on, or mlnx_qos -i {port.netdev} --pfc "
        f"{','.join(str(int(one == wanted)) for one in range(_PRIORITIES))}; on the switch, too"
    )
    if classes.lossless is None:
        return Finding(subject, "warn", f"not available: {classes.problem}", mend, classes.source or "dcb")
    told = f"on for priority {', '.join(map(str, sorted(classes.lossless)))}" if classes.lossless else "off"
    if priority is None:
        return Finding(subject, "warn", f"{told}; RDMA's priority is not known", mend, classes.source)
    if priority not in classes.lossless:
        told = f"{told}, not for RDMA's priority {priority}: a full buffer drops packets"
        return Finding(subject, "warn", told, mend, classes.source)
    if len(classes.lossless) == _PRIORITIES:
        told = "on for every priority: whatever fills a buffer stops RDMA, too"
        return Finding(subject, "warn", told, mend, classes.source)
    return Finding(subject, "ok", told, source=classes.source)


def _check_ecn(machine: Machine, port: Port, priority: int | None) -> Finding:
    """Both as notification point, which tells the sender of marks, and as reaction point, which slows down."""
    subject = f"{port.name} ECN"
    folder = f"/sys/class/net/{port.netdev}/ecn"
    points = ("roce_np", "roce_rp")
    wanted = _PRIORITY if priority is None else priority
    states = {point: machine.number(f"{folder}/{point}/enable/{wanted}") for point in points}
    mend = f"for p in {' '.join(points)}; do echo 1 > {folder}/$p/enable/{wanted}; done; on the switch, too"
    if None in states.values():
        told = f"not available: no {folder}, which only the vendor's driver of mlx5 has"
        mend = (
            "ask the adapter's own tool (cc_params of mlx5 are in debugfs, niccli for bnxt), and the switch's counters"
        )
        return Finding(subject, "warn", told, mend, "sysfs")
    told = ", ".join(f"{point} {'on' if state == 1 else 'off'}" for point, state in states.items())
    told = f"priority {wanted}: {told}"
    if priority is None:
        return Finding(subject, "warn", f"{told}; RDMA's priority is not known", mend, "sysfs")
    if any(state != 1 for state in states.values()):
        return Finding(subject, "warn", told, mend, "sysfs")
    return Finding(subject, "ok", told, source="sysfs")


def _ask_classes(machine: Machine, netdev: str) -> _Classes:
    """dcb, or the vendor's tool where the driver does not answer that."""
    pfc = machine.ask("dcb", "-j", "pfc", "show", "dev", netdev)
    lossless = _flags(_object(pfc.text).get("prio_pfc")) if not pfc.problem else None
    if lossless is not None:
        app = machine.ask("dcb", "-j", "app", "show", "dev", netdev)
        priorities = _pairs(_object(app.text).get("dscp_prio", [])) if not app.problem else None
        return _Classes(lossless, priorities, "dcb", app.problem or "dcb told nothing that can be read")
    vendor = machine.ask("mlnx_qos", "-i", netdev)
    found = re.search(r"^\s*enabled\s+([01](?:\s+[01]){7})\s*$", vendor.text, re.MULTILINE)
    if vendor.problem or not found:
        unread = "told nothing that can be read"
        return _Classes(problem=f"{pfc.problem or f'dcb {unread}'}; {vendor.problem or f'mlnx_qos {unread}'}")
    on = frozenset(index for index, flag in enumerate(found[1].split()) if flag == "1")
    trust = re.search(r"^Priority trust state: (\w+)", vendor.text, re.MULTILINE)
    mapped = re.findall(r"prio:(\d) dscp:([\d,]+)", vendor.text)
    priorities = {int(dscp): int(one) for one, list_ in mapped for dscp in list_.split(",") if dscp}
    return _Classes(on, priorities if trust and trust[1] == "dscp" else {}, "mlnx_qos")


def _object(text: str) -> Mapping[str, Any]:
    try:
        read = json.loads(text)
    except ValueError:
        return {"dscp_prio": None}
    return read if isinstance(read, dict) else {"dscp_prio": None}


def _flags(value: object) -> frozenset[int] | None:
    """The numbers of those that are on, of eight."""
    if not isinstance(value, list) or len(value) != _PRIORITIES:
        return None
    return frozenset(index for index, flag in enumerate(value) if flag in (True, "on"))


def _pairs(value: object) -> Mapping[int, int] | None:
    if not isinstance(value, list):
        return None
    return {one[0]: one[1] for one in value if isinstance(one, list) and [type(part) for part in one] == [int, int]}
