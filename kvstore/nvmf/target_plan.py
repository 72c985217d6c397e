# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What a target lacks of what the file says, as steps on the kernel's configfs.

Guarantees: changes nothing by itself; no step when nothing is to be changed; none that touches what is not in the
record, which is refused where it is in the way. A host sees a subsystem only when it is complete: links from ports come
last, and go first. Nobody is let in who is not named (``attr_allow_any_host`` is 0), and who is no more, or by another
key, is cut off.

    hosts -> subsystems, allowed hosts, namespaces -> ports -> links from ports to subsystems
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kvstore.errors import ConfigError, ForeignDataError
from kvstore.nvmf.record import Record
from kvstore.nvmf.spec import Host, Namespace, Port, Spec, Subsystem
from kvstore.nvmf.steps import RestoreStep, Step
from kvstore.nvmf.tree import NVMET, Tree

__all__ = ["record_of", "removal_plan", "target_plan"]

# The kernel takes a port's security only once it has a transport, and what is required of hosts only after that.
_ORDER = ("addr_trtype", "addr_adrfam", "addr_traddr", "addr_trsvcid", "addr_tsas", "addr_treq")
_SECRETS = ("dhchap_key", "dhchap_ctrl_key")
_IN_FILE = dict(zip(_SECRETS, ("key_file", "controller_key_file"), strict=True))
_ANA_GROUP = "1"  # the one that every port has
_UNSET = "(null)"  # so a path that is none is shown; "" cannot be written to configfs at all (EFAULT)

ReadKey = Callable[[str], str]


def record_of(spec: Spec) -> Record:
    """What the steps of this file make, or may."""
    inside = set()
    for one in spec.subsystems:
        inside |= {f"subsystems/{one.nqn}/namespaces/{namespace.nsid}" for namespace in one.namespaces}
        inside |= {f"subsystems/{one.nqn}/allowed_hosts/{spec.host(name).nqn}" for name in one.hosts}
        inside |= {f"ports/{port}/subsystems/{one.nqn}" for port in one.ports}
    return Record(
        {subsystem.nqn for subsystem in spec.subsystems},
        {str(port.id) for port in spec.ports},
        {host.nqn for host in spec.hosts},
        inside,
    )


def target_plan(spec: Spec, tree: Tree, ours: Record, read_key: ReadKey) -> list[Step]:
    """Steps to what the file says.

    Parameters
    ----------
    ours : what was made before; of that goes what the file does not have any more.
    read_key : the key in a file.

    Raises
    ------
    ForeignDataError : something of somebody else's bears a name of the file.
    """
    planner = _Planner(tree, ours, read_key)
    wanted = record_of(spec)
    planner.refuse_foreign(spec)
    planner.remove(Record(ours.subsystems - wanted.subsystems, ours.ports - wanted.ports))
    planner.unlink_surplus(spec)
    for host in spec.hosts:
        planner.host(host)
    for subsystem in spec.subsystems:
        planner.subsystem(subsystem, [spec.host(name).nqn for name in subsystem.hosts])
    for port in spec.ports:
        planner.port(port, [one.nqn for one in spec.subsystems if port.id in one.ports])
    planner.cut_off()
    planner.remove(Record(hosts=ours.hosts - wanted.hosts))
    return planner.steps


def removal_plan(tree: Tree, ours: Record) -> list[Step]:
    """Steps that remove all that was made."""
    planner = _Planner(tree, ours, lambda file: "")
    planner.remove(ours)
    return planner.steps


