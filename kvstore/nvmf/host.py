# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A host as the file wants it: its paths connected, with just those options, or none of them.

Guarantees: a path that is there as the file says is left alone; what was made in a run that fails or is ended is
disconnected again, what it changed is put back, and what could not be is told; after success every option was read back
from the kernel, but those that this kernel tells nobody. Other connections are never touched.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from kvstore.errors import BusyError, ConfigError, KvStoreError, WaitTimeout
from kvstore.nvmf.fabrics import ConnectRefused, Fabrics, KernelFabrics, StillConnecting
from kvstore.nvmf.host_errors import explain
from kvstore.nvmf.host_plan import HostPath, host_paths
from kvstore.nvmf.in_use import holder_of
from kvstore.nvmf.keys import read_key
from kvstore.nvmf.modules import load_modules, missing_modules
from kvstore.nvmf.signals import shielded
from kvstore.nvmf.spec import Namespace, Spec
from kvstore.nvmf.sysfs import Controller, Device, controllers, devices
from kvstore.nvmf.tree import DirectoryTree, Tree

__all__ = ["SYSFS", "ConnectFailed", "Difference", "LocalHost", "PathState"]

SYSFS = Path("/sys")
BY_ID = Path("/dev/disk/by-id")
CONNECT_S = 30.0
_STEP_S = 0.1
_MODULES = {"rdma": "nvme-rdma", "tcp": "nvme-tcp"}

#: Attributes that the kernel lets be changed while connected, in the order in which they have to be: the loss time is
#: kept as a number of attempts, each as long as the delay.
_CHANGEABLE = ("reconnect_delay", "ctrl_loss_tmo", "fast_io_fail_tmo")

#: The target ends the connection right after it has refused a key. Over RDMA the refusal may then never arrive, and the
#: kernel waits for it while it holds /dev/nvme-fabrics (nvmet's auth.c and nvme's auth.c, seen on 6.12).
_LOST_REFUSAL = (
    " A wrong key may be why, whose refusal can get lost over RDMA: where dmesg on the target has 'host response "
    "mismatch' put the same key into both files (key_file), and reboot this machine if nothing connects any more."
)

#: Where the kernel tells an option under another name.
_ATTRIBUTES = {"nr_io_queues": "queue_count", "queue_size": "sqsize", "keep_alive_tmo": "kato"}


class ConnectFailed(KvStoreError):
    """A path could not be connected; says which, why, the mend, and whether all is as before."""


@dataclass(frozen=True)
class Difference:
    """An option that is not as the file says. ``attribute`` is where it can be changed; empty: connect anew."""

    option: str
    found: int | str
    wanted: int | str
    attribute: str = ""

    def __str__(self) -> str:
        return f"{self.option} is {self.found}, not {self.wanted}"


@dataclass(frozen=True)
class PathState:
    """A path of the file, and the connection there is."""

    path: HostPath
    controller: Controller | None
    differences: tuple[Difference, ...]

    @property
    def is_as_wanted(self) -> bool:
        """Connected, usable, and with the options of the file."""
        return self.controller is not None and self.controller.state == "live" and not self.differences

    def __str__(self) -> str:
        if self.controller is None:
            return "not connected"
        return "; ".join([f"{self.controller.name} {self.controller.state}", *map(str, self.differences)])


