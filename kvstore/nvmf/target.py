# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A target as the file wants it: what is to be done, doing it, undoing it, and how it is.

Guarantees: drives are looked at before the first step; addresses are waited for before a port listens; what was made is
in the record before it is made; a run that fails leaves the target as it was.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvstore.nvmf.address import await_address
from kvstore.nvmf.drives import check_drive
from kvstore.nvmf.keys import read_key
from kvstore.nvmf.modules import load_modules
from kvstore.nvmf.record import Record, read_record, state_folder, write_record
from kvstore.nvmf.spec import Namespace, Spec
from kvstore.nvmf.steps import Step, apply
from kvstore.nvmf.target_plan import record_of, removal_plan, target_plan
from kvstore.nvmf.tree import NVMET, DirectoryTree, Tree

__all__ = ["Target"]

_ADDRESS_S = 60.0
_MODULES = {"rdma": "nvmet-rdma", "tcp": "nvmet-tcp"}

_MENDS = {
    errno.EADDRNOTAVAIL: "No interface has that address: see ip address.",
    errno.EADDRINUSE: "Something listens there already: see ss -lnt, or take another service number.",
    errno.EACCES: "The port is in use: nvmf-setup target remove first, or take another id.",
    errno.EBUSY: "It is in use: nvmf-setup target status.",
    errno.EPERM: "Run it as root.",
    errno.EINVAL: "The kernel does not take that value.",
}


@dataclass
class Target:
    """What the file says of this machine as a target."""

    spec: Spec
    tree: Tree = field(default_factory=DirectoryTree)
    root: Path = NVMET
    record_path: Path = field(default_factory=lambda: state_folder() / "nvmf-target.json")
    load: Callable[[Collection[str]], None] = load_modules
    wait: Callable[[str, float], None] = await_address

    def plan(self, forced: Collection[str] = ()) -> list[Step]:
        """Steps that are to be done, none when all is as the file says. Changes nothing.

        Raises
        ------
        KvStoreError : a drive, a key or a name that is in the way; with the mend.
        """
        for namespace, path in self._namespaces():
            if not self._is_exported(path, namespace.device):
                check_drive(namespace, forced)
        return target_plan(self.spec, self.tree, read_record(self.record_path), read_key)

    def apply(self, forced: Collection[str] = ()) -> list[Step]:
        """Do them; those that were done.

        Raises
        ------
        StepFailed : the kernel refused one; all is as it was.
        KvStoreError : as :meth:`plan`, and an address that does not come.
        """
        self.load(["nvmet", *dict.fromkeys(_MODULES[port.transport] for port in self.spec.ports)])
        steps = self.plan(forced)
        if steps:
            for port in self.spec.ports:
                self.wait(port.address, _ADDRESS_S)
            before = read_record(self.record_path)
            write_record(self.record_path, before.plus(record_of(self.spec)))
            self._apply(steps)
            write_record(self.record_path, record_of(self.spec))
        return steps

    def removal(self) -> list[Step]:
        """Steps that remove what was made here, by this file or another one."""
        return removal_plan(self.tree, read_record(self.record_path))

    def remove(self) -> list[Step]:
        """Do them."""
        steps = self.removal()
        self._apply(steps)
        if read_record(self.record_path) != Record():
            write_record(self.record_path, Record())
        return steps

    def status(self) -> list[tuple[str, str, bool]]:
        """Of each port, subsystem and namespace: its name, how it is, and whether that is as the file says."""
        found = []
        for port in self.spec.ports:
            path, name = f"ports/{port.id}", f"port {port.id}: {port.transport} {port.address}:{port.service}"
            listening = self.tree.names(f"{path}/subsystems")
            found.append((name, f"listens for {len(listening)} subsystems" if listening else "absent", bool(listening)))
        for subsystem in self.spec.subsystems:
            allowed = self.tree.names(f"subsystems/{subsystem.nqn}/allowed_hosts")
            found.append((subsystem.nqn, f"{len(allowed)} of {len(subsystem.hosts)} hosts are let in",
                          len(allowed) == len(subsystem.hosts)))  # fmt: skip
        for namespace, path in self._namespaces():
            is_on = self._is_exported(path, namespace.device)
            found.append((f"namespace {namespace.nsid}: {namespace.device}", "exported" if is_on else "absent", is_on))
        return found

    def _namespaces(self) -> list[tuple[Namespace, str]]:
        return [
            (namespace, f"subsystems/{subsystem.nqn}/namespaces/{namespace.nsid}")
            for subsystem in self.spec.subsystems
            for namespace in subsystem.namespaces
        ]

    def _is_exported(self, path: str, device: str) -> bool:
        if not self.tree.exists(path):
            return False
        return self.tree.read(f"{path}/device_path") == device and self.tree.read(f"{path}/enable") == "1"

    def _apply(self, steps: Sequence[Step]) -> None:
        apply(steps, self.tree, self.root, _mend)


def _mend(step: Step, error: OSError) -> str:
    if step.path.endswith(("dhchap_key", "dhchap_ctrl_key")) and error.errno == errno.ENOENT:
        return "This kernel knows no keys of hosts (CONFIG_NVME_TARGET_AUTH): take one that does, or leave the key out."
    if step.path.endswith("/enable") and error.errno == errno.ENOENT:
        return "The drive is not there: see ls -l /dev/disk/by-id."
    return _MENDS.get(error.errno or 0, "See dmesg.")
