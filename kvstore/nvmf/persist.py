# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What makes a target or a host come up at boot, as files: the YAML file's copy, a systemd unit, and the same for the
other tools: nvmetcli's JSON on a target, libnvme's /etc/nvme/config.json on a host.

Guarantees: no key is in any of them, they name the files that keys are in; a file that somebody else wrote, or changed
since, is not overwritten or removed without being named; what was written for another file and must not be there for
this one is removed; a second run changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kvstore
from kvstore.errors import ConfigError, ForeignDataError
from kvstore.nvmf.host_plan import host_paths
from kvstore.nvmf.record import read_json, remove_file, state_folder, write_json, write_text
from kvstore.nvmf.spec import Spec
from kvstore.nvmf.trusted import replaceable_at

__all__ = [
    "Persistence",
    "Wanted",
    "absent_files",
    "default_program",
    "host_files",
    "nvmetcli_document",
    "target_files",
]

SPEC = "/etc/kvstore/nvmf.yaml"
NVMETCLI = "/etc/kvstore/nvmetcli.json"
LIBNVME = "/etc/nvme/config.json"
TARGET_UNIT = "kvstore-nvmf-target.service"
HOST_UNIT = "kvstore-nvmf-host.service"
_UNITS = "/etc/systemd/system"
_OF_TOOLS = {TARGET_UNIT: NVMETCLI, HOST_UNIT: LIBNVME}

Wanted = Mapping[str, str | None]  # path to text; None: must not be there

# Restarted on failure: at boot the other side, the network or a drive may come later than this machine. Ordered before
# what uses the pool by those units' own After=.
_UNIT = """# Written by nvmf-setup persist from {spec}; it is overwritten by the next run.
[Unit]
Description={description}
Wants=network-online.target{wants}
After=network-online.target{after}

[Service]
Type=oneshot
RemainAfterExit=yes{environment}
ExecStart={program} {start}
ExecStop={program} {stop}
TimeoutStartSec=300
Restart=on-failure
RestartSec=10

[Install]
WantedBy=multi-user.target
"""


def default_program() -> str:
    """How this program is called from anywhere.

    Raises
    ------
    ConfigError : others can replace it: with a unit that runs it they would be root at the next boot.
    """
    script = Path(sys.argv[0])
    for part in (Path(sys.executable), Path(kvstore.__file__).parent, script):
        exposed = replaceable_at(part) if part.exists() else ""
        if exposed:
            raise ConfigError(
                f"the unit would run {part} as root, and others own or may write {exposed}: install kvstore where only "
                "root can write, or name a program yourself: --program COMMAND"
            )
    if script.name == "nvmf-setup" and script.exists():
        return shlex.join([sys.executable, str(script.resolve())])
    return shlex.join([sys.executable, "-m", "kvstore.nvmf"])


def target_files(spec: Spec, program: str) -> dict[str, str | None]:
    """For a target.

    With keys nvmetcli's must not be there: it has no keys of hosts, and who restored it would let them in without.

    Raises
    ------
    ConfigError : a namespace has no drive: it is an array's.
    """
    spec.require_devices()
    unit = _UNIT.format(
        spec=spec.path,
        description="kvstore: drives exported over NVMe-oF",
        environment=_environment(),
        wants=" sys-kernel-config.mount",
        after=" sys-kernel-config.mount",
        program=program,
        start=f"target apply {SPEC}",
        stop="target remove",
    )
    files: dict[str, str | None] = {SPEC: _text_of(spec), f"{_UNITS}/{TARGET_UNIT}": unit, NVMETCLI: None}
    if not any(host.key_file for host in spec.hosts):
        files[NVMETCLI] = json.dumps(nvmetcli_document(spec), indent=2, sort_keys=True) + "\n"
    return files


def host_files(spec: Spec, name: str, program: str) -> dict[str, str | None]:
    """For a host; /etc/nvme/config.json only without keys, which would have to be in it."""
    paths = host_paths(spec, name)
    host = paths[0].host
    unit = _UNIT.format(
        spec=spec.path,
        description="kvstore: namespaces connected over NVMe-oF",
        environment=_environment(),
        wants="",
        after="",
        program=program,
        start=f"host connect {SPEC} --host {shlex.quote(name)}",
        stop=f"host disconnect {SPEC} --host {shlex.quote(name)}",
    )
    files: dict[str, str | None] = {SPEC: _text_of(spec), f"{_UNITS}/{HOST_UNIT}": unit, LIBNVME: None}
    if not host.key_file:
        subsystems: dict[str, list[dict[str, Any]]] = {}
        for path in paths:
            options = path.options()
            port: dict[str, Any] = {word: options.pop(word) for word in ("transport", "traddr", "trsvcid")}
            for word in ("nqn", "hostnqn", "hostid"):
                del options[word]
            subsystems.setdefault(path.subsystem, []).append(port | {word: int(text) for word, text in options.items()})
        document = [
            {
                "hostnqn": host.nqn,
                "hostid": host.host_id,
                "subsystems": [{"nqn": nqn, "ports": ports} for nqn, ports in subsystems.items()],
            }
        ]
        files[LIBNVME] = json.dumps(document, indent=2) + "\n"
    return files