@dataclass
class _Undo:
    """What a run did: paths that were not there and that the kernel was asked for; attributes, and what they held."""

    tried: list[HostPath] = field(default_factory=list)
    changed: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class LocalHost:
    """What the file says of this machine as one of its hosts."""

    spec: Spec
    name: str
    sysfs: Tree = field(default_factory=lambda: DirectoryTree(SYSFS))
    fabrics: Fabrics = field(default_factory=KernelFabrics)
    load: Callable[[Collection[str]], None] = load_modules
    missing: Callable[[Collection[str]], list[str]] = missing_modules
    key: Callable[[str], str] = read_key
    holder: Callable[[str], str] = holder_of
    by_id: Path = BY_ID
    cpus: Callable[[], int | None] = os.cpu_count
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def paths(self) -> list[HostPath]:
        """All that the file gives this host."""
        return host_paths(self.spec, self.name)

    def states(self) -> list[PathState]:
        """How each path is. Changes nothing."""
        there = controllers(self.sysfs)
        found = []
        for path in self.paths():
            controller = next((one for one in there if _is_of(one, path)), None)
            found.append(PathState(path, controller, self._differences(path, controller) if controller else ()))
        return found

    def namespaces(self) -> list[tuple[Namespace, str, list[Device]]]:
        """Of each namespace of the file: the NQN of its subsystem, and the devices that this host has it as."""
        mine = [one for one in devices(self.sysfs) if self._host_nqn() in one.host_nqns]
        return [
            (namespace, subsystem.nqn, [one for one in mine if one.nguid == namespace.nguid])
            for subsystem in self.spec.subsystems
            if self.name in subsystem.hosts
            for namespace in subsystem.namespaces
        ]

    def modprobes(self) -> list[str]:
        """The commands that load what is not loaded."""
        return [f"modprobe {name}" for name in self.missing(self._modules())]

    def commands(self, state: PathState) -> list[str]:
        """What connecting does with a path, as a shell's commands; none where it would refuse or nothing is to do."""
        if state.controller is None:
            return [f"printf %s {shlex.quote(state.path.shown())} > /dev/nvme-fabrics"]
        if any(not one.attribute for one in state.differences):
            return []
        written = _to_write(state.path, state.differences)
        return [f"printf %s {value} > /sys/{state.controller.path}/{name}" for name, value in written.items()]

    def connect(self, within_s: float = CONNECT_S) -> list[str]:
        """Connect what is not, mend what can be mended while connected; what was done, in words.

        Raises
        ------
        ConnectFailed : a path cannot be, or its options are not what was asked for; what was done here is undone, and
            what could not be is told, also where the run was ended.
        KvStoreError : a key, a module or the kernel's door is missing.
        """
        before = self.states()
        self._refuse_unmendable(before)
        self.load(self._modules())
        lines = {state.path: state.path.line(self.key) for state in before if state.controller is None}
        if lines:
            self._check_options(within_s)
        done: list[str] = []
        run = _Undo()
        try:
            for state in before:
                if state.controller is None:
                    name = self._connect(state.path, lines[state.path], within_s, run)
                    done.append(f"connected {state.path.name} as {name}")
                done += self._mend(state.path, within_s, run)
            self._await_namespaces(within_s)
        except BaseException as error:
            with shielded():
                left = self._undo(run, within_s)
            if isinstance(error, StillConnecting):
                left.append("That path may still come: nvmf-setup host status in a while, and host disconnect.")
            if not isinstance(error, KvStoreError) and not left:
                raise
            what = "The run was ended." if isinstance(error, KeyboardInterrupt) else str(error)
            raise ConnectFailed(f"{what} {' '.join(left) or 'All is as it was before.'}") from error
        return done

    def disconnection(self, forced: Collection[str] = ()) -> list[Controller]:
        """The connections of this file that are there.

        Raises
        ------
        BusyError : a namespace of theirs is in use, or nobody can tell, and it is not forced.
        ConfigError : what is forced is none of their namespaces: each by its NGUID, or its path under /dev/disk/by-id,
            never by a name in /dev, by which the same words mean another one after a boot.
        """
        mine = [state.controller for state in self.states() if state.controller is not None]
        nqns = {one.subsystem for one in mine}
        theirs = [one for one in devices(self.sysfs) if one.subsystem in nqns and self._host_nqn() in one.host_nqns]
        spared = {self._named(name, theirs).node for name in forced} if mine else set()
        for device in theirs:
            holder = "" if device.node in spared else self.holder(device.node)
            if holder:
                mend = f"--force {device.nguid}" if device.nguid else "give it an NGUID, by which it can be forced"
                raise BusyError(f"{device.node} is in use: {holder}. End that, or: {mend}")
        return mine

    def _named(self, name: str, among: list[Device]) -> Device:
        digits = name.replace("-", "").lower()
        is_path = Path(name).parent == self.by_id
        for one in among:
            if (one.nguid and one.nguid == digits) or (is_path and Path(name).resolve().name == one.name):
                return one
        there = ", ".join(one.nguid for one in among if one.nguid) or "none"
        raise ConfigError(
            f"--force {name} is no namespace that is connected: name it by its NGUID, or its path under {self.by_id}: "
            f"{there}"
        )

    def disconnect(self, forced: Collection[str] = (), within_s: float = CONNECT_S) -> list[str]:
        """Disconnect them; their names.

        Raises
        ------
        BusyError : as :meth:`disconnection`.
        WaitTimeout : the kernel does not let go of one.
        """
        names = [one.name for one in self.disconnection(forced)]
        left = self._take_back(names, within_s)
        if left:
            raise WaitTimeout(f"not gone within {within_s:g} s: {', '.join(left)}. See dmesg for what they wait for")
        return names

    # ---- one path ----

    def _connect(self, path: HostPath, line: str, within_s: float, run: _Undo) -> str:
        run.tried.append(path)
        try:
            return self.fabrics.connect(line, within_s)
        except ConnectRefused as refused:
            run.tried.remove(path)  # what is there under its name by now is somebody else's
            raise ConfigError(f"{path.name}: {explain(refused, path, self.fabrics.options())}") from refused
        except WaitTimeout as late:
            hint = _LOST_REFUSAL if path.key_files() and path.port.transport == "rdma" else ""
            raise type(late)(f"{path.name}: {late}.{hint}") from late

    def _mend(self, path: HostPath, within_s: float, run: _Undo) -> list[str]:
        """Wait until the path is usable, bring what can be changed to what the file says, and see that all of it is."""
        controller = self._await_live(path, within_s)
        wanted = _to_write(path, self._differences(path, controller))
        before = (controller.reconnect_delay_s, controller.controller_loss_s, controller.fast_io_fail_s)
        done = []
        for attribute, value in zip(_CHANGEABLE, before, strict=True):
            if attribute in wanted:
                if path not in run.tried and value is not None:
                    run.changed.append((f"{controller.path}/{attribute}", str(value)))
                try:
                    self.sysfs.write(f"{controller.path}/{attribute}", wanted[attribute])
                except OSError as error:
                    where = f"/sys/{controller.path}/{attribute}"
                    raise ConfigError(f"{where} does not take {wanted[attribute]}: {error.strerror}.") from error
                done.append(f"{controller.name}: {attribute} set to {wanted[attribute]}")
        left = [str(one) for one in self._differences(path, self._await_live(path, within_s))]
        if left:
            raise ConfigError(f"{path.name}: {'; '.join(left)}. {_mend_of(left)}")
        return done

    def _await_live(self, path: HostPath, within_s: float) -> Controller:
        deadline = self.now_s() + within_s
        while True:
            controller = next((one for one in controllers(self.sysfs) if _is_of(one, path)), None)
            if controller is not None and controller.state == "live":
                return controller
            if self.now_s() >= deadline:
                state = f"{controller.name} is {controller.state}" if controller else "there is no controller"
                raise WaitTimeout(f"{path.name}: {state} after {within_s:g} s: does the target answer? ping, dmesg.")
            self.sleep(_STEP_S)

    def _differences(self, path: HostPath, controller: Controller) -> tuple[Difference, ...]:
        connection = path.connection
        delay = connection.reconnect_delay_s
        # As the kernel rounds it: to whole attempts.
        loss = -(-connection.controller_loss_s // delay) * delay
        wanted: list[tuple[str, int | str | None, int | str, str]] = [
            ("hostid", controller.host_id or None, path.host.host_id, ""),
            ("nr_io_queues", controller.io_queues, min(connection.io_queues, self.cpus() or 1), ""),
            ("queue_size", controller.queue_size, connection.queue_size, ""),
            ("keep_alive_tmo", controller.keep_alive_s, connection.keep_alive_s, ""),
            ("reconnect_delay", controller.reconnect_delay_s, delay, "reconnect_delay"),
            ("ctrl_loss_tmo", controller.controller_loss_s, loss, "ctrl_loss_tmo"),
            ("fast_io_fail_tmo", controller.fast_io_fail_s, connection.fast_io_fail_s, "fast_io_fail_tmo"),
        ]
        return tuple(
            Difference(option, "not told" if found is None else found, value, attribute)
            for option, found, value, attribute in wanted
            if found != value and not (found is None and self._is_told_to_nobody(controller, option))
        )

    def _is_told_to_nobody(self, controller: Controller, option: str) -> bool:
        """This kernel has no such attribute. Not: it was not read, or the controller has gone.

        Without fast_io_fail_tmo requests wait for as long as the path is lost, so that one has to be there.
        """
        attribute = f"{controller.path}/{_ATTRIBUTES.get(option, option)}"
        is_there = self.sysfs.exists(f"{controller.path}/state")
        return is_there and option != "fast_io_fail_tmo" and not self.sysfs.exists(attribute)

    def _refuse_unmendable(self, states: list[PathState]) -> None:
        for state in states:
            fixed = [str(one) for one in state.differences if not one.attribute]
            if fixed and state.controller is not None:
                raise ConfigError(
                    f"{state.path.name} is connected as {state.controller.name} with other options: {'; '.join(fixed)}."
                    f" They hold from connecting on: {_mend_of(fixed)}"
                )

    def _check_options(self, within_s: float) -> None:
        known = self.fabrics.options(within_s)
        if not known and any(path.key_files() for path in self.paths()):
            # It has no keys either, which came later, and logs whatever it does not know: the key, for all to read.
            raise ConfigError(
                f"this kernel ({os.uname().release}) knows no keys of hosts: take 6.0 or later, or leave keys out"
            )
        for path in self.paths():
            for name in [*path.options(), *path.key_files()]:
                # What is no option of connecting yet is an attribute afterwards, and is written there.
                if known and name not in known and name not in _CHANGEABLE:
                    raise ConfigError(
                        f"this kernel ({os.uname().release}) knows no option {name} of connections: take a later one"
                        + (", built with CONFIG_NVME_HOST_AUTH, or leave keys out" if "dhchap" in name else "")
                    )

    # ---- all of them ----

    def _await_namespaces(self, within_s: float) -> None:
        """The kernel looks for them after it has said that it is connected."""
        deadline = self.now_s() + within_s
        while True:
            absent = [(one, nqn) for one, nqn, found in self.namespaces() if not found]
            if not absent:
                return
            if self.now_s() >= deadline:
                one, nqn = absent[0]
                raise WaitTimeout(
                    f"namespace {one.nsid} of {nqn} (NGUID {one.nguid}) is not seen after {within_s:g} s: is it enabled"
                    " on the target? nvmf-setup target status."
                )
            self.sleep(_STEP_S)

    def _undo(self, run: _Undo, within_s: float) -> list[str]:
        """What could not be, in sentences.

        By the paths and not by the names that the kernel answered: a run that was ended, or an answer that was none,
        leaves a controller whose name nobody was told.
        """
        there = controllers(self.sysfs)
        names = [one.name for one in there if any(_is_of(one, path) for path in run.tried)]
        still = self._take_back(names, within_s)
        left = [f"Still connected, disconnect by hand: {', '.join(still)}."] if still else []
        for path, value in run.changed:  # not in reverse: the loss time is kept as a number of delays
            try:
                self.sysfs.write(path, value)
            except OSError as error:
                left.append(f"Not put back: printf %s {value} > /sys/{path} ({error.strerror}).")
        return left

    def _take_back(self, names: list[str], within_s: float) -> list[str]:
        """Disconnect controllers; those that are still there at the deadline."""
        for name in reversed(names):
            with contextlib.suppress(OSError, WaitTimeout):  # gone by itself; what is not is told below
                self.fabrics.disconnect(name, within_s)
        deadline = self.now_s() + within_s
        while left := [one.name for one in controllers(self.sysfs) if one.name in names]:
            if self.now_s() >= deadline:
                return left
            self.sleep(_STEP_S)
        return []

    def _modules(self) -> list[str]:
        return ["nvme-fabrics", *dict.fromkeys(_MODULES[path.port.transport] for path in self.paths())]

    def _host_nqn(self) -> str:
        return self.paths()[0].host.nqn


def _is_of(controller: Controller, path: HostPath) -> bool:
    there = (controller.transport, controller.address, controller.service, controller.subsystem, controller.host_nqn)
    port = path.port
    is_same = there == (port.transport, port.address, str(port.service), path.subsystem, path.host.nqn)
    return is_same and not controller.state.startswith("deleting")


def _to_write(path: HostPath, differences: Collection[Difference]) -> dict[str, str]:
    """The attributes that bring a connection to what the file says, and their values, in their order."""
    wrong = {one.attribute for one in differences}
    if "reconnect_delay" in wrong:
        wrong.add("ctrl_loss_tmo")
    return {name: path.options()[name] for name in _CHANGEABLE if name in wrong}


def _mend_of(differences: list[str]) -> str:
    text = "; ".join(differences)
    if "nr_io_queues" in text or "queue_size" in text:
        return (
            "Disconnect and connect anew; if that does not help, the adapter or the target gives no more: write what it"
            " gives in the file, under connection."
        )
    return "Disconnect and connect anew (nvmf-setup host disconnect, host connect)."
