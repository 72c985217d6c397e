# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A program of its own: tells as JSON what pyverbs knows of this machine's RDMA ports.

Run by the first Python that has pyverbs, which is often not the one that kvstore is installed in: Debian's package is
seen by /usr/bin/python3 alone. So it imports nothing of kvstore; and a driver that hangs hangs only this process.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

__all__ = ["devices"]

_TYPES = {0: "IB", 1: "RoCE v1", 2: "RoCE v2"}  # enum ibv_gid_type
_ETHERNET = 2  # IBV_LINK_LAYER_ETHERNET


def devices(verbs: Any, error: type[Exception]) -> dict[str, Any]:
    """Every device and port. ``verbs`` is pyverbs.device, ``error`` what it raises."""
    found: dict[str, Any] = {}
    for device in verbs.get_device_list():
        name = device.name.decode()
        try:
            with verbs.Context(name=name) as context:
                about = context.query_device()
                ports = {str(port): _port(context, port) for port in range(1, about.phys_port_cnt + 1)}
                found[name] = {"firmware": about.fw_version, "ports": ports}
        except error as problem:
            found[name] = {"problem": str(problem)}
    return found


def _port(context: Any, number: int) -> dict[str, Any]:
    port = context.query_port(number)
    entries = context.query_gid_table(port.gid_tbl_len)
    return {
        "state": int(port.state),
        "is_ethernet": int(port.link_layer) == _ETHERNET,
        "active_mtu": 128 << int(port.active_mtu),  # enum ibv_mtu: 1 is 256 bytes
        "max_mtu": 128 << int(port.max_mtu),
        "gids": [
            {
                "index": int(entry.gid_index),
                "gid": str(entry.gid_str()),
                "type": _TYPES.get(int(entry.gid_type), f"type {int(entry.gid_type)}"),
                "netdev_index": int(entry.ndev_ifindex),
            }
            for entry in entries
            if int(entry.port_num) == number
        ],
    }


def main() -> None:
    """Print it. An exit status other than 0 and the last line of the complaint say why not."""
    verbs, errors = map(importlib.import_module, ("pyverbs.device", "pyverbs.pyverbs_error"))
    try:
        found = devices(verbs, errors.PyverbsError)
    except errors.PyverbsError as problem:
        sys.exit(str(problem))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
