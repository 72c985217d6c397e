# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of NVMe controllers and namespaces, below /sys. Reads only.

A namespace is known by what it is, its NGUID and UUID; its name in /dev is another one at each boot. With native
multipath it lies under the subsystem and has one device for all paths, without under each controller, and has several.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvstore.nvmf.tree import Tree

__all__ = ["Controller", "Device", "controllers", "devices"]

CONTROLLERS = "class/nvme"
_BLOCK = "block"
_CONTROLLER = re.compile(r"nvme\d+")
_DEVICE = re.compile(r"nvme\d+n\d+")  # not nvme0c1n1, which is one path of a namespace and hidden


@dataclass(frozen=True)
class Controller:
    """A connection as the kernel has it. Numbers are None where this kernel does not tell."""

    name: str
    transport: str
    address: str
    service: str
    subsystem: str
    host_nqn: str
    host_id: str
    state: str
    io_queues: int | None
    queue_size: int | None
    keep_alive_s: int | None
    reconnect_delay_s: int | None
    controller_loss_s: int | None
    fast_io_fail_s: int | None

    @property
    def path(self) -> str:
        """Of its attributes."""
        return f"{CONTROLLERS}/{self.name}"


@dataclass(frozen=True)
class Device:
    """A namespace as a block device."""

    name: str
    nguid: str
    uuid: str
    subsystem: str
    host_nqns: tuple[str, ...]  # of the controllers that it is reached by

    @property
    def node(self) -> str:
        """In /dev."""
        return f"/dev/{self.name}"


def controllers(sysfs: Tree) -> list[Controller]:
    """All that are connected over fabrics, and local ones."""
    return [_controller(sysfs, name) for name in sysfs.names(CONTROLLERS) if _CONTROLLER.fullmatch(name)]


def devices(sysfs: Tree) -> list[Device]:
    """All NVMe namespaces that can be opened."""
    found = []
    for name in sysfs.names(_BLOCK):
        path = f"{_BLOCK}/{name}"
        if not _DEVICE.fullmatch(name) or _text(sysfs, f"{path}/hidden") == "1":
            continue
        parent = f"{path}/device"  # the subsystem, or the controller
        behind = [f"{parent}/{child}" for child in sysfs.names(parent) if _CONTROLLER.fullmatch(child)]
        nqns = {_text(sysfs, f"{one}/hostnqn") for one in [parent, *behind]} - {""}
        found.append(
            Device(
                name,
                _text(sysfs, f"{path}/nguid").replace("-", "").lower(),
                _text(sysfs, f"{path}/uuid").lower(),
                _text(sysfs, f"{parent}/subsysnqn"),
                tuple(sorted(nqns)),
            )
        )
    return found


def _controller(sysfs: Tree, name: str) -> Controller:
    path = f"{CONTROLLERS}/{name}"
    address = dict(part.partition("=")[::2] for part in _text(sysfs, f"{path}/address").split(","))
    queues, size = _number(sysfs, f"{path}/queue_count"), _number(sysfs, f"{path}/sqsize")
    return Controller(
        name=name,
        transport=_text(sysfs, f"{path}/transport"),
        address=address.get("traddr", ""),
        service=address.get("trsvcid", ""),
        subsystem=_text(sysfs, f"{path}/subsysnqn"),
        host_nqn=_text(sysfs, f"{path}/hostnqn"),
        host_id=_text(sysfs, f"{path}/hostid").lower(),
        state=_text(sysfs, f"{path}/state"),
        io_queues=None if queues is None else queues - 1,  # the admin queue is one
        queue_size=None if size is None else size + 1,  # counted from 0
        keep_alive_s=_number(sysfs, f"{path}/kato"),
        reconnect_delay_s=_number(sysfs, f"{path}/reconnect_delay"),
        controller_loss_s=_number(sysfs, f"{path}/ctrl_loss_tmo"),
        fast_io_fail_s=_number(sysfs, f"{path}/fast_io_fail_tmo"),
    )


def _text(sysfs: Tree, path: str) -> str:
    """Empty where there is none: kernels differ, and a controller may go while it is looked at."""
    try:
        return sysfs.read(path).strip()
    except OSError:
        return ""


def _number(sysfs: Tree, path: str) -> int | None:
    """``off`` is -1."""
    text = _text(sysfs, path)
    if text == "off":
        return -1
    return int(text) if re.fullmatch(r"-?\d+", text) else None
