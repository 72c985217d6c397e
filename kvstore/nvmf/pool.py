# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The pool of a host: its namespaces found by what they are, formatted when blank, opened, and the line for LMCache.

Guarantees: never by a name in /dev, which is another one at each boot; nothing is written where any namespace is not
what the file, its superblock and the record of the last run say; a second run changes nothing and gives the same line.
The record holds, by NGUID, which store was there. It is no part of the pool: without it what is there is taken on.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import kvstore
from kvstore import _core
from kvstore.errors import BusyError, ConfigError, CorruptionError, ForeignDataError, FormatError, OtherStoreError
from kvstore.nvmf.host import LocalHost
from kvstore.nvmf.record import read_json, state_folder, write_json
from kvstore.nvmf.spec import Namespace
from kvstore.nvmf.sysfs import Device, devices

__all__ = ["Found", "HostPool", "PoolPlan", "line_for_lmcache"]

DEV = Path("/dev")
_SETTLE_S = 2.0
_BY_ID = ("nvme-uuid.", "nvme-eui.", "nvme-nguid.", "nvme-")  # names of udev, those that say what it is first


@dataclass(frozen=True)
class Found:
    """A namespace of the file, as this host has it."""

    namespace: Namespace
    device: Device
    path: str  # that stays right after a boot, where udev makes one
    holds: str  # what is on it; empty: nothing
    superblock: Mapping[str, Any] | None
    is_forced: bool = False


@dataclass(frozen=True)
class PoolPlan:
    """What is there, and whether it is to be formatted."""

    found: tuple[Found, ...]
    is_blank: bool

    @property
    def paths(self) -> list[str]:
        """Of the devices, in the order of the file."""
        return [one.path for one in self.found]

    @property
    def owner(self) -> Mapping[str, Any] | None:
        """Who opened the pool last and has not closed it: the superblock does not tell whether he lives.

        Not of a shared pool, which has as many as like.
        """
        for one in self.found:
            superblock = None if one.is_forced else one.superblock
            if superblock is not None and not superblock["clean"] and not superblock["shared_mode"]:
                return {**superblock["owner"], "opened_seconds": superblock["opened_seconds"]}
        return None


