# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of a port's link: is it up, as fast as its interface, with packets as large as RoCE has them."""

from __future__ import annotations

import re

from kvstore.nvmf.check.finding import Finding
from kvstore.nvmf.check.machine import Machine
from kvstore.nvmf.check.ports import Port

__all__ = ["check_link", "check_mtu", "check_rate", "rate_bits"]

_MTU_WANTED = 4096
# Headers of RoCE v2 take up to 96 bytes of it: the kernel's iboe_get_mtu().
_NETDEV_MTU_WANTED = 4200


def check_link(machine: Machine, port: Port) -> Finding:
    """Whether the port is active, and an Ethernet one."""
    subject = f"{port.name} link"
    state = _name(machine.read(f"{port.folder}/state"))
    physical = _name(machine.read(f"{port.folder}/phys_state"))
    layer = machine.read(f"{port.folder}/link_layer")
    if not state or not physical or not layer:
        missing = [name for name, value in (("state", state), ("phys_state", physical), ("link_layer", layer))
                   if not value]  # fmt: skip
        told = f"{', '.join(missing)} not available"
        return Finding(subject, "warn", told, f"see {port.folder} and dmesg: the driver does not tell", "sysfs")
    told = f"{state}, {physical}, {layer}, {port.netdev or 'no network interface'}"
    if layer != "Ethernet":
        mend = f"RoCE runs over Ethernet: mlxconfig -d {port.device} set LINK_TYPE_P{port.number}=2, and reboot"
        return Finding(subject, "fail", told, mend, "sysfs")
    if state != "ACTIVE" or physical != "LinkUp":
        mend = f"ip link set dev {port.netdev or 'NETDEV'} up; then look at the cable, the transceiver, the switch port"
        return Finding(subject, "fail", told, mend, "sysfs")
    return Finding(subject, "ok", told, source="sysfs")


def _name(text: str | None) -> str:
    """``ACTIVE`` of ``4: ACTIVE``; empty for what does not look like that."""
    found = re.fullmatch(r"\d+: (\w+)", text or "")
    return found[1] if found else ""


def rate_bits(machine: Machine, port: Port) -> float | None:
    """Bits a second, of ``100 Gb/sec (4X EDR)``; None when it is not told."""
    found = re.match(r"([\d.]+) Gb/sec", machine.read(f"{port.folder}/rate") or "")
    try:
        return float(found[1]) * 1e9 if found else None
    except ValueError:
        return None


def check_rate(machine: Machine, port: Port) -> Finding:
    """Whether RDMA has all the speed of the interface."""
    subject = f"{port.name} rate"
    rate = rate_bits(machine, port)
    speed = machine.number(f"/sys/class/net/{port.netdev}/speed") if port.netdev else None
    if not rate:
        mend = f"see {port.folder}/rate: a port that is down has none"
        return Finding(subject, "warn", "rate not available", mend, "sysfs")
    told = f"{rate / 1e9:g} Gb/s"
    if speed is None or speed <= 0:  # -1: not known
        mend = f"see ethtool {port.netdev or 'NETDEV'}: a virtual interface has no speed"
        return Finding(subject, "warn", f"{told}; speed of the interface not available", mend, "sysfs")
    told = f"{told}, {port.netdev} {speed / 1e3:g} Gb/s"
    if rate < speed * 1e6 * 0.99:
        mend = f"reload the driver of {port.device}, and look at the cable: ethtool {port.netdev}"
        return Finding(subject, "warn", told, mend, "sysfs")
    return Finding(subject, "ok", told, source="sysfs")


def check_mtu(machine: Machine, port: Port) -> Finding:
    """Whether RoCE sends packets of 4096 bytes: what the port uses follows from what its interface takes."""
    subject = f"{port.name} MTU"
    netdev_mtu = machine.number(f"/sys/class/net/{port.netdev}/mtu") if port.netdev else None
    larger = (
        f"ip link set dev {port.netdev or 'NETDEV'} mtu {_NETDEV_MTU_WANTED}, on the other end and the switch, too "
        "(9000 where they take it); the ends must agree"
    )
    if netdev_mtu is None:
        return Finding(subject, "warn", "MTU of the interface not available", larger, "sysfs")
    told = f"{port.netdev} {netdev_mtu}"
    if port.active_mtu is None:
        mend = larger if netdev_mtu < _NETDEV_MTU_WANTED else "apt install python3-pyverbs, which tells it"
        return Finding(subject, "warn", f"{told}; MTU in use by RDMA not available", mend, "sysfs")
    told = f"{told}, RDMA {port.active_mtu}"
    source = "pyverbs, sysfs"
    if netdev_mtu < _NETDEV_MTU_WANTED:
        return Finding(subject, "warn", f"{told}: more packets than need be", larger, source)
    if port.active_mtu >= _MTU_WANTED:
        return Finding(subject, "ok", told, source=source)
    if port.max_mtu is not None and port.max_mtu < _MTU_WANTED:
        mend = "another adapter or firmware; the other end must not use more"
        return Finding(subject, "warn", f"{told}, and the port can do no more than {port.max_mtu}", mend, source)
    mend = f"ip link set dev {port.netdev} down, and up: the port has not followed its interface"
    return Finding(subject, "warn", told, mend, source)
