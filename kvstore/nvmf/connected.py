# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Which hosts are connected to a subsystem of this target, where the kernel tells: nvmet's debugfs, from 6.11 on."""

from __future__ import annotations

from pathlib import Path

__all__ = ["connected_hosts"]

_DEBUG = Path("/sys/kernel/debug/nvmet")


def connected_hosts(nqn: str, root: Path = _DEBUG) -> list[str] | None:
    """NQNs of hosts, sorted; None: not known, since this kernel does not tell, or debugfs is not mounted."""
    found = set()
    try:
        for controller in (root / nqn).iterdir():
            if controller.name.startswith("ctrl"):
                try:
                    found.add((controller / "hostnqn").read_text().strip())
                except FileNotFoundError:  # it went meanwhile
                    continue
    except OSError:
        return None
    return sorted(found)
