# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the way to a peer: do the largest packets arrive, and how long does RDMA take there.

Needs somebody there who answers: what to start is the mend. Nothing is measured without a peer's address.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence

from kvstore.nvmf.check.finding import Finding
from kvstore.nvmf.check.machine import Answer, Machine
from kvstore.nvmf.check.ports import Port
from kvstore.nvmf.check.routes import Route, find_route

__all__ = ["check_peer"]

_WITHIN_S = 20.0
_PINGS = 100
#: One way. Adapters take 1 to 5 µs, a switch less than 1 µs: more than this is queueing, loss, or software.
_SLOW_US = 50.0
#: For all of rping's exchanges: adapters take milliseconds, and as much again for connecting.
_SLOW_S = 1.0
_PATH, _TRIP = "path to peer", "round trip"
_SMALL_MTU = 1500


def check_peer(machine: Machine, ports: Sequence[Port], peer: str | None) -> Iterator[Finding]:
    """The two findings."""
    if peer is None:
        for subject in (_PATH, _TRIP):
            mend = "nvmf-setup check --peer ADDRESS, with an address of the other end"
            yield Finding(subject, "warn", "not measured: no peer was named", mend)
        return
    route = find_route(machine, peer)
    yield _check_path(machine, route)
    yield _check_trip(machine, route, route.port(ports))


def _check_path(machine: Machine, route: Route) -> Finding:
    """Whether a packet of the interface's size gets there in one piece."""
    mtu = machine.number(f"/sys/class/net/{route.netdev}/mtu") if route.netdev else None
    if mtu is None:
        told = f"not measured: {route.problem or 'the MTU of the interface is not available'}"
        return Finding(_PATH, "warn", told, f"see ip route get {route.address}", "ip, sysfs")
    large = _ping(machine, route.address, mtu)
    if not large.problem:
        return Finding(_PATH, "ok", f"{mtu} bytes arrive at {route.address} in one piece", source="ping")
    small = _ping(machine, route.address, min(mtu, _SMALL_MTU) - 1)
    if not small.problem:
        mend = f"the same MTU on all ends and the switch: ip link set dev {route.netdev} mtu {mtu}, there"
        return Finding(_PATH, "fail", f"{mtu} bytes do not arrive at {route.address}, smaller ones do", mend, "ping")
    mend = f"ping {route.address}; look at addresses, VLANs, and whether it answers pings"
    return Finding(_PATH, "warn", f"not measured: {large.problem}", mend, "ping")


def _ping(machine: Machine, address: str, mtu: int) -> Answer:
    headers = 28 if ipaddress.ip_address(address).version == 4 else 48
    command = ("ping", "-n", "-c", "1", "-W", "2", "-M", "do", "-s", str(mtu - headers), address)
    return machine.ask(*command, measures=True)


def _check_trip(machine: Machine, route: Route, port: Port | None) -> Finding:
    index = route.gid_index(port) if port else None
    if port is None or index is None:
        told = f"not measured: no RDMA port leads to {route.address}"
        return Finding(_TRIP, "warn", told, f"see ip route get {route.address}, and the GIDs above", "ip, sysfs")
    for program in ("ib_write_lat", "ib_send_lat"):
        if machine.which(program):
            return _perftest(machine, program, route, port, index)
    if machine.which("rping"):
        return _rping(machine, route)
    mend = "apt install perftest, on both ends"
    return Finding(_TRIP, "warn", "not measured: perftest and rping are not installed", mend, "ib_write_lat")


def _perftest(machine: Machine, program: str, route: Route, port: Port, index: int) -> Finding:
    options = ("-d", port.device, "-i", str(port.number), "-x", str(index), "-F")
    answer = machine.ask(program, *options, route.address, within_s=_WITHIN_S, measures=True)
    there = f"start {program} -x INDEX -F on {route.address}, with the index that nvmf-setup check tells there"
    row = re.search(r"^[ \t]*\d+\s+\d+\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s", answer.text, re.MULTILINE)
    if answer.problem or not row:
        return _no_trip(answer, there, program)
    typical_us, most_us = float(row[3]), float(row[2])
    told = f"{typical_us:g} µs one way, {most_us:g} at most ({program})"
    if typical_us > _SLOW_US:
        mend = "look at PFC, ECN and the switch's drops; Soft-RoCE is as slow as that"
        return Finding(_TRIP, "warn", told, mend, program)
    return Finding(_TRIP, "ok", told, source=program)


def _rping(machine: Machine, route: Route) -> Finding:
    command = ("rping", "-c", "-a", route.address, "-C", str(_PINGS), "-V")
    answer = machine.ask(*command, within_s=_WITHIN_S, measures=True)
    if answer.problem:
        return _no_trip(answer, f"start rping -s -a {route.address} there", "rping")
    told = f"{_PINGS} exchanges came back right in {answer.seconds:.2f} s, with what connecting takes"
    if answer.seconds > _SLOW_S:
        mend = "apt install perftest on both ends, which tells the time of one; look at PFC, ECN and the switch's drops"
        return Finding(_TRIP, "warn", f"{told}: slow", mend, "rping")
    return Finding(_TRIP, "ok", told, source="rping")


#: What these programs say when packets of RoCE do not get through, while the peer is there and answers.
_BROKEN = ("UNREACHABLE", "ADDR_ERROR", "ROUTE_ERROR", "CONNECT_ERROR", "to RTR", "retry", "Completion with error")


def _no_trip(answer: Answer, there: str, source: str) -> Finding:
    # rping ends with what it was doing, and says before that what happened.
    event = re.search(r"cma event \w+, error -?\d+", answer.text)
    problem = event[0] if event else answer.problem or f"{source} told nothing that can be read"
    if any(sign in answer.text for sign in _BROKEN):
        mend = f"let UDP port 4791 through on all ways; compare the GIDs and MTUs of both ends; {there}"
        return Finding(_TRIP, "fail", f"RDMA does not get through: {problem}", mend, source)
    return Finding(_TRIP, "warn", f"not measured: {problem}", there, source)
