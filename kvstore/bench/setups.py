# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The machines that result files come from, and the places on them where blocks lay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvstore.bench.machine import UNKNOWN
from kvstore.bench.rows import Setup

__all__ = ["Setups", "lies_on", "lowest"]

#: Facts that change from one minute to the next, and do not make another machine.
_PASSING = {"load", "devices"}
#: Facts of a device that make it another place when they differ.
_SETTINGS = ("model", "firmware", "lba_format", "write_cache", "scheduler", "queue", "transport", "link")
_IN_MEMORY = {"tmpfs", "ramfs"}

Device = Mapping[str, Any]


def lowest(devices: Sequence[Device]) -> Iterator[Device]:
    """The devices that lie on no others."""
    for device in devices:
        if device.get("under"):
            yield from lowest(device["under"])
        else:
            yield device


def lies_on(devices: Sequence[Device]) -> str:
    """What blocks lie on, from the top to the bottom."""
    return " + ".join(dict.fromkeys(str(device.get("place", UNKNOWN)) for device in devices))


def _bottom(device: Device) -> str:
    if device.get("file_system") in _IN_MEMORY:
        return "memory"
    return str(device.get("disk") or device.get("place", UNKNOWN))


@dataclass
class _Place:
    setup: int
    name: str
    settings: Mapping[str, str]
    devices: dict[str, Device] = field(default_factory=dict)  # by what is on the way to the bottom, one of each


class Setups:
    """Both have numbers until all are known."""

    def __init__(self) -> None:
        self._facts: list[dict[str, str]] = []
        self._commands: list[list[str]] = []
        self._moments: list[list[str]] = []
        self._places: list[_Place] = []
        self._devices: list[tuple[int, Device]] = []

    def number(self, machine: Mapping[str, Any], command: str, file: str, time: str) -> int:
        """Of the machine with these facts, where this command measured; without facts, of the only one."""
        facts = {name: str(value) for name, value in machine.items() if name not in _PASSING}
        if not facts and len(self._facts) == 1:
            facts = self._facts[0]
        if facts not in self._facts:
            self._facts.append(facts)
            self._commands.append([])
            self._moments.append([])
        found = self._facts.index(facts)
        if command not in self._commands[found]:
            self._commands[found].append(command)
        moment = f"{file}: {time}, load {machine.get('load', UNKNOWN)}"
        if moment not in self._moments[found]:
            self._moments[found].append(moment)
        return found

    def place(self, setup: int, devices: Sequence[Device], name: str = "") -> str:
        """The number of the place at the bottom of these devices, whose name it gets where it has none of its own. With
        other settings it is another one.
        """
        bottom = list(lowest(devices))
        name = name or " + ".join(sorted(dict.fromkeys(map(_bottom, bottom))))
        settings = {f"{_bottom(d)} {key}": str(d[key]) for d in bottom for key in _SETTINGS if key in d}
        alike = (p for p in self._places if (p.setup, p.name, p.settings) == (setup, name, settings))
        place = next(alike, None)
        if place is None:
            place = _Place(setup, name, settings)
            self._places.append(place)
        for device in devices:
            place.devices.setdefault(str(device.get("place", UNKNOWN)), device)
            self._devices.append((setup, device))
        return str(self._places.index(place))

    def device(self, setup: int, path: str) -> Device | None:
        """Of this path, or of files in the same folder, as another job on that machine told it."""
        devices = [device for number, device in self._devices if number == setup]
        exact = (device for device in devices if device.get("path") == path)
        folder = Path(path).parent
        beside = (d for d in devices if "file_system" in d and "path" in d and Path(str(d["path"])).parent == folder)
        return next(exact, None) or next(beside, None)

    def place_name(self, number: str) -> str:
        """With the settings that tell it apart from others of the same name."""
        place = self._places[int(number)]
        alike = [other for other in self._places if (other.setup, other.name) == (place.setup, place.name)]
        differ = sorted({key for other in alike for key in {**other.settings, **place.settings}
                         if other.settings.get(key) != place.settings.get(key)})  # fmt: skip
        told = ", ".join(f"{key.removeprefix(place.name).strip()} {place.settings.get(key, UNKNOWN)}" for key in differ)
        return f"{place.name} ({told})" if told else place.name

    def all(self) -> tuple[Setup, ...]:
        """In the order of their numbers."""
        places: list[dict[str, Sequence[Device]]] = [{} for _ in self._facts]
        for number, place in enumerate(self._places):
            places[place.setup][self.place_name(str(number))] = list(place.devices.values())
        together = zip(self._facts, places, self._commands, self._moments, strict=True)
        return tuple(
            Setup(facts, devices, tuple(commands), tuple(moments)) for facts, devices, commands, moments in together
        )
