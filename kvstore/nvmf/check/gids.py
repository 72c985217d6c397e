# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of a port's GID table: has it RoCE v2 entries, and which one is used for an address of the file."""

from __future__ import annotations

from kvstore.nvmf.check.finding import Finding, Verdict
from kvstore.nvmf.check.machine import Machine
from kvstore.nvmf.check.ports import ROCE_V2, Port
from kvstore.nvmf.check.routes import Route

__all__ = ["check_gids", "check_route"]


def check_gids(machine: Machine, port: Port) -> Finding:
    """Whether there are RoCE v2 entries, and connections ask for them."""
    subject = f"{port.name} GIDs"
    source = port.gid_source
    if not port.gids:
        mend = f"ip address add ADDRESS/BITS dev {port.netdev or 'NETDEV'}, and bring it up"
        return Finding(subject, "fail", "the GID table is empty or not available", mend, source)
    usable = [gid for gid in port.gids if gid.kind == ROCE_V2]
    if not usable:
        kinds = sorted({gid.kind or "type not available" for gid in port.gids})
        mend = f"allow RoCE v2 in the adapter's firmware: mlxconfig -d {port.device} query | grep ROCE"
        verdict: Verdict = "fail" if all(gid.kind for gid in port.gids) else "warn"
        return Finding(subject, verdict, f"no RoCE v2 entry among {len(port.gids)}: {', '.join(kinds)}", mend, source)
    told = f"RoCE v2 at {', '.join(map(str, usable))}"
    mode_file = f"/sys/kernel/config/rdma_cm/{port.device}/ports/{port.number}/default_roce_mode"
    mode = machine.read(mode_file)  # there is a file only where somebody has set it; the kernel's choice is v2
    if mode and mode != ROCE_V2:
        return Finding(
            subject, "fail", f"{told}, but connections ask for {mode}", f"echo RoCE v2 > {mode_file}", source
        )
    if all(gid.is_link_local for gid in usable):
        mend = f"ip address add ADDRESS/BITS dev {port.netdev or 'NETDEV'}: routed RoCE goes by IP addresses"
        return Finding(subject, "warn", f"{told}: none is of an IP address", mend, source)
    return Finding(subject, "ok", told, source=source)


def check_route(route: Route, port: Port | None, ports: list[Port]) -> Finding:
    """Which port and which entry an address of the file is reached by."""
    subject = f"GID for {route.address}"
    if not route.local:
        mend = "give this machine an address in the storage network, or a route to it: ip route get " + route.address
        return Finding(subject, "fail", f"no way to it: {route.problem}", mend, "ip")
    way = f"it is {route.netdev}'s" if route.is_ours else f"reached from {route.local} on {route.netdev}"
    if port is None:
        there = ", ".join(f"{one.name} on {one.netdev or 'none'}" for one in ports) or "there are none"
        mend = f"rdma link add rxe0 type rxe netdev {route.netdev}, or load the driver of its adapter"
        return Finding(subject, "fail", f"{way}, which has no RDMA port: {there}", mend, "ip, sysfs")
    index = route.gid_index(port)
    if index is None:
        mend = f"ip link set dev {route.netdev} down, and up; see {port.folder}/gid_attrs/types"
        told = f"{way}, but {port.name} has no RoCE v2 entry for {route.local}"
        return Finding(subject, "fail", told, mend, port.gid_source)
    told = f"index {index} of {port.name}, RoCE v2; {way}"
    return Finding(subject, "ok", told, source=port.gid_source)
