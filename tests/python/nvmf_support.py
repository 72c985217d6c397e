# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""FakeConfigfs: the kernel's nvmet as far as nvmf-setup sees it (drivers/nvme/target/configfs.c).

What the kernel refuses it refuses, with the kernel's errno; any operation can be made to fail.
"""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path
from typing import NoReturn

from kvstore.nvmf.tree import Tree

_PORT = ("addr_adrfam", "addr_traddr", "addr_trsvcid", "addr_trtype")
_DEFAULTS = {
    "subsystem": {
        "attr_allow_any_host": "0",
        "attr_cntlid_min": "1",
        "attr_serial": "0123456789abcdef0123",
        "attr_model": "Linux",
    },
    "namespace": {
        "ana_grpid": "1",
        "device_path": "(null)",
        "device_uuid": "00000000-0000-0000-0000-000000000000",
        "device_nguid": "00000000-0000-0000-0000-000000000000",
        "enable": "0",
    },
    "port": dict.fromkeys(_PORT, "") | {"addr_tsas": "none", "addr_treq": "not specified"},
    "host": {"dhchap_ctrl_key": "", "dhchap_hash": "hmac(sha256)", "dhchap_key": ""},
    "ana_group": {"ana_state": "optimized"},
    "referral": {},
}
_CHILDREN = {
    "subsystem": ("allowed_hosts", "namespaces"),
    "port": ("ana_groups", "ana_groups/1", "referrals", "subsystems"),
}


class FakeConfigfs(Tree):
    """``fail_at``: the how-manieth change fails, counted from 1; 0: none."""

    def __init__(self) -> None:
        self.nodes: dict[str, str | None] = {"subsystems": None, "ports": None, "hosts": None}  # None: a directory
        self.identities: dict[str, int] = {}
        self.links: dict[str, str] = {}
        self.live: set[tuple[str, str]] = set()  # subsystems, and hosts that are connected to them
        self.fail_at = 0
        self.changes = 0

    def state(self) -> tuple[dict[str, str | None], dict[str, str]]:
        """All of it, to compare."""
        return dict(self.nodes), dict(self.links)

    # ---- Tree ----

    def names(self, path: str) -> list[str]:
        inside = [*self.nodes, *self.links]
        return sorted({one[len(path) + 1 :].split("/")[0] for one in inside if one.startswith(path + "/")})

    def exists(self, path: str) -> bool:
        return path in self.nodes or path in self.links or not path

    def identity(self, path: str) -> str:
        return str(self.identities[path])

    def read(self, path: str) -> str:
        value = self.nodes.get(path)
        if value is None:
            self._refuse(errno.ENOENT, path)
        return value

    def write(self, path: str, value: str) -> None:
        self._change(path)
        if self.nodes.get(path) is None:
            self._refuse(errno.ENOENT, path)
        if not value:
            self._refuse(errno.EFAULT, path)
        parent, _, name = path.rpartition("/")
        if name.startswith("device_") and self.nodes[f"{parent}/enable"] == "1":
            self._refuse(errno.EBUSY, path)
        if name in _PORT and self.names(f"{parent}/subsystems"):
            self._refuse(errno.EACCES, path)  # "Disable port before changing attribute"
        if name == "addr_tsas" and self.nodes[f"{parent}/addr_trtype"] != "tcp":
            self._refuse(errno.EINVAL, path)
        if name == "addr_treq" and value != "not specified" and self.nodes[f"{parent}/addr_tsas"] == "none":
            self._refuse(errno.EINVAL, path)
        if name == "attr_allow_any_host" and value == "1" and self.names(f"{parent}/allowed_hosts"):
            self._refuse(errno.EINVAL, path)
        if name == "enable" and value == "1" and not Path(self.read(f"{parent}/device_path")).exists():
            self._refuse(errno.ENOENT, path)
        if name in ("device_uuid", "device_nguid"):
            value = str(uuid.UUID(value))  # as the kernel shows it
        if name == "attr_serial":
            value = value.ljust(20)  # too
        self.nodes[path] = value

    def mkdir(self, path: str) -> None:
        self._change(path)
        parent = path.rpartition("/")[0]
        if self.exists(path):
            self._refuse(errno.EEXIST, path)
        if parent not in self.nodes:
            self._refuse(errno.ENOENT, path)
        kind = parent.rpartition("/")[2].removesuffix("s")
        self.nodes[path] = None
        self.identities[path] = self.changes
        for name, value in _DEFAULTS[kind].items():
            self.nodes[f"{path}/{name}"] = value
        for name in _CHILDREN.get(kind, ()):
            self.nodes[f"{path}/{name}"] = None
        if kind == "port":
            self.nodes[f"{path}/ana_groups/1/ana_state"] = "optimized"

    def rmdir(self, path: str) -> None:
        self._change(path)
        if self.nodes.get(path, "") is not None:
            self._refuse(errno.ENOENT, path)
        for child in ("allowed_hosts", "ana_groups", "namespaces", "referrals", "subsystems"):
            if set(self.names(f"{path}/{child}")) - ({"1"} if child == "ana_groups" else set()):
                self._refuse(errno.ENOTEMPTY, path)
        if path in self.links.values():
            self._refuse(errno.EBUSY, path)
        self.nodes = {name: value for name, value in self.nodes.items() if not f"{name}/".startswith(f"{path}/")}

    def link(self, path: str, to: str) -> None:
        self._change(path)
        parent = path.rpartition("/")[0]
        if parent not in self.nodes or self.nodes.get(to, "") is not None:
            self._refuse(errno.ENOENT, path)
        if self.exists(path):
            self._refuse(errno.EEXIST, path)
        port = parent.removesuffix("/subsystems")
        if parent.startswith("ports/") and not all(self.nodes[f"{port}/{name}"] for name in _PORT):
            self._refuse(errno.EINVAL, path)  # the address is incomplete
        self.links[path] = to
        if parent.startswith("ports/"):  # whoever is let in connects, and stays when he no longer would be
            subsystem = to.partition("/")[2]
            self.live |= {(subsystem, host) for host in self.names(f"{to}/allowed_hosts")}

    def unlink(self, path: str) -> None:
        self._change(path)
        if path not in self.links:
            self._refuse(errno.ENOENT, path)
        to = self.links.pop(path)
        if path.startswith("ports/"):
            self.live = {one for one in self.live if one[0] != to.partition("/")[2]}

    def _change(self, path: str) -> None:
        self.changes += 1
        if self.changes == self.fail_at:
            self._refuse(errno.EIO, path)

    @staticmethod
    def _refuse(number: int, path: str) -> NoReturn:
        raise OSError(number, os.strerror(number), path)
