# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Measures how fast the connected namespaces are read, against what the ports on the way to them can carry.

Reads only: fio is told so, and refuses to write then. All namespaces at once, as a pool of them is read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kvstore.nvmf.check.finding import Finding
from kvstore.nvmf.check.link import rate_bits
from kvstore.nvmf.check.machine import Answer, Machine
from kvstore.nvmf.check.ports import Port
from kvstore.nvmf.check.routes import find_route
from kvstore.nvmf.spec import TRANSPORTS, Spec
from kvstore.nvmf.sysfs import Controller, Device, controllers, devices
from kvstore.nvmf.tree import DirectoryTree

__all__ = ["check_read", "connected"]

_SUBJECT = "read"
_RUN_S = 5
_WITHIN_S = 20.0
_WANTED = 0.8  # of the line; headers of RoCE at 4096 bytes take a fiftieth
_FIO = (
    *("fio", "--readonly", "--rw=read", "--bs=1M", "--iodepth=32", "--ioengine=libaio", "--direct=1"),
    *("--time_based", f"--runtime={_RUN_S}", "--output-format=json"),
)


def check_read(machine: Machine, spec: Spec | None, ports: Sequence[Port]) -> Finding:
    """Of the file's namespaces, or of all that are connected over fabrics."""
    found, paths = connected(machine, spec)
    if not found:
        mend = "nvmf-setup host connect FILE --host NAME, and check again; a target has nothing to read"
        told = f"not measured: no namespace {'of the file' if spec else 'over fabrics'} is connected"
        return Finding(_SUBJECT, "warn", told, mend, "sysfs")
    jobs = [f"--{key}={value}" for one in found for key, value in (("name", one.name), ("filename", one.node))]
    answer = machine.ask(*_FIO, *jobs, within_s=_WITHIN_S, measures=True)
    read_bits = _bits_read(answer)
    nodes = ", ".join(one.node for one in found)
    if answer.problem or read_bits is None:
        told = f"not measured: {answer.problem or 'fio told nothing that can be read'}"
        return Finding(
            _SUBJECT, "warn", told, f"apt install fio; run it as root; see dmesg whether {nodes} answer", "fio"
        )
    told = f"{read_bits / 1e9:.3g} Gb/s from {nodes}"
    line_bits = _line_bits(machine, ports, paths)
    if not line_bits:
        mend = "see the rates above, and ethtool: a virtual interface has none"
        return Finding(_SUBJECT, "warn", f"{told}; the line's rate is not available", mend, "fio, sysfs")
    told = f"{told}, {read_bits / line_bits:.0%} of the line's {line_bits / 1e9:g}"
    if read_bits < _WANTED * line_bits:
        mend = (
            "mend what is not ok above; then more io_queues and queue_size in the file, "
            "echo round-robin > /sys/class/nvme-subsystem/*/iopolicy where there are two paths, and fio on the "
            "target's own drives, which may be the limit"
        )
        return Finding(_SUBJECT, "warn", told, mend, "fio, sysfs")
    return Finding(_SUBJECT, "ok", told, source="fio, sysfs")


def connected(machine: Machine, spec: Spec | None) -> tuple[list[Device], list[Controller]]:
    """The file's namespaces, or all over fabrics, that are there to be read, and the live paths to them."""
    machine.noted += ["read /sys/class/nvme/", "read /sys/block/"]
    sysfs = DirectoryTree(machine.root / "sys")
    try:
        live = [one for one in controllers(sysfs) if one.transport in TRANSPORTS and one.state == "live"]
        there = devices(sysfs)
    except ValueError:  # what is no text
        return [], []
    wanted = {one.nguid for subsystem in spec.subsystems for one in subsystem.namespaces} if spec else None
    subsystems = {one.subsystem for one in live}
    found = [one for one in there if one.subsystem in subsystems and (wanted is None or one.nguid in wanted)]
    used = {one.subsystem for one in found}
    return found, [one for one in live if one.subsystem in used]


def _bits_read(answer: Answer) -> float | None:
    """A second, over all jobs; None when that cannot be read, or a job had an error."""
    try:
        report: Any = json.loads(answer.text[answer.text.index("{") :])
        jobs = report["jobs"]
        total = sum(float(job["read"]["bw_bytes"]) for job in jobs)
        return total * 8 if jobs and not any(job["error"] for job in jobs) else None
    except (ValueError, TypeError, KeyError):
        return None


def _line_bits(machine: Machine, ports: Sequence[Port], paths: Sequence[Controller]) -> float | None:
    """What all that the paths go through carry together; None when one of them does not tell."""
    lines: dict[str, float] = {}
    for path in paths:
        route = find_route(machine, path.address) if path.address else None
        port = route.port(ports) if route and path.transport == "rdma" else None
        if port is not None:
            lines[port.name] = rate_bits(machine, port) or 0
        elif route is not None:
            lines[route.netdev] = max(machine.number(f"/sys/class/net/{route.netdev}/speed") or 0, 0) * 1e6
        else:
            return None
    return sum(lines.values()) if lines and all(lines.values()) else None