@dataclass
class HostPool:
    """What the file says of the pool of this machine."""

    host: LocalHost
    dev: Path = DEV
    record_path: Path = field(default_factory=lambda: state_folder() / "nvmf-pool.json")
    superblock: Callable[[str], Mapping[str, Any]] = _core.read_superblock
    sleep: Callable[[float], None] = time.sleep

    def plan(self, forced: Collection[str] = ()) -> PoolPlan:
        """What is to be done. Writes nothing.

        Parameters
        ----------
        forced : namespaces whose content may go: each by its NGUID, or its path under /dev/disk/by-id.

        Raises
        ------
        ConfigError : a namespace is not there, or there twice; or ``forced`` names none.
        OtherStoreError : a namespace bears a wrong identity, or holds another store than it did or should.
        ForeignDataError : it holds something else.
        """
        found = self._with_force([self._found(namespace, nqn) for namespace, nqn, _ in self.host.namespaces()], forced)
        kept = [one for one in found if not one.is_forced]
        remembered = self._read_record()
        for one in kept:
            _check_identity(one)
            _check_remembered(one, remembered.get(one.namespace.nguid), str(self.record_path))
        stores = [one for one in kept if one.superblock is not None]
        if not stores:
            return PoolPlan(found, is_blank=True)
        if len(stores) < len(found):
            held = ", ".join(one.path for one in stores)
            rest = " ".join(f"--force {one.namespace.nguid}" for one in found)
            raise OtherStoreError(
                f"of {len(found)} namespaces only some hold a store ({held}): a pool has all of them. To make a new one"
                f" of all, and lose what is there: {rest}"
            )
        _check_members(found)
        return PoolPlan(found, is_blank=False)

    def make(self, forced: Collection[str] = (), **sizes: Any) -> tuple[PoolPlan, str]:
        """Format what is blank, open it, remember it; the plan that was done and the pool's uuid.

        Parameters
        ----------
        sizes : as of :func:`kvstore.format`.

        Raises
        ------
        KvStoreError : as :meth:`plan`, and what formatting and opening raise.
        """
        plan = self.plan(forced)
        if plan.is_blank:
            self._format(plan, sizes)
        else:
            # Looks only: the pool may be in use here or on another host, and stays as it is.
            kvstore.open(plan.paths, read_only=True).close()
        superblocks = {one.namespace.nguid: self.superblock(one.path) for one in plan.found}
        remembered = self._read_record()
        fresh = remembered | {nguid: str(one["store_uuid"]) for nguid, one in superblocks.items()}
        if fresh != remembered:
            write_json(self.record_path, fresh)
        return plan, str(next(iter(superblocks.values()))["pool_uuid"])

    def _with_force(self, found: list[Found], forced: Collection[str]) -> tuple[Found, ...]:
        """Never by a name in /dev: after a boot the same words would wipe another namespace."""
        by_id = self.dev / "disk/by-id"
        names = {one.namespace.nguid: one for one in found}
        names |= {one.path: one for one in found if Path(one.path).parent == by_id}
        wanted = set()
        for name in forced:
            one = names.get(name) or names.get(name.replace("-", "").lower())
            if one is None:
                raise ConfigError(
                    f"--force {name} is no namespace of {self.host.spec.path}: name it by its NGUID, or its path under "
                    f"{by_id}: {', '.join(names)}"
                )
            wanted.add(one.namespace.nguid)
        return tuple(replace(one, is_forced=one.namespace.nguid in wanted) for one in found)

    def _format(self, plan: PoolPlan, sizes: Mapping[str, Any]) -> None:
        kept = [one.path for one in plan.found if not one.is_forced]
        is_forced = len(kept) < len(plan.found)
        if is_forced and kept:
            # Force is for all of a format or for none, and these were only seen blank: another host may have been
            # at them since.
            for again in kvstore.plan_format(kept, **sizes):
                if again["found"]:
                    raise ForeignDataError(
                        f"{again['path']} was blank and holds {again['found']} now. Nothing was written"
                    )
        made = kvstore.format(plan.paths, force=is_forced, **sizes)
        # Two hosts may both have seen it blank: nothing keeps them apart, and who wrote last is told by what is there.
        self.sleep(_SETTLE_S)
        for path, mine in zip(plan.paths, made, strict=True):
            there = self.superblock(path)["store_uuid"]
            if there != mine["store_uuid"]:
                raise OtherStoreError(
                    f"{path} holds store {there}, and {mine['store_uuid']} was written: another host formatted it at "
                    "the same time. Run nvmf-setup pool on one host, and on the others when that is done"
                )
        kvstore.open(plan.paths).close()

    def _found(self, namespace: Namespace, nqn: str) -> Found:
        device = self._device(namespace, nqn)
        path = self._stable_path(device)
        try:
            superblock = self.superblock(path)
        except (FormatError, CorruptionError):
            return Found(namespace, device, path, kvstore.plan_format(path, force=True)[0]["found"], None)
        holds = f"kvstore store {superblock['store_uuid']}"
        foreign = _foreign(path)
        if foreign:
            return Found(namespace, device, path, f"{foreign}, over {holds}", None)
        return Found(namespace, device, path, holds, superblock)

    def _device(self, namespace: Namespace, nqn: str) -> Device:
        nqns = {host.nqn for host in self.host.spec.hosts if host.name == self.host.name}
        mine = [one for one in devices(self.host.sysfs) if nqns & set(one.host_nqns)]
        uuid = namespace.uuid
        alike = [one for one in mine if namespace.nguid == one.nguid or (uuid and uuid == one.uuid)]
        what = f"namespace {namespace.nsid} of {nqn} (NGUID {namespace.nguid})"
        if not alike:
            raise ConfigError(f"{what} is not there: nvmf-setup host connect {self.host.spec.path}")
        if len(alike) > 1:
            raise ConfigError(
                f"{what} is there as {' and '.join(one.node for one in alike)}: two devices of one namespace are two "
                "caches of the kernel's. Turn native multipath on (nvme_core.multipath=Y), or give it one port"
            )
        one = alike[0]
        if (one.nguid, one.uuid if uuid else "", one.subsystem) != (namespace.nguid, uuid, nqn):
            raise OtherStoreError(
                f"{one.node} has NGUID {one.nguid or 'none'}, UUID {one.uuid or 'none'} in {one.subsystem}, and {what} "
                f"has UUID {uuid or 'any'}: the file and the target differ. nvmf-setup target status there"
            )
        return one

    def _stable_path(self, device: Device) -> str:
        node = self.dev / device.name
        folder = self.dev / "disk/by-id"
        links = sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []
        for prefix in _BY_ID:
            for name in links:
                if name.startswith(prefix) and (folder / name).resolve() == node.resolve():
                    return str(folder / name)
        return str(node)

    def _read_record(self) -> dict[str, str]:
        read = read_json(self.record_path, "which store each namespace held")
        return {str(nguid): str(store) for nguid, store in read.items()}


