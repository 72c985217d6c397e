# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Waits until an address is one of this machine's: at boot a port is often configured before its link is up."""

from __future__ import annotations

import errno
import ipaddress
import socket
import time
from collections.abc import Callable

from kvstore.errors import WaitTimeout

__all__ = ["await_address", "is_ours"]

_STEP_S = 0.1


def is_ours(address: str) -> bool:
    """Whether it can be bound to now; not while an IPv6 address is still being checked for a double."""
    family = socket.AF_INET if ipaddress.ip_address(address).version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return False
            raise
    return True


def await_address(
    address: str,
    within_s: float,
    *,
    there: Callable[[str], bool] = is_ours,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait for it.

    Raises
    ------
    WaitTimeout : it is not there within that time.
    """
    deadline = now_s() + within_s
    while not there(address):
        if now_s() >= deadline:
            raise WaitTimeout(
                f"{address} is not this machine's after {within_s:g} s: see `ip address`, and bring its interface up"
            )
        sleep(_STEP_S)
