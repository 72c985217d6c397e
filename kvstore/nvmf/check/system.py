# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the host: modules, multipath, locked memory, IOMMU. Huge pages are not looked at: RDMA needs none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kvstore import doctor
from kvstore.nvmf.check.finding import Finding
from kvstore.nvmf.check.machine import Machine
from kvstore.nvmf.check.ports import Port

__all__ = ["check_iommu", "check_memlock", "check_modules", "check_multipath"]

_HOST = {"rdma": ("nvme_fabrics", "nvme_rdma"), "tcp": ("nvme_fabrics", "nvme_tcp")}
_TARGET = {"rdma": ("nvmet", "nvmet_rdma"), "tcp": ("nvmet", "nvmet_tcp")}
_PASSTHROUGH = "identity"
_P2PDMA_OVER_RDMA = (7, 1)


def check_modules(machine: Machine, transports: Sequence[str], is_target: bool) -> Iterator[Finding]:
    """Whether the kernel has what these transports need: loaded, or there to be."""
    release = machine.read("/proc/sys/kernel/osrelease") or ""
    release = release if re.fullmatch(r"\d+\.\d+[\w.+~-]*", release) else ""
    side = _TARGET if is_target else _HOST
    for name in dict.fromkeys(module for transport in transports for module in side[transport]):
        yield _check_module(machine, name, release)


def _check_module(machine: Machine, name: str, release: str) -> Finding:
    subject = f"module {name}"
    dashed = name.replace("_", "-")
    if machine.exists(f"/sys/module/{name}"):
        version = machine.read(f"/sys/module/{name}/version")
        taint = machine.read(f"/sys/module/{name}/taint") or ""
        told = "loaded" + (f", version {version}" if version else "") + (", from elsewhere" if "O" in taint else "")
        if release:
            return Finding(subject, "ok", f"{told}; Linux {release}", source="sysfs")
        return Finding(subject, "warn", f"{told}; the kernel's release is not available", "mount /proc", "sysfs")
    if not release:
        mend = f"mount /proc; modprobe {dashed}"
        return Finding(subject, "warn", "not loaded; the kernel's release is not available", mend, "procfs")
    folder = f"/lib/modules/{release}"
    pattern = re.compile(rf"(^|/){re.escape(name).replace('_', '[_-]')}\.ko", re.MULTILINE)
    lists = {kind: machine.read(f"{folder}/modules.{kind}") for kind in ("builtin", "dep")}
    if pattern.search(lists["builtin"] or ""):
        return Finding(subject, "ok", f"part of the kernel {release}", source="modules.builtin")
    if pattern.search(lists["dep"] or ""):
        mend = f"modprobe {dashed}; echo {dashed} > /etc/modules-load.d/{dashed}.conf"
        return Finding(subject, "warn", f"not loaded, but there for Linux {release}", mend, "modules.dep")
    if lists["dep"] is None:
        mend = f"modprobe {dashed}, on the host itself when this is a container"
        told = f"not loaded, and whether there is one: not available, no {folder}/modules.dep"
        return Finding(subject, "fail", told, mend, "modules.dep")
    mend = f"install the package with all modules of Linux {release} (linux-modules-extra-{release} on Ubuntu)"
    return Finding(subject, "fail", f"not there for Linux {release}", mend, "modules.dep")


