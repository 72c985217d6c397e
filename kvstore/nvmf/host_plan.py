# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The paths of a host: each subsystem it is let in to, through each port that the subsystem is behind.

``HostPath.line`` is what the kernel is given; everything that is shown is ``shown`` and ``command``, without keys.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from kvstore.errors import ConfigError
from kvstore.nvmf.spec import Connection, Host, Port, Spec

__all__ = ["HostPath", "host_paths"]


@dataclass(frozen=True)
class HostPath:
    """One connection of a host to a subsystem."""

    subsystem: str
    port: Port
    host: Host
    connection: Connection

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.port.transport} {self.port.address}:{self.port.service} {self.subsystem}"

    def options(self) -> dict[str, str]:
        """By the kernel's names (drivers/nvme/host/fabrics.c); without keys."""
        connection = self.connection
        return {
            "transport": self.port.transport,
            "traddr": self.port.address,
            "trsvcid": str(self.port.service),
            "nqn": self.subsystem,
            "hostnqn": self.host.nqn,
            "hostid": self.host.host_id,
            "nr_io_queues": str(connection.io_queues),
            "queue_size": str(connection.queue_size),
            "keep_alive_tmo": str(connection.keep_alive_s),
            "reconnect_delay": str(connection.reconnect_delay_s),
            "ctrl_loss_tmo": str(connection.controller_loss_s),
            "fast_io_fail_tmo": str(connection.fast_io_fail_s),
        }

    def key_files(self) -> dict[str, str]:
        """The options that are keys, and the files they are in."""
        files = {"dhchap_secret": self.host.key_file, "dhchap_ctrl_secret": self.host.controller_key_file}
        return {name: file for name, file in files.items() if file}

    def line(self, read_key: Callable[[str], str]) -> str:
        """For the kernel."""
        return _joined(self.options() | {name: read_key(file) for name, file in self.key_files().items()})

    def shown(self) -> str:
        """The line with KEY in the place of keys."""
        return _joined(self.options() | dict.fromkeys(self.key_files(), "KEY"))

    def command(self) -> str:
        """The same by nvme-cli, to read."""
        words = ["nvme", "connect"]
        for name, value in (self.options() | dict.fromkeys(self.key_files(), "KEY")).items():
            option = name if name == "fast_io_fail_tmo" else name.replace("_", "-")
            words.append(f"--{option}={value}")
        return shlex.join(words)


def host_paths(spec: Spec, name: str) -> list[HostPath]:
    """All of a host's, in the order of the file.

    Raises
    ------
    ConfigError : the file has no such host, or lets it in nowhere.
    """
    host = spec.host(name)
    ports = {port.id: port for port in spec.ports}
    paths = [
        HostPath(subsystem.nqn, ports[number], host, spec.connection)
        for subsystem in spec.subsystems
        if name in subsystem.hosts
        for number in subsystem.ports
    ]
    if not paths:
        raise ConfigError(f"{spec.path} lets {name} in nowhere: name it under hosts of a subsystem")
    return paths


def _joined(options: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in options.items())
