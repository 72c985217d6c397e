# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The YAML file that says what targets export and how hosts connect, read into values that are checked.

Guarantees: what is returned refers to nothing that the file does not have, no two things bear the same name, and no key
is in it: keys are files of their own, which only root can read.
"""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kvstore.errors import ConfigError
from kvstore.nvmf.yaml_file import read_yaml

__all__ = ["Connection", "Host", "Namespace", "Port", "Spec", "Subsystem", "read_spec"]

TRANSPORTS = ("rdma", "tcp")
# NVMe base specification 2.0, 4.5; without the slash, since an NQN is a folder's name in configfs, and the comma, which
# ends an option of the kernel's line for connecting.
_NQN = re.compile(r"nqn\.\d{4}-\d{2}\.[a-z0-9.-]+(:[\x21-\x2b\x2d\x2e\x30-\x7e]+)?")
_NQN_BYTES_MAX = 223
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # it goes into a unit of systemd's, which reads $ and % its own way
_SERIAL_BYTES_MAX = 20
_MODEL_BYTES_MAX = 40
_NSID_MAX = 1024  # nvmet's
_ARRAYS_OWN = "array"


@dataclass(frozen=True)
class Namespace:
    """A drive that is exported. An array, which exports by itself, has no device, and may have no UUID (empty)."""

    nsid: int
    device: str  # under /dev/disk/by-id, or a file; its name may change where its identity does not
    uuid: str
    nguid: str  # 32 hexadecimal digits, by which hosts find it whatever /dev calls it


@dataclass(frozen=True)
class Port:
    """An address of a target."""

    id: int
    transport: str
    address: str
    service: int

    @property
    def family(self) -> str:
        """As nvmet calls it."""
        return f"ipv{ipaddress.ip_address(self.address).version}"


@dataclass(frozen=True)
class Host:
    """Who may connect."""

    name: str
    nqn: str
    host_id: str
    key_file: str | None = None  # DH-HMAC-CHAP: the host proves who it is
    controller_key_file: str | None = None  # the target does, too


@dataclass(frozen=True)
class Subsystem:
    """What hosts connect to: namespaces behind ports, for some hosts."""

    nqn: str
    serial: str
    namespaces: tuple[Namespace, ...]
    hosts: tuple[str, ...]  # names
    ports: tuple[int, ...]
    model: str = "kvstore"


@dataclass(frozen=True)
class Connection:
    """How hosts connect. Seconds and counts; nothing is left to defaults, which differ from kernel to kernel.

    ``fast_io_fail_s`` after a path is lost its requests fail, and the store answers with errors and misses;
    ``controller_loss_s`` after it the kernel gives up, and the device is gone.
    """

    io_queues: int = 8
    queue_size: int = 128
    keep_alive_s: int = 5
    reconnect_delay_s: int = 2
    fast_io_fail_s: int = 5
    controller_loss_s: int = 600


@dataclass(frozen=True)
class Spec:
    """The whole file."""

    path: str
    subsystems: tuple[Subsystem, ...]
    ports: tuple[Port, ...]
    hosts: tuple[Host, ...]
    connection: Connection = Connection()

    def host(self, name: str) -> Host:
        """By its name. ConfigError: the file has no such host."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise ConfigError(f"{self.path} has no host {name}: there are {', '.join(one.name for one in self.hosts)}")

    def require_devices(self) -> None:
        """For a target. ConfigError: a namespace has none."""
        for namespace in (one for subsystem in self.subsystems for one in subsystem.namespaces):
            if not namespace.device:
                raise ConfigError(
                    f"{self.path}: namespace {namespace.nguid} has no device: it is an array's, which exports it by "
                    "itself; on a target of Linux name the drive"
                )


def read_spec(path: str | Path) -> Spec:
    """Read and check the file.

    Raises
    ------
    ConfigError : it cannot be read, is no YAML, or says something that cannot be; with the place in it and the mend.
    """
    read = read_yaml(Path(path))
    top = _Place(str(path), "", read)
    top.only("subsystems", "ports", "hosts", "connection")
    spec = Spec(
        path=str(path),
        subsystems=tuple(map(_subsystem, top.items("subsystems"))),
        ports=tuple(map(_port, top.items("ports"))),
        hosts=tuple(map(_host, top.items("hosts"))),
        connection=_connection(top.child("connection", {})),
    )
    _check_names(spec, top)
    _check_references(spec, top)
    return spec