def check_multipath(machine: Machine) -> Finding:
    """Native multipath: what it gives, and what it takes from GPU direct.

    What users report of cuFile's PCI P2PDMA mode: it does not get through multipath (heterodb/pg-strom#913,
    ROCm/hipFile#103), and over RDMA it fails with EIO (ai-dynamo/nixl#1063), since nvme-rdma has P2PDMA only from Linux
    7.1. Until then GPUs read such namespaces through nvidia-fs and the vendor's nvme-rdma, or not directly.
    """
    value = machine.read("/sys/module/nvme_core/parameters/multipath")
    is_direct = bool(re.search(r'"use_pci_p2pdma"\s*:\s*true', machine.read("/etc/cufile.json") or ""))
    if value == "Y":
        told = "on: paths to a namespace are one device, with failover"
        if is_direct:
            told = f"{told}; but /etc/cufile.json asks for PCI P2PDMA, which does not get through it"
            mend = (
                "decide: failover (use_pci_p2pdma false: blocks travel through host memory, as kvstore's do), or GPU "
                "direct (nvme_core.multipath=N at boot, one path a namespace; over RDMA from Linux 7.1)"
            )
            return Finding("multipath", "warn", told, mend, "sysfs")
        told = f"{told}; kvstore needs no GPU direct, which would want it off"
        return Finding("multipath", "ok", told, source="sysfs")
    on = "echo options nvme_core multipath=Y > /etc/modprobe.d/nvme.conf, and reboot"
    if value == "N":
        return _judge_single_paths(machine, on, is_direct)
    told = "not available: nvme_core is not loaded, or has no multipath" if value is None else f"unreadable: {value!r}"
    return Finding("multipath", "warn", told, f"modprobe nvme-fabrics; {on}", "sysfs")


def _judge_single_paths(machine: Machine, on: str, is_direct: bool) -> Finding:
    told = "off: a lost path is a lost device, and each path shows the namespace once more"
    if not is_direct:
        mend = f"{on}; or, for GPU direct by PCI P2PDMA, leave it off and connect one path a namespace"
        return Finding("multipath", "warn", told, mend, "sysfs")
    told = f"{told}; /etc/cufile.json asks for PCI P2PDMA, which wants that"
    release = re.match(r"(\d+)\.(\d+)", machine.read("/proc/sys/kernel/osrelease") or "")
    if release and (int(release[1]), int(release[2])) >= _P2PDMA_OVER_RDMA:
        return Finding("multipath", "ok", told, source="sysfs")
    mend = f"Linux 7.1; or use_pci_p2pdma false, nvidia-fs and the vendor's nvme-rdma; or no GPU direct: {on}"
    told = f"{told}, and over RDMA fails with EIO before Linux 7.1"
    return Finding("multipath", "warn", told, mend, "sysfs")


def check_memlock(machine: Machine) -> Finding:
    """Whether io_uring may register the store's staging memory; verbs programs such as rping lock memory, too."""
    found = doctor.system.check_memlock(doctor.Machine(root=machine.root))
    told = f"{found.text} (this process; an engine of another user may have less: run kvstore doctor as that)"
    return Finding("memlock", found.level, told, found.mend, "procfs")


def check_iommu(machine: Machine, ports: Sequence[Port]) -> Finding:
    """Whether each request's memory is mapped for the adapter anew."""
    source = "sysfs"
    groups = "/sys/kernel/iommu_groups"
    if not machine.is_listed(groups):
        mend = "mount sysfs; see dmesg | grep -i iommu"
        return Finding("IOMMU", "warn", f"not available: {groups} cannot be listed", mend, source)
    if not machine.names(groups):
        return Finding("IOMMU", "ok", "off: adapters reach memory directly", source=source)
    adapters = {f"/sys/class/infiniband/{port.device}/device" for port in ports}
    folders = [f"{one}/iommu_group" for one in sorted(adapters) if machine.exists(one)]  # Soft-RoCE has no adapter
    kinds = {
        machine.read(f"{one}/type") or "" for one in folders or [f"{groups}/{one}" for one in machine.names(groups)]
    }
    mend = "iommu=pt on the kernel's command line (GPU direct needs it, too), and reboot"
    if "" in kinds:
        return Finding("IOMMU", "warn", "on; its mode is not available", f"see {groups}/*/type; {mend}", source)
    if kinds == {_PASSTHROUGH}:
        return Finding("IOMMU", "ok", "on, in passthrough: adapters reach memory directly", source=source)
    cmdline = machine.read("/proc/cmdline") or ""
    asked = re.search(r"iommu(\.passthrough)?=\S+", cmdline)
    told = f"translates ({', '.join(sorted(kinds))}): memory is mapped and unmapped for each request, at processor time"
    if asked:
        told = f"{told}; booted with {asked[0]}"
    return Finding("IOMMU", "warn", told, mend, source)
