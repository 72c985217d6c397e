# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""RDMA ports, as sysfs and pyverbs know them. Nothing is judged here."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from kvstore.nvmf.check.machine import Machine
from kvstore.nvmf.check.verbs import Verbs

__all__ = ["ROCE_V2", "Gid", "Port", "find_ports", "gid_of_address"]

ROCE_V2 = "RoCE v2"
_CLASS = "/sys/class/infiniband"


@dataclass(frozen=True)
class Gid:
    """An entry of a port's GID table. ``kind`` is empty when it cannot be told."""

    index: int
    gid: str
    kind: str
    netdev: str = ""

    def __str__(self) -> str:
        mapped = ipaddress.IPv6Address(self.gid).ipv4_mapped
        return f"{self.index} ({mapped or self.gid})"

    @property
    def is_link_local(self) -> bool:
        """Made from the hardware's address, not from one that somebody set."""
        return ipaddress.ip_address(self.gid).is_link_local


@dataclass(frozen=True)
class Port:
    """A port of an RDMA device. MTUs are bytes, None where pyverbs did not tell them."""

    device: str
    number: int
    netdev: str
    gids: tuple[Gid, ...] = ()
    gid_source: str = "sysfs"
    active_mtu: int | None = None
    max_mtu: int | None = None

    @property
    def name(self) -> str:
        """As `rdma link` writes it."""
        return f"{self.device}/{self.number}"

    @property
    def folder(self) -> str:
        """In sysfs."""
        return f"{_CLASS}/{self.device}/ports/{self.number}"


def find_ports(machine: Machine, verbs: Verbs) -> list[Port]:
    """All that sysfs lists, with what pyverbs knows of them; where it knows nothing, the GIDs of sysfs."""
    indexes = {}
    for netdev in machine.names("/sys/class/net"):
        index = machine.number(f"/sys/class/net/{netdev}/ifindex")
        if index is not None:
            indexes[index] = netdev
    found = []
    for device in machine.names(_CLASS):
        for name in machine.names(f"{_CLASS}/{device}/ports"):
            if not name.isdecimal():
                continue
            known = verbs.port(device, int(name))
            port = Port(device, int(name), "")
            if isinstance(known.get("gids"), list):
                gids, source = tuple(_gids_of_verbs(known["gids"], indexes)), "pyverbs"
            else:
                gids, source = tuple(_gids_of_sysfs(machine, port)), "sysfs"
            netdev = _netdev(machine, port) or next((gid.netdev for gid in gids if gid.netdev), "")
            active, most = _mtu(known.get("active_mtu")), _mtu(known.get("max_mtu"))
            found.append(Port(device, int(name), netdev, gids, source, active, most))
    return found


def gid_of_address(address: str) -> str:
    """The GID that RoCE v2 makes of an IP address."""
    parsed = ipaddress.ip_address(address)
    return str(ipaddress.ip_address(f"::ffff:{parsed}") if parsed.version == 4 else parsed)


def _netdev(machine: Machine, port: Port) -> str:
    parent = machine.read(f"{_CLASS}/{port.device}/parent")  # Soft-RoCE
    if parent:
        return parent
    folder = f"{_CLASS}/{port.device}/device/net"
    names = machine.names(folder)
    if len(names) > 1:  # one PCI function with a port each
        names = [name for name in names if machine.number(f"{folder}/{name}/dev_port") == port.number - 1]
    return names[0] if names else ""


def _gids_of_verbs(entries: list[object], indexes: dict[int, str]) -> Iterator[Gid]:
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("index"), int):
            gid = _normal(str(entry.get("gid")))
            if gid:
                yield Gid(entry["index"], gid, str(entry.get("type")), indexes.get(entry.get("netdev_index", 0), ""))


def _gids_of_sysfs(machine: Machine, port: Port) -> Iterator[Gid]:
    indexes = [int(name) for name in machine.names(f"{port.folder}/gids") if name.isdecimal()]
    for index in sorted(indexes):
        gid = _normal(machine.read(f"{port.folder}/gids/{index}") or "")
        if gid:
            kind = machine.read(f"{port.folder}/gid_attrs/types/{index}") or ""
            yield Gid(index, gid, kind, machine.read(f"{port.folder}/gid_attrs/ndevs/{index}") or "")


def _normal(text: str) -> str:
    """As gid_of_address writes it; empty for what is no GID, or an empty entry."""
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return ""
    return "" if parsed.packed in (bytes(16), b"\xfe\x80" + bytes(14)) else str(parsed)


def _mtu(value: object) -> int | None:
    return value if isinstance(value, int) and 256 <= value <= 65536 else None
