# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Why the kernel refused a step on a target, and the mend, from its errno (drivers/nvme/target/configfs.c)."""

from __future__ import annotations

import errno

from kvstore.nvmf.steps import Step

__all__ = ["mend"]

_MENDS = {
    errno.EADDRNOTAVAIL: "No interface has that address: see ip address.",
    errno.EADDRINUSE: "Something listens there already: see ss -lnt, or take another service number.",
    errno.EACCES: "The port is in use: nvmf-setup target remove first, or take another id.",
    errno.EBUSY: "It is in use: nvmf-setup target status.",
    errno.EEXIST: "Something else has made it meanwhile: nvmf-setup plan tells what is there now.",
    errno.ENODEV: "The address has no RDMA device, or not yet: see rdma link, and nvmf-setup check.",
    errno.ENOENT: "It has gone meanwhile: nvmf-setup plan tells what is there now.",
    errno.ENOTEMPTY: "Something is in it that nvmf-setup did not make: take that away first, find lists it.",
    errno.ESTALE: "See ls -l /dev/disk/by-id, and run it again.",
    errno.EPERM: "Run it as root.",
    errno.EINVAL: "The kernel does not take that value.",
}


def mend(step: Step, error: OSError) -> str:
    """What to do when the kernel refuses a step."""
    name = step.path.rpartition("/")[2]
    if error.errno == errno.ENOENT and name in ("dhchap_key", "dhchap_ctrl_key"):
        return "This kernel knows no keys of hosts (CONFIG_NVME_TARGET_AUTH): take one that does, or leave the key out."
    if error.errno == errno.ENOENT and name == "enable":
        return "The drive is not there: see ls -l /dev/disk/by-id."
    if error.errno == errno.ENOENT and step.action == "mkdir" and step.path.count("/") == 1:
        return "nvmet is not loaded any more: modprobe nvmet."
    if error.errno == errno.EINVAL and name in ("attr_serial", "attr_model"):
        return (
            "A host has seen the subsystem, and the kernel keeps its serial number and model from then on: nvmf-setup "
            "target remove, and apply."
        )
    return _MENDS.get(error.errno or 0, "See dmesg.")
