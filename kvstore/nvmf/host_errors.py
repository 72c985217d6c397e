# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Why a target was not connected to, and the mend: from the kernel's log where it can be read, else from its errno.

The kernel's texts are those of drivers/nvme/host/fabrics.c and auth.c; its errno alone says little: a host that is not
let in is EIO, a wrong key is EKEYREJECTED, ECONNREFUSED or EIO, depending on the kernel.
"""

from __future__ import annotations

import errno
from collections.abc import Collection
from dataclasses import dataclass

from kvstore.nvmf.fabrics import ConnectRefused
from kvstore.nvmf.host_plan import HostPath

__all__ = ["explain"]


@dataclass(frozen=True)
class _Reason:
    signs: tuple[str, ...]  # in the kernel's log, in small letters
    text: str


_REASONS = (
    _Reason(
        ("is not allowed, hostnqn", "connect invalid host"),
        "the target does not let this host in: name {host} under hosts of {subsystem} in the target's file, and "
        "nvmf-setup target apply there",
    ),
    _Reason(
        ("authentication required", "no key", "authentication setup failed: no"),
        "the target wants a key of this host: give {host} a key_file in the file, with the target's key",
    ),
    _Reason(
        ("authentication failed", "authentication setup failed", "dhchap", "authenticate: "),
        "the key is wrong: {host} and the target must have the same one (key_file, controller_key_file)",
    ),
    _Reason(
        ("subsysnqn", "invalid data parameter"),
        "the target has no subsystem {subsystem} at this address: nvmf-setup target status there",
    ),
    _Reason(
        ("invalid service id", f"failed to connect socket: -{errno.ECONNREFUSED}"),
        "nothing listens there: nvmf-setup target apply on the target",
    ),
    _Reason(
        ("already connected", "duplicate"), "it is connected already, by other means than this file: nvme list-subsys"
    ),
)

_BY_ERRNO = {
    errno.ECONNREFUSED: "nothing listens there: nvmf-setup target apply on the target; or a key is wrong",
    errno.ECONNRESET: "no connection comes about: does {address} answer a ping, and listen for {transport}? nvmf-setup "
    "target status there",
    errno.EHOSTUNREACH: "the address cannot be reached: ip route get {address}, ping {address}",
    errno.ENETUNREACH: "no route leads there: ip route get {address}",
    errno.EADDRNOTAVAIL: "no interface of this machine leads there: ip route get {address}",
    errno.ETIMEDOUT: "the target does not answer: ping {address}; a firewall may drop {transport} port {service}",
    errno.ENODEV: "no RDMA device has a way there: rdma link, ibv_devinfo",
    errno.EALREADY: "it is connected already, or being disconnected: nvme list-subsys, and again in a while",
    errno.EKEYREJECTED: "the key is wrong: {host} and the target must have the same one (key_file)",
    errno.ENOKEY: "the target wants a key of this host: give {host} a key_file in the file, with the target's key",
    errno.EACCES: "the target does not let this host in, or its key is wrong: hosts and key_file in the file",
    errno.EPERM: "run it as root",
    errno.EIO: "the target refuses it: is {host} under hosts of {subsystem} on the target, with the same key? "
    "dmesg here and there says more",
    errno.ENOENT: "the target has no subsystem {subsystem} at this address: nvmf-setup target status there",
}


def explain(refused: ConnectRefused, path: HostPath, known: Collection[str]) -> str:
    """One sentence: the reason, the mend, and what the kernel said.

    Parameters
    ----------
    known : options that this kernel has.
    """
    number = refused.errno or 0
    text, said = next(
        (
            (reason.text, line)
            for reason in _REASONS
            for line in refused.log
            if any(sign in line.lower() for sign in reason.signs)
        ),
        ("", refused.log[-1] if refused.log else ""),
    )
    if not text and number == errno.EINVAL:
        missing = [name for name in [*path.options(), *path.key_files()] if known and name not in known]
        text = (
            f"the kernel knows no option {missing[0]}: leave it out of the file, or take a later kernel"
            if missing
            else ("the kernel does not take the options: nvmf-setup plan shows them, dmesg the reason")
        )
    if not text:
        text = _BY_ERRNO.get(number, "see dmesg here and on the target")
    port = path.port
    said = said.rstrip(".")
    mend = text.format(
        host=path.host.nqn,
        subsystem=path.subsystem,
        address=port.address,
        service=port.service,
        transport=port.transport,
    )
    return f"{mend} ({refused.strerror}{f'; the kernel says: {said}' if said else ''})."
