# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""By which of this machine's own addresses, interfaces and RDMA ports an address of the file is reached."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvstore.nvmf.check.machine import Machine
from kvstore.nvmf.check.ports import ROCE_V2, Port, gid_of_address

__all__ = ["Route", "find_route"]

_UNREAD = "ip told nothing that can be read"


@dataclass(frozen=True)
class Route:
    """Where an address leads. ``problem`` says why that is not known, and is empty otherwise."""

    address: str
    local: str = ""
    netdev: str = ""
    is_ours: bool = False
    problem: str = ""

    def gid_index(self, port: Port) -> int | None:
        """The entry of a port's GID table that RoCE v2 uses for it, None when it has none."""
        wanted = gid_of_address(self.local)
        return next((gid.index for gid in port.gids if gid.gid == wanted and gid.kind == ROCE_V2), None)

    def port(self, ports: Sequence[Port]) -> Port | None:
        """The port it goes through. The address decides before the interface, which may be a VLAN's or a bond's."""
        if not self.local:
            return None
        by_address = (port for port in ports if self.gid_index(port) is not None)
        by_netdev = (port for port in ports if self.netdev in {port.netdev, *(gid.netdev for gid in port.gids)})
        return next(by_address, None) or next(by_netdev, None)


def find_route(machine: Machine, address: str) -> Route:
    """Ask `ip`: the address is this machine's, or there is a route to it."""
    own = machine.ask("ip", "-j", "address", "show")
    links = list(_objects(own.text))
    if own.problem or not links:
        return Route(address, problem=own.problem or _UNREAD)
    for link in links:
        for one in _objects(link.get("addr_info")):
            if one.get("local") == address:
                return Route(address, address, str(link.get("ifname")), is_ours=True)
    answer = machine.ask("ip", "-j", "route", "get", address)
    for route in _objects(answer.text):
        if isinstance(route.get("dev"), str) and isinstance(route.get("prefsrc"), str):
            return Route(address, route["prefsrc"], route["dev"])
    return Route(address, problem=answer.problem or _UNREAD)


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    """The objects of a list, which may be JSON; none of anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return
    if isinstance(value, list):
        yield from (one for one in value if isinstance(one, dict))