class _Planner:
    """Collects steps; knows what the tree will be like after those it has."""

    def __init__(self, tree: Tree, ours: Record, read_key: ReadKey) -> None:
        self.tree, self.ours, self.read_key = tree, ours, read_key
        self.steps: list[Step] = []
        self._unlinked: set[str] = set()
        self._cut: set[str] = set()  # subsystems that somebody may be connected to who may not be any more

    # ---- what is in the way ----

    def refuse_foreign(self, spec: Spec) -> None:
        """Somebody else's subsystem, port or host with a key bears a name of ours."""
        taken = [f"subsystems/{one.nqn}" for one in spec.subsystems if one.nqn not in self.ours.subsystems]
        taken += [f"ports/{one.id}" for one in spec.ports if str(one.id) not in self.ours.ports]
        taken += [f"hosts/{one.nqn}" for one in spec.hosts if one.nqn not in self.ours.hosts]
        for path in taken:
            if self.tree.exists(path):
                kind, _, name = path.partition("/")
                raise ForeignDataError(
                    f"{name} is there already in {kind}, and nvmf-setup did not make it: take another name in "
                    f"{spec.path}, or remove it"
                )
        for subsystem in spec.subsystems:
            for namespace in subsystem.namespaces:
                path = f"subsystems/{subsystem.nqn}/namespaces/{namespace.nsid}"
                if self.tree.exists(path):
                    self._refuse_strange(path)

    def _refuse_strange(self, path: str) -> None:
        """What somebody else put into ours, such as a subsystem of his behind our port: an address has one port."""
        if path not in self.ours.inside:
            raise ForeignDataError(
                f"somebody else put {path} into what nvmf-setup made: name it in the file, or remove it by hand first, "
                f"below {NVMET}"
            )

    # ---- making and changing ----

    def host(self, host: Host) -> None:
        """Who may be let in, with its keys."""
        path = f"hosts/{host.nqn}"
        is_new = self._directory(path)
        for attribute, file in (("dhchap_key", host.key_file), ("dhchap_ctrl_key", host.controller_key_file)):
            before = "" if is_new else self._read(f"{path}/{attribute}", "")
            key = self.read_key(file) if file else ""
            if key == before:
                continue
            if not is_new and not key:
                raise ConfigError(
                    f"host {host.name} has a key on this target and no {_IN_FILE[attribute]} in the file, and the "
                    "kernel takes no key off a host: write it in the file, or nvmf-setup target remove, then apply"
                )
            if is_new or before:
                self._write(f"{path}/{attribute}", key, before or None, is_secret=True)
            else:
                self._first_key(path, attribute, key)
            links = {nqn: f"subsystems/{nqn}/allowed_hosts/{host.nqn}" for nqn in self.ours.subsystems}
            self._cut |= {nqn for nqn, link in links.items() if self.tree.exists(link)}

    def _first_key(self, path: str, attribute: str, key: str) -> None:
        """The kernel has no way to take a key off: undoing makes the host again without it, and lets it in again."""
        _, _, nqn = path.partition("/")
        links = [f"subsystems/{one}/allowed_hosts/{nqn}" for one in self.tree.names("subsystems")]
        links = [link for link in links if self.tree.exists(link) and link not in self._unlinked]
        planned = {step.path: step.value for step in self.steps if step.action == "write"}
        other = f"{path}/{next(name for name in _SECRETS if name != attribute)}"
        again = [
            replace(step, value=planned[other]) if step.path == other and other in planned else step
            for step in self._made_again(path)
            if step.path != f"{path}/{attribute}"
        ]
        if other in planned and other not in {step.path for step in again}:
            again.append(Step("write", other, planned[other], is_secret=True))
        undo = (
            *(Step("unlink", link) for link in links),
            Step("rmdir", path),
            *again,
            *(Step("link", link, path) for link in links),
        )
        self.steps.append(Step("write", f"{path}/{attribute}", key, undo, is_secret=True))

    def subsystem(self, subsystem: Subsystem, hosts: list[str]) -> None:
        """With its namespaces and those who may connect."""
        path = f"subsystems/{subsystem.nqn}"
        is_new = self._directory(path)
        if not is_new and self._read(f"{path}/attr_allow_any_host") == "1":
            self._cut.add(subsystem.nqn)
        wanted = {"attr_allow_any_host": "0", "attr_serial": subsystem.serial, "attr_model": subsystem.model}
        self._attributes(path, wanted, is_new=is_new)
        for nqn in hosts:
            self._link(f"{path}/allowed_hosts/{nqn}", f"hosts/{nqn}")
        for namespace in subsystem.namespaces:
            self._namespace(f"{path}/namespaces/{namespace.nsid}", namespace)

    def _namespace(self, path: str, namespace: Namespace) -> None:
        wanted = {
            "device_path": namespace.device,
            "device_uuid": namespace.uuid,
            "device_nguid": namespace.nguid,
        }
        is_new = self._directory(path)
        differs = is_new or any(not _same(name, self._read(f"{path}/{name}"), value) for name, value in wanted.items())
        is_on = not is_new and self._read(f"{path}/enable", "0") == "1"
        if differs and is_on:  # the kernel changes none while hosts use it
            self._write(f"{path}/enable", "0", "1")
        self._attributes(path, wanted, is_new=is_new)
        if differs or not is_on:
            self._write(f"{path}/enable", "1", "0")

    def port(self, port: Port, subsystems: list[str]) -> None:
        """With links to what is behind it, which come last of all."""
        path = f"ports/{port.id}"
        wanted = {
            "addr_trtype": port.transport,
            "addr_adrfam": port.family,
            "addr_traddr": port.address,
            "addr_trsvcid": str(port.service),
        }
        is_new = self._directory(path)
        if not is_new and any(self._read(f"{path}/{name}") != value for name, value in wanted.items()):
            for nqn in self.tree.names(f"{path}/subsystems"):  # the kernel changes none while it listens there
                self._unlink(f"{path}/subsystems/{nqn}", f"subsystems/{nqn}")
        self._attributes(path, wanted, is_new=is_new)
        for nqn in subsystems:
            self._link(f"{path}/subsystems/{nqn}", f"subsystems/{nqn}")

    # ---- removing ----

    def unlink_surplus(self, spec: Spec) -> None:
        """Links, namespaces and permissions of ours that the file does not have any more."""
        for port in spec.ports:
            behind = {one.nqn for one in spec.subsystems if port.id in one.ports}
            for nqn in self.tree.names(f"ports/{port.id}/subsystems"):
                if nqn not in behind:
                    self._unlink(f"ports/{port.id}/subsystems/{nqn}", f"subsystems/{nqn}")
        for subsystem in spec.subsystems:
            path = f"subsystems/{subsystem.nqn}"
            allowed = {spec.host(name).nqn for name in subsystem.hosts}
            for nqn in self.tree.names(f"{path}/allowed_hosts"):
                if nqn not in allowed:
                    self._unlink(f"{path}/allowed_hosts/{nqn}", f"hosts/{nqn}")
                    self._cut.add(subsystem.nqn)
            kept = {str(namespace.nsid) for namespace in subsystem.namespaces}
            for nsid in self.tree.names(f"{path}/namespaces"):
                if nsid not in kept:
                    self._remove_namespace(f"{path}/namespaces/{nsid}")

    def cut_off(self) -> None:
        """End the connections to subsystems that lost a permission or a key; those who still may connect again.

        The kernel asks for both only when somebody connects: whoever is connected stays, until the subsystem leaves
        the port (nvmet_port_subsys_drop_link). It is back in the next step: a host that comes to a port which listens
        without it is told never to try again.
        """
        for nqn in sorted(self._cut):
            for port in self.tree.names("ports"):
                path = f"ports/{port}/subsystems/{nqn}"
                if self.tree.exists(path) and path not in self._unlinked:
                    self._unlink(path, f"subsystems/{nqn}", is_back=True)
                    self._link(path, f"subsystems/{nqn}")

    def remove(self, gone: Record) -> None:
        """All of it that is there: links first, then what they lead to."""
        for name in sorted(gone.ports):
            path = f"ports/{name}"
            for nqn in self.tree.names(f"{path}/subsystems"):
                self._unlink(f"{path}/subsystems/{nqn}", f"subsystems/{nqn}")
            self._remove(path)
        for nqn in sorted(gone.subsystems):
            path = f"subsystems/{nqn}"
            for port in self.tree.names("ports"):
                if nqn in self.tree.names(f"ports/{port}/subsystems"):
                    self._unlink(f"ports/{port}/subsystems/{nqn}", path)
            for nsid in self.tree.names(f"{path}/namespaces"):
                self._remove_namespace(f"{path}/namespaces/{nsid}")
            for host in self.tree.names(f"{path}/allowed_hosts"):
                self._unlink(f"{path}/allowed_hosts/{host}", f"hosts/{host}")
            self._remove(path)
        for nqn in sorted(gone.hosts):
            if not self._still_allowed(nqn):
                self._remove(f"hosts/{nqn}")

    def _still_allowed(self, host: str) -> bool:
        """By a subsystem of somebody else."""
        links = (f"subsystems/{nqn}/allowed_hosts/{host}" for nqn in self.tree.names("subsystems"))
        return any(self.tree.exists(link) and link not in self._unlinked for link in links)

    def _remove_namespace(self, path: str) -> None:
        self._refuse_strange(path)
        if self._read(f"{path}/enable", "0") == "1":
            self._write(f"{path}/enable", "0", "1")
        self._remove(path)

    def _remove(self, path: str) -> None:
        if not self.tree.exists(path):
            return
        for child in self.tree.names(f"{path}/referrals"):
            self._refuse_strange(f"{path}/referrals/{child}")
        for child in self.tree.names(f"{path}/ana_groups"):
            if child != _ANA_GROUP:
                self._refuse_strange(f"{path}/ana_groups/{child}")
        self.steps.append(Step("rmdir", path, undo=self._made_again(path)))

    def _made_again(self, path: str) -> tuple[Step, ...]:
        """What makes it as it is, with what others have set, such as TLS of a port; without what leads to it."""
        group = f"ana_groups/{_ANA_GROUP}"
        names = [*self.tree.names(path), *(f"{group}/{name}" for name in self.tree.names(f"{path}/{group}"))]
        steps: list[Step] = [Step("mkdir", path)]
        for name in sorted(names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)):
            try:
                value = self.tree.read(f"{path}/{name}")
            except OSError:  # a directory, or an attribute that is only written
                continue
            if value not in ("", _UNSET) and name != "enable":  # the step that disabled it enables it
                steps.append(RestoreStep("write", f"{path}/{name}", value, is_secret=name in _SECRETS))
        return tuple(steps)

    # ---- single steps ----

    def _directory(self, path: str) -> bool:
        """Whether it is to be made; also one whose making was ended midway: what it has not, no step could put back."""
        if self.tree.exists(path):
            asked = [f"{path}/{name}" for name in (*_ORDER[:4], "device_path") if self.tree.exists(f"{path}/{name}")]
            if all(self.tree.read(name) not in ("", _UNSET) for name in asked):
                return False
            self._remove(path)
        self.steps.append(Step("mkdir", path, undo=(Step("rmdir", path),)))
        return True

    def _attributes(self, path: str, wanted: Mapping[str, str], *, is_new: bool) -> None:
        for name, value in wanted.items():
            before = None if is_new else self._read(f"{path}/{name}")
            if before is None or not _same(name, before, value):
                self._write(f"{path}/{name}", value, before)

    def _write(self, path: str, value: str, before: str | None, *, is_secret: bool = False) -> None:
        """``before``: what undoing writes; None: nothing, since what it belongs to goes."""
        undo = () if before is None else (Step("write", path, before, is_secret=is_secret),)
        self.steps.append(Step("write", path, value, undo, is_secret))

    def _link(self, path: str, to: str) -> None:
        if not self.tree.exists(path) or path in self._unlinked:
            self.steps.append(Step("link", path, to, undo=(Step("unlink", path),)))

    def _unlink(self, path: str, to: str, *, is_back: bool = False) -> None:
        """``is_back``: the next step links it again."""
        if path not in self._unlinked:
            if not is_back:
                self._refuse_strange(path)
            self._unlinked.add(path)
            self.steps.append(Step("unlink", path, undo=(Step("link", path, to),)))

    def _read(self, path: str, default: str | None = None) -> str:
        if default is not None and not self.tree.exists(path):
            return default
        return self.tree.read(path)


def _same(name: str, found: str, wanted: str) -> bool:
    """UUIDs and NGUIDs come back with other separators than they were written with, serial numbers padded to 20."""
    if name in ("device_uuid", "device_nguid"):
        return found.replace("-", "").lower() == wanted.replace("-", "").lower()
    if name in ("attr_serial", "attr_model"):
        return found.rstrip() == wanted.rstrip()
    return found == wanted