class _Place:
    """A value of the file, and where it is: ``pool.yaml: subsystems[0].nqn``."""

    def __init__(self, file: str, where: str, value: Any) -> None:
        self.file, self.where, self.value = file, where, value

    def error(self, text: str) -> ConfigError:
        return ConfigError(f"{self.file}: {self.where or 'the file'}: {text}")

    def only(self, *names: str) -> None:
        if not isinstance(self.value, Mapping):
            raise self.error(f"is {self.value!r}, and should have {', '.join(names)}")
        for name in self.value:
            if name not in names:
                raise self.error(f"has no {name}: there are {', '.join(names)}")

    def child(self, name: str, default: Any = None) -> _Place:
        where = f"{self.where}.{name}" if self.where else name
        return _Place(self.file, where, self.value.get(name, default))

    def items(self, name: str) -> Iterator[_Place]:
        found = self.child(name)
        if not isinstance(found.value, Sequence) or isinstance(found.value, str) or not found.value:
            raise found.error("is missing, or no list of one or more")
        for index, value in enumerate(found.value):
            yield _Place(self.file, f"{found.where}[{index}]", value)

    def text(self, name: str, default: str | None = None) -> str:
        found = self.child(name, default)
        if not isinstance(found.value, str) or not found.value or "\n" in found.value:
            quotes = ": put it in quotes" if isinstance(found.value, int | float) else ""
            raise found.error(
                "is missing" if found.value is None else f"is {found.value!r}, and should be a text{quotes}"
            )
        return found.value

    def number(self, name: str, low: int, high: int, default: int | None = None) -> int:
        found = self.child(name, default)
        if isinstance(found.value, bool) or not isinstance(found.value, int) or not low <= found.value <= high:
            raise found.error(f"is {found.value!r}: allowed are {low} to {high}")
        return found.value

    def identifier(self, name: str) -> str:
        """A UUID, or an NGUID in that form or in plain digits; in small letters."""
        text = self.text(name)
        try:
            parsed = uuid.UUID(text)
        except ValueError:
            raise self.child(name).error(f"is {text!r}: write 32 hexadecimal digits, as `uuidgen` prints") from None
        if not parsed.int:  # hosts take it for none, and show nothing
            raise self.child(name).error("is all zeros, which means none: write one that `uuidgen` prints")
        return str(parsed)

    def listed(self, name: str, kind: type) -> tuple[Any, ...]:
        """Names of other parts of the file, none of them twice: the kernel would refuse the second link."""
        found = list(self.items(name))
        values = [one.value for one in found]
        for index, one in enumerate(found):
            if type(one.value) is not kind:
                raise one.error(f"is {one.value!r}, and should be {'a number' if kind is int else 'a name'}")
            if one.value in values[:index]:
                raise one.error(f"{one.value} is there twice: name it once")
        return tuple(values)

    def qualified_name(self, name: str) -> str:
        text = self.text(name)
        if not _NQN.fullmatch(text) or len(text) > _NQN_BYTES_MAX:
            raise self.child(name).error(
                f"is {text!r}: write nqn.2026-11.com.example:name, up to {_NQN_BYTES_MAX} bytes"
            )
        return text


def _subsystem(place: _Place) -> Subsystem:
    place.only("nqn", "serial", "model", "namespaces", "hosts", "ports")
    nqn = place.qualified_name("nqn")
    namespaces = tuple(map(_namespace, place.items("namespaces")))
    is_exported = any(namespace.device for namespace in namespaces)
    serial, model = place.text("serial", None if is_exported else _ARRAYS_OWN), place.text("model", "kvstore")
    for name, text, limit in (("serial", serial, _SERIAL_BYTES_MAX), ("model", model, _MODEL_BYTES_MAX)):
        if len(text) > limit or not text.isascii():
            raise place.child(name).error(f"is {text!r}: allowed are {limit} ASCII characters")
    hosts, ports = place.listed("hosts", str), place.listed("ports", int)
    return Subsystem(nqn, serial, namespaces, hosts, ports, model)