def absent_files(unit: str, root: Path) -> dict[str, str | None]:
    """Nothing of what is written for a unit; the file's copy stays where the other unit is there, too, and reads it.

    Raises
    ------
    ConfigError : it is enabled: systemd would look for it at each boot.
    """
    units = root / _UNITS.lstrip("/")
    if (units / "multi-user.target.wants" / unit).is_symlink():
        of = "" if root == Path("/") else f"--root={shlex.quote(str(root))} "
        raise ConfigError(f"{unit} is enabled: systemctl {of}disable {unit} first")
    paths = [f"{_UNITS}/{unit}", _OF_TOOLS[unit]]
    if not any((units / other).exists() for other in _OF_TOOLS if other != unit):
        paths.append(SPEC)
    return dict.fromkeys(paths)


def nvmetcli_document(spec: Spec) -> dict[str, Any]:
    """As ``nvmetcli restore`` reads it (nvmet/nvme.py there)."""
    return {
        "hosts": [{"nqn": host.nqn} for host in spec.hosts],
        "ports": [
            {
                "addr": {
                    "adrfam": port.family,
                    "traddr": port.address,
                    "treq": "not specified",
                    "trsvcid": str(port.service),
                    "trtype": port.transport,
                },
                "ana_groups": [{"ana": {"state": "optimized"}, "grpid": 1}],
                "portid": port.id,
                "referrals": [],
                "subsystems": [one.nqn for one in spec.subsystems if port.id in one.ports],
            }
            for port in spec.ports
        ],
        "subsystems": [
            {
                "allowed_hosts": [spec.host(name).nqn for name in one.hosts],
                "attr": {"allow_any_host": "0", "model": one.model, "serial": one.serial},
                "namespaces": [
                    {
                        "ana_grpid": 1,
                        "device": {
                            "nguid": namespace.nguid,
                            "path": namespace.device,
                            "uuid": namespace.uuid,
                        },
                        "enable": 1,
                        "nsid": namespace.nsid,
                    }
                    for namespace in one.namespaces
                ],
                "nqn": one.nqn,
            }
            for one in spec.subsystems
        ],
    }


@dataclass
class Persistence:
    """Files below a root, ``/`` or that of an image or a test."""

    files: Wanted
    root: Path = Path("/")
    record_path: Path = field(default_factory=lambda: state_folder() / "nvmf-persist.json")

    def plan(self, forced: Collection[str] = ()) -> list[str]:
        """The paths that are to be written or removed. Writes nothing.

        Raises
        ------
        ForeignDataError : one is there, and this program did not write what is in it.
        ConfigError : one cannot be read.
        """
        ours = read_json(self._below(str(self.record_path)), "which files nvmf-setup wrote")
        changed = []
        for path, text in self.files.items():
            try:
                there = self._below(path).read_text()
            except FileNotFoundError:
                there = None
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{self._below(path)} cannot be read: {error}") from error
            if there == text or (text is None and path not in ours and path not in forced):
                continue
            if there is not None and _digest(there) not in ours.get(path, []) and path not in forced:
                raise ForeignDataError(
                    f"{self._below(path)} is there and not as nvmf-setup wrote it: move what you need of it elsewhere, "
                    f"or, to {'remove' if text is None else 'overwrite'} it: --force {path}"
                )
            changed.append(path)
        return changed

    def write(self, forced: Collection[str] = ()) -> list[str]:
        """Write and remove them; the paths that were. OSError: one cannot be."""
        changed = self.plan(forced)
        if changed:
            record = self._below(str(self.record_path))
            ours = read_json(record, "which files nvmf-setup wrote")
            texts = {path: self.files[path] for path in changed}
            fresh = {path: _digest(text) for path, text in texts.items() if text is not None}
            # Before and after: a run that ends in between knows both as its own.
            write_json(record, ours | {path: [*ours.get(path, []), digest] for path, digest in fresh.items()})
            for path, text in texts.items():
                if text is None:
                    remove_file(self._below(path))
                else:
                    write_text(self._below(path), text)
            kept = {path: digests for path, digests in ours.items() if path not in texts}
            write_json(record, kept | {path: [digest] for path, digest in fresh.items()})
        return changed

    def _below(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def _environment() -> str:
    """The records are where this run has them: with others nothing would be known to be ours."""
    folder = os.environ.get("KVSTORE_STATE_DIR")
    if not folder:
        return ""
    text = str(Path(folder).absolute())
    for there, escaped in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%")):  # systemd.syntax(7), systemd.unit(5)
        text = text.replace(there, escaped)
    return f'\nEnvironment="KVSTORE_STATE_DIR={text}"'


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _text_of(spec: Spec) -> str:
    return Path(spec.path).read_text()
