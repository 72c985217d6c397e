# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A target as the file wants it: what is to be done, doing it, undoing it, and how it is.

Guarantees: drives are looked at before the first step, after the addresses have come, and are held from then until they
are exported; what was made is in the record before it is made; a run that fails leaves the target as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvstore.errors import BusyError, ConfigError, ForeignDataError
from kvstore.nvmf.address import await_address
from kvstore.nvmf.connected import connected_hosts
from kvstore.nvmf.drives import check_drive, drive_identity, refuse_doubles, refuse_exported
from kvstore.nvmf.held import ExportStep, HeldDrive
from kvstore.nvmf.kernel_tree import KernelTree
from kvstore.nvmf.keys import read_key
from kvstore.nvmf.modules import load_modules, missing_modules
from kvstore.nvmf.record import Record, read_record, state_folder, write_record
from kvstore.nvmf.spec import Namespace, Port, Spec
from kvstore.nvmf.steps import NotedStep, Step, StepFailed, apply
from kvstore.nvmf.target_errors import mend
from kvstore.nvmf.target_plan import record_of, removal_plan, target_plan
from kvstore.nvmf.tree import NVMET, Tree

__all__ = ["Target"]

_ADDRESS_S = 60.0
_MODULES = {"rdma": "nvmet-rdma", "tcp": "nvmet-tcp"}