def _namespace(place: _Place) -> Namespace:
    place.only("nsid", "device", "uuid", "nguid")
    device = place.text("device") if place.child("device").value is not None else ""
    if device and not device.startswith("/"):
        raise place.child("device").error(f"is {device!r}: write an absolute path, such as /dev/disk/by-id/nvme-…")
    nguid = place.identifier("nguid").replace("-", "")
    # Of an array's namespace; of one that this program exports it is set, and never left to the kernel's chance.
    has_uuid = bool(device) or place.child("uuid").value is not None
    return Namespace(place.number("nsid", 1, _NSID_MAX), device, place.identifier("uuid") if has_uuid else "", nguid)


def _port(place: _Place) -> Port:
    place.only("id", "transport", "address", "service")
    transport, address = place.text("transport"), place.text("address")
    if transport not in TRANSPORTS:
        raise place.child("transport").error(f"is {transport!r}: allowed are {', '.join(TRANSPORTS)}")
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise place.child("address").error(f"is {address!r}: write an IP address, not a name") from None
    if "%" in address:  # all of it would go into the kernel's line of options, commas too
        raise place.child("address").error(f"is {address!r}: leave out the interface")
    if parsed.is_unspecified:
        raise place.child("address").error("is every address of the machine: name the one of the storage network")
    return Port(place.number("id", 1, 65535), transport, str(parsed), place.number("service", 1, 65535, 4420))


def _host(place: _Place) -> Host:
    place.only("name", "nqn", "host_id", "key_file", "controller_key_file")
    files = []
    for name in ("key_file", "controller_key_file"):
        file = place.text(name) if place.child(name).value is not None else None
        if file is not None and not file.startswith("/"):
            raise place.child(name).error(f"is {file!r}: write the absolute path of a file with a key, not the key")
        files.append(file)
    if files[1] and not files[0]:
        raise place.error("controller_key_file without key_file: the host has to prove who it is first")
    name = place.text("name")
    if not _NAME.fullmatch(name):
        raise place.child("name").error(f"is {name!r}: write letters, digits, '.', '_' and '-'")
    return Host(name, place.qualified_name("nqn"), place.identifier("host_id"), *files)


def _connection(place: _Place) -> Connection:
    place.only(*(field.name for field in fields(Connection)))
    limits = {"io_queues": (1, 1024), "queue_size": (16, 1024)}
    defaults = asdict(Connection())
    read = {
        name: place.number(name, *limits.get(name, (1, 86_400)), default=default) for name, default in defaults.items()
    }
    if read["fast_io_fail_s"] > read["controller_loss_s"]:
        raise place.error(
            "fast_io_fail_s is longer than controller_loss_s: requests would wait for a device that is gone"
        )
    return Connection(**read)


def _check_names(spec: Spec, top: _Place) -> None:
    namespaces = [namespace for subsystem in spec.subsystems for namespace in subsystem.namespaces]
    unique: list[tuple[str, list[Any]]] = [
        ("subsystem", [subsystem.nqn for subsystem in spec.subsystems]),
        ("serial", [one.serial for one in spec.subsystems if one.serial != _ARRAYS_OWN]),
        ("port id", [port.id for port in spec.ports]),
        ("port address", [(port.transport, port.address, port.service) for port in spec.ports]),
        ("host", [host.name for host in spec.hosts]),
        ("host NQN", [host.nqn for host in spec.hosts]),
        ("device", [namespace.device for namespace in namespaces if namespace.device]),
        ("namespace UUID", [namespace.uuid for namespace in namespaces if namespace.uuid]),
        ("namespace NGUID", [namespace.nguid for namespace in namespaces]),
        *((f"nsid of {one.nqn}", [namespace.nsid for namespace in one.namespaces]) for one in spec.subsystems),
    ]
    for what, names in unique:
        for name in names:
            if names.count(name) > 1:
                raise top.error(f"{what} {name} is there twice")


def _check_references(spec: Spec, top: _Place) -> None:
    for subsystem in spec.subsystems:
        for what, wanted, known in (
            ("host", subsystem.hosts, [host.name for host in spec.hosts]),
            ("port", subsystem.ports, [port.id for port in spec.ports]),
        ):
            for name in wanted:
                if name not in known:
                    raise top.error(f"subsystem {subsystem.nqn} names {what} {name!r}: there are {known}")
