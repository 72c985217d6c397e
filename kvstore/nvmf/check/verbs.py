# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What pyverbs says of the RDMA ports, through a process of its own (verbs_probe)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvstore.nvmf.check.finding import Finding
from kvstore.nvmf.check.machine import Machine

__all__ = ["PROBE", "Verbs", "ask_verbs"]

PROBE = str(Path(__file__).with_name("verbs_probe.py"))
_PROBE_S = 30.0  # most of it is importing, cold and on a busy machine
_MEND = "apt install python3-pyverbs (rdma-core), and modprobe ib_uverbs"
_MEND_LATE = "see dmesg whether a driver hangs; on a busy machine check again"


@dataclass(frozen=True)
class Verbs:
    """What the probe printed, by device; ``finding`` says whether, and which Python had pyverbs."""

    finding: Finding
    devices: Mapping[str, Any] = field(default_factory=dict)

    def port(self, device: str, number: int) -> Mapping[str, Any]:
        """What is known of a port; empty when nothing is."""
        ports = _mapping(_mapping(self.devices.get(device)).get("ports"))
        return _mapping(ports.get(str(number)))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def ask_verbs(machine: Machine) -> Verbs:
    """Ask every Python that may have it; the first answer counts."""
    problems, is_late = [], False
    # -I: neither the current folder nor the probe's own can stand in for a module that it imports.
    for python in dict.fromkeys((sys.executable, "/usr/bin/python3")):
        answer = machine.ask(python, "-I", PROBE, within_s=_PROBE_S)
        if answer.problem:
            is_late = is_late or answer.is_late
            problems.append(f"{python}: {answer.problem.partition(': ')[2] or answer.problem}")
            continue
        try:
            devices = _mapping(json.loads(answer.text))
        except ValueError:
            problems.append(f"{python}: the answer is no JSON")
            continue
        broken = [f"{name}: {one['problem']}" for name, one in devices.items() if "problem" in _mapping(one)]
        if broken:
            return Verbs(Finding("pyverbs", "warn", "; ".join(broken), _MEND, "pyverbs"), devices)
        told = f"{len(devices)} RDMA devices, asked by {python}"
        return Verbs(Finding("pyverbs", "ok", told, source="pyverbs"), devices)
    told = f"not available, so that MTUs in use are not known: {'; '.join(problems)}"
    return Verbs(Finding("pyverbs", "warn", told, _MEND_LATE if is_late else _MEND, "pyverbs"))