@dataclass
class Target:
    """What the file says of this machine as a target."""

    spec: Spec
    tree: Tree = field(default_factory=KernelTree)
    root: Path = NVMET
    record_path: Path = field(default_factory=lambda: state_folder() / "nvmf-target.json")
    load: Callable[[Collection[str]], None] = load_modules
    missing: Callable[[Collection[str]], list[str]] = missing_modules
    wait: Callable[[str, float], None] = await_address
    connected: Callable[[str], list[str] | None] = connected_hosts

    def plan(self, forced: Collection[str] = ()) -> list[Step]:
        """Steps that are to be done, none when all is as the file says. Changes nothing.

        Raises
        ------
        KvStoreError : a drive, a key or a name that is in the way; with the mend.
        """
        self.spec.require_devices()
        for namespace, path in self._namespaces():
            if not self._is_exported(path, namespace.device):
                check_drive(namespace, forced)
        refuse_doubles([namespace.device for namespace, _ in self._namespaces()])
        ours = self._ours()
        refuse_exported([namespace for namespace, _ in self._namespaces()], self.tree, ours.subsystems)
        return target_plan(self.spec, self.tree, ours, read_key)

    def modprobes(self) -> list[str]:
        """The commands that load what is not loaded."""
        return [f"modprobe {name}" for name in self.missing(self._modules())]

    def apply(self, forced: Collection[str] = ()) -> list[Step]:
        """Do them; those that were done.

        Raises
        ------
        StepFailed : the kernel refused one; all is as it was.
        BusyError : hosts are connected to a subsystem whose drive is exchanged, and which is not forced.
        KvStoreError : as :meth:`plan`, and an address that does not come.
        """
        self.load(self._modules())
        if not self.tree.exists(""):
            raise ConfigError(f"{self.root} is not there: mount -t configfs configfs /sys/kernel/config")
        steps = self.plan(forced)
        if not steps:
            return []
        self._refuse_connected(steps, forced)
        for port in self.spec.ports:
            self.wait(port.address, _ADDRESS_S)
        # Waiting may have taken a minute, in which a drive is mounted, or unplugged.
        steps = self.plan(forced)
        self._refuse_connected(steps, forced)
        before = self._ours()
        during = before.plus(record_of(self.spec))
        with ExitStack() as held:
            write_record(self.record_path, during)
            self._apply_noting(self._holding([self._noted(step, during) for step in steps], held), before, during)
            # Those that were exported before may not be by now what their names lead to.
            exported = {step.path for step in steps if step.value == "1"}
            drives = {
                path: drive_identity(namespace.device)
                if f"{path}/enable" in exported or path not in before.drives
                else before.drives[path]
                for namespace, path in self._namespaces()
            }
        made = record_of(self.spec).identified(self.tree)
        write_record(self.record_path, replace(made, drives=drives))
        return steps

    def removal(self) -> list[Step]:
        """Steps that remove what was made here, by this file or another one."""
        return removal_plan(self.tree, self._ours())

    def others(self) -> list[str]:
        """The subsystems on this machine that the record does not tell of."""
        return sorted(set(self.tree.names("subsystems")) - self._ours().subsystems)

    def remove(self, forced: Collection[str] = ()) -> list[Step]:
        """Do them.

        Raises
        ------
        BusyError : hosts are connected to a subsystem that is not forced.
        """
        ours = self._ours()
        steps = removal_plan(self.tree, ours)
        self._refuse_connected(steps, forced)
        self._apply_noting(steps, ours, ours)
        if read_record(self.record_path) != Record():
            write_record(self.record_path, Record())
        return steps

    def status(self) -> list[tuple[str, str, bool]]:
        """Of each port, subsystem and namespace: its name, how it is, and whether that is as the file says.

        Raises
        ------
        ConfigError : a key cannot be read.
        """
        found = [self._port_status(port) for port in self.spec.ports]
        for subsystem in self.spec.subsystems:
            path = f"subsystems/{subsystem.nqn}"
            allowed = set(self.tree.names(f"{path}/allowed_hosts"))
            wanted = {self.spec.host(name).nqn for name in subsystem.hosts}
            state = f"{len(allowed & wanted)} of {len(wanted)} hosts are let in"
            if allowed - wanted:
                state += f", and {', '.join(sorted(allowed - wanted))}"
            is_open = self.tree.exists(path) and self.tree.read(f"{path}/attr_allow_any_host") == "1"
            if is_open:
                state += ", and everybody else"
            found.append((subsystem.nqn, state, allowed == wanted and not is_open))
        for namespace, path in self._namespaces():
            found.append((f"namespace {namespace.nsid}: {namespace.device}", *self._namespace_status(path, namespace)))
        if all(good for _, _, good in found):
            found += self._rest()
        return found

    def _port_status(self, port: Port) -> tuple[str, str, bool]:
        path, name = f"ports/{port.id}", f"port {port.id}: {port.transport} {port.address}:{port.service}"
        listening = self.tree.names(f"{path}/subsystems")
        if not listening:
            return name, "absent", False
        there = tuple(self.tree.read(f"{path}/addr_{what}") for what in ("trtype", "traddr", "trsvcid"))
        if there != (port.transport, port.address, str(port.service)):
            return name, f"listens at {there[0]} {there[1]}:{there[2]}", False
        wanted = {one.nqn for one in self.spec.subsystems if port.id in one.ports}
        return name, f"listens for {len(listening)} of {len(wanted)} subsystems", set(listening) == wanted

    def _namespace_status(self, path: str, namespace: Namespace) -> tuple[str, bool]:
        """The kernel goes on exporting a drive that was pulled: by its own words all is well."""
        if not self._is_exported(path, namespace.device):
            return "absent", False
        here = drive_identity(namespace.device)
        if here and here == self._ours().drives.get(path, here):
            return "exported", True
        why = "its name leads to another one now" if here else "its drive is gone"
        return f"exported, but {why}: nvmf-setup target remove, then apply", False

    def _rest(self) -> list[tuple[str, str, bool]]:
        """What has no line of its own: identities, serial numbers, keys, and whose it is."""
        try:
            steps = target_plan(self.spec, self.tree, self._ours(), read_key)
        except ForeignDataError as error:
            return [("made by nvmf-setup", f"no: {error}", False)]
        return [(step.path, "not as the file says: nvmf-setup plan", False) for step in steps]

    def _modules(self) -> list[str]:
        return ["nvmet", *dict.fromkeys(_MODULES[port.transport] for port in self.spec.ports)]

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

    def _holding(self, steps: Sequence[Step], held: ExitStack) -> list[Step]:
        """The steps, of which those that export a drive hold it until they are done."""
        devices = {f"{path}/enable": namespace.device for namespace, path in self._namespaces()}
        exports = {step.path for step in steps if step.path in devices and step.value == "1"}
        drives = {path: held.enter_context(HeldDrive(devices[path])) for path in sorted(exports)}
        return [
            ExportStep(step.action, step.path, step.value, step.undo, drive=drives[step.path])
            if step.path in drives and step.value == "1"
            else step
            for step in steps
        ]

    def _refuse_connected(self, steps: Sequence[Step], forced: Collection[str]) -> None:
        """A namespace that is disabled goes from under whoever has a pool on it. Not known is none: most kernels."""
        cut = {step.path.split("/")[1] for step in steps if step.path.endswith("/enable") and step.value == "0"}
        for nqn in sorted(cut - set(forced)):
            if hosts := self.connected(nqn):
                raise BusyError(
                    f"{nqn} has hosts connected, and this takes drives away under them: {', '.join(hosts)}. "
                    f"nvmf-setup host disconnect there, or --force {nqn}"
                )

    def _ours(self) -> Record:
        return read_record(self.record_path).proved(self.tree)

    def _noted(self, step: Step, record: Record) -> Step:
        """One that makes a directory of the record tells the record."""
        if step.action != "mkdir" or step.path.count("/") != 1:
            return step

        def note() -> None:
            record.made[step.path] = self.tree.identity(step.path)
            write_record(self.record_path, record)

        return NotedStep(step.action, step.path, step.value, step.undo, note=note)

    def _apply_noting(self, steps: Sequence[Step], before: Record, during: Record) -> None:
        """Where it is undone what was removed is there again, as another directory."""
        try:
            apply(steps, self.tree, self.root, mend)
        except BaseException as failed:
            is_undone = not (isinstance(failed, StepFailed) and failed.left)
            write_record(self.record_path, (before if is_undone else during).identified(self.tree))
            raise
