# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of what this target, drive or driver may lack: kvstore does without, and who counts on it is told.

Persistent reservations would keep a second host from writing, compare and fused commands would let two agree on the
device itself, placement (FDP) would spare a drive's flash; a driver of hardware survives a link that is taken down.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvstore.nvmf.check.finding import Finding
from kvstore.nvmf.check.machine import Machine
from kvstore.nvmf.check.ports import Port

__all__ = ["check_abilities", "check_driver"]

_NVMET = "/sys/kernel/config/nvmet/subsystems"
# NVMe base specification 2.0, figure 275 (identify controller): ONCS bit 0, FUSES bit 0, CTRATT bit 19; NVM command set
# specification 1.0, figure 97 (identify namespace): RESCAP, of which bit 0 is persistence through power loss alone.
_RESERVATIONS = 0xFE
_FDP = 19


def check_abilities(machine: Machine, nodes: Sequence[str], is_target: bool) -> Finding:
    """Of the namespaces that are connected; of a target, what its kernel gives to those that it exports."""
    if is_target:
        return _of_target(machine)
    subject = "abilities of the target"
    if not nodes:
        mend = "nvmf-setup host connect FILE --host NAME, and check again"
        return Finding(subject, "warn", "not available: no namespace is connected", mend, "sysfs")
    lacking: dict[str, list[str]] = {}
    for node in nodes:
        about = _identify(machine, node)
        if isinstance(about, str):
            mend = f"apt install nvme-cli; run it as root; nvme id-ctrl {node}"
            return Finding(subject, "warn", f"not available: {about}", mend, "nvme-cli")
        for what, is_there in about.items():
            if not is_there:
                lacking.setdefault(what, []).append(node)
    if lacking:
        told = "; ".join(f"no {what}: {', '.join(names)}" for what, names in lacking.items())
        return Finding(subject, "warn", told, _mend_of(lacking), "nvme-cli")
    return Finding(subject, "ok", f"reservations, compare, fused commands, placement: {', '.join(nodes)}",
                   source="nvme-cli")  # fmt: skip


def _mend_of(lacking: Mapping[str, object]) -> str:
    mends = {
        "persistent reservations": "no host can be shut out by the target: one owner for each pool, or --engine "
        "(Linux targets have reservations from 6.13 on)",
        "placement (FDP)": "drives with FDP, if they wear out too soon",
    }
    said = [text for what, text in mends.items() if what in lacking]
    return "; ".join(["nothing, for kvstore's sake: it uses none of them", *said])


def _identify(machine: Machine, node: str) -> dict[str, bool] | str:
    """Which of them a namespace has; or why that is not known."""
    found: list[Mapping[str, Any]] = []
    for what in ("id-ctrl", "id-ns"):
        answer = machine.ask("nvme", what, node, "--output-format=json")
        if answer.problem:
            return answer.problem
        try:
            read = json.loads(answer.text)
        except ValueError:
            read = None
        if not isinstance(read, dict):
            return f"nvme {what} told nothing that can be read"
        found.append(read)
    controller, namespace = found
    values = [controller.get(name) for name in ("oncs", "fuses", "ctratt")] + [namespace.get("rescap")]
    if not all(type(value) is int for value in values):
        return "nvme told nothing that can be read"
    oncs, fuses, ctratt, rescap = (int(str(value)) for value in values)
    return {
        "persistent reservations": bool(rescap & _RESERVATIONS),
        "compare": bool(oncs & 1),
        "fused compare and write": bool(oncs & 1 and fuses & 1),
        "placement (FDP)": bool(ctratt >> _FDP & 1),
    }


def _of_target(machine: Machine) -> Finding:
    subject = "abilities of this target"
    namespaces = [
        f"{_NVMET}/{nqn}/namespaces/{nsid}"
        for nqn in machine.names(_NVMET)
        for nsid in machine.names(f"{_NVMET}/{nqn}/namespaces")
    ]
    if not namespaces:
        mend = "nvmf-setup target apply FILE, and check again"
        return Finding(subject, "warn", "not available: nothing is exported", mend, "configfs")
    without = [one for one in namespaces if not machine.exists(f"{one}/resv_enable")]
    told = "no compare, no fused commands, no placement (FDP): nvmet has none"
    if without:
        told = f"no persistent reservations: this kernel's nvmet has none (Linux has from 6.13 on); {told}"
    return Finding(subject, "warn", told, _mend_of({"persistent reservations": ""} if without else {}), "configfs")


def check_driver(machine: Machine, port: Port) -> Finding:
    """Whether a port is an adapter's, or Soft-RoCE's, which has a parent interface in the place of a device."""
    folder = f"/sys/class/infiniband/{port.device}"
    subject = f"{port.name} driver"
    if machine.exists(f"{folder}/parent"):
        told = (
            "Soft-RoCE: RDMA is done by the processor; its connection manager does not survive a link that is taken "
            "down, after which hosts connect for ever"
        )
        mend = (
            f"an adapter that does RoCE. Else never ip link set down under {port.device}; where that was done, rdma "
            f"link del {port.device} and add it again, or reboot"
        )
        return Finding(subject, "warn", told, mend, "sysfs")
    if machine.exists(f"{folder}/device"):
        return Finding(subject, "ok", "an adapter's", source="sysfs")
    return Finding(subject, "warn", "not available", f"see {folder}, and rdma link show", "sysfs")
