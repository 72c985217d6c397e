# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""`nvmf-setup check`: is this host ready for RoCE v2? Each finding has a verdict, and a mend where it is not ok.

Guarantees: writes nothing and ends. What could not be told is never ok. Only the measured part, which is left out on
request, loads the network and reads devices.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvstore.nvmf.check import abilities, classes, gids, link, round_trip, system, throughput, verbs
from kvstore.nvmf.check.finding import Finding, Verdict
from kvstore.nvmf.check.machine import Answer, Machine
from kvstore.nvmf.check.ports import Port as RdmaPort
from kvstore.nvmf.check.ports import find_ports
from kvstore.nvmf.check.report import report
from kvstore.nvmf.check.routes import Route, find_route
from kvstore.nvmf.spec import Port, Spec

__all__ = ["Answer", "Finding", "Machine", "Verdict", "findings", "plan", "report"]


def findings(
    spec: Spec | None, host: str | None = None, *, peer: str | None = None, machine: Machine | None = None
) -> list[Finding]:
    """Look at everything.

    Parameters
    ----------
    spec : the file; None: every RDMA port of the machine is looked at, otherwise those that its addresses lead to.
    host : as the file calls this machine; None: one of the hosts, or the target, which has addresses of the file.
    peer : an address of the other end, to measure the way there.
    machine : this one by default.

    Raises
    ------
    ConfigError : the file has no such host.
    """
    return list(_look(spec, host, peer, machine or Machine()))


def plan(
    spec: Spec | None, host: str | None = None, *, peer: str | None = None, machine: Machine | None = None
) -> list[str]:
    """What `findings` reads and runs here, in order, found out without what it measures. Raises as that does."""
    machine = machine or Machine()
    machine.is_dry = True
    findings(spec, host, peer=peer, machine=machine)
    return machine.noted


def _look(spec: Spec | None, host: str | None, peer: str | None, machine: Machine) -> Iterator[Finding]:
    wanted = _ports_for(spec, host)
    routes = [(port, find_route(machine, port.address)) for port in wanted]
    is_target = host is None and any(route.is_ours for _, route in routes)
    ports: list[RdmaPort] = []
    if spec is None or any(port.transport == "rdma" for port in wanted):
        asked = verbs.ask_verbs(machine)
        yield asked.finding
        ports = find_ports(machine, asked)
        yield from _look_at_ports(machine, ports, [route for port, route in routes if port.transport == "rdma"])
    transports = [port.transport for port in wanted] or ["rdma"]
    yield from system.check_modules(machine, transports, is_target)
    yield system.check_multipath(machine)
    yield system.check_memlock(machine)
    yield system.check_iommu(machine, ports)
    yield from round_trip.check_peer(machine, ports, peer)
    yield throughput.check_read(machine, spec, ports)
    nodes = [one.node for one in throughput.connected(machine, spec)[0]]
    yield abilities.check_abilities(machine, nodes, is_target)


def _ports_for(spec: Spec | None, host: str | None) -> list[Port]:
    """The target's ports that this machine has to do with."""
    if spec is None:
        return []
    if host is None:
        return list(spec.ports)
    name = spec.host(host).name
    used = {number for subsystem in spec.subsystems if name in subsystem.hosts for number in subsystem.ports}
    return [port for port in spec.ports if port.id in used]


def _look_at_ports(machine: Machine, ports: list[RdmaPort], routes: list[Route]) -> Iterator[Finding]:
    if not ports:
        mend = "load the driver of the adapter (lspci | grep -i ethernet), or rdma link add rxe0 type rxe netdev NETDEV"
        yield Finding("RDMA ports", "fail", "there are none", mend, "sysfs")
    used = []
    for route in routes:
        port = route.port(ports)
        used.append(port)
        if ports:
            yield gids.check_route(route, port, ports)
    for port in ports:
        if port in used or not any(used):
            yield abilities.check_driver(machine, port)
            yield link.check_link(machine, port)
            yield link.check_rate(machine, port)
            yield link.check_mtu(machine, port)
            yield gids.check_gids(machine, port)
            yield from classes.check_classes(machine, port)