def line_for_lmcache(paths: list[str], **params: str) -> str:
    """For the command line of ``lmcache server`` and ``lmcache bench l2``."""
    adapter = {
        "type": "plugin",
        "module_path": "kvstore.lmcache",
        "class_name": "KVStoreL2Adapter",
        "adapter_params": {"path": paths[0] if len(paths) == 1 else paths, **params},
    }
    return f"--l2-adapter {shlex.quote(json.dumps(adapter))}"


def _foreign(path: str) -> str:
    """What somebody has put on a store since: opening the store would repair its first copy over that."""
    try:
        found = str(kvstore.plan_format(path, force=True)[0]["found"])
    except BusyError as error:
        if "mounted at" in str(error):
            raise
        return ""  # by kvstore, which looked at it; here it is only looked at, too
    return "" if not found or found.startswith("kvstore store ") else found


def _check_identity(one: Found) -> None:
    """The superblock holds the identity of the device that was formatted: a swap behind the target's names shows."""
    if one.superblock is None:
        if one.holds:
            raise ForeignDataError(f"{one.path} holds {one.holds}: if that may go: --force {one.namespace.nguid}")
        return
    formatted = str(one.superblock["nguid"]).replace("-", "").lower()
    if formatted and formatted != one.namespace.nguid:
        raise OtherStoreError(
            f"{one.path} holds the store of another namespace (NGUID {formatted}, not {one.namespace.nguid}): the "
            "target exports another drive under this name. Put the drives in the target's file right"
        )


def _check_remembered(one: Found, store: str | None, record: str) -> None:
    there = None if one.superblock is None else str(one.superblock["store_uuid"])
    if store is not None and there != store:
        raise OtherStoreError(
            f"{one.path} held store {store} and holds {f'store {there}' if there else 'none'} now: drives swapped, or "
            f"formatted by somebody. If that is meant, remove {one.namespace.nguid} from {record}"
        )


def _check_members(found: tuple[Found, ...]) -> None:
    superblocks = [one.superblock for one in found if one.superblock is not None]
    members = {str(uuid) for one in superblocks for uuid in one["members"]}
    stores = {str(one["store_uuid"]) for one in superblocks}
    pools = {str(one["pool_uuid"]) for one in superblocks}
    if len(pools) > 1 or members != stores:
        raise OtherStoreError(
            f"the namespaces hold stores of {len(pools)} pools with {len(members)} members, and the file has "
            f"{len(found)} namespaces: name those of one pool"
        )
