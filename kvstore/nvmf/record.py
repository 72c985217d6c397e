# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Record: what nvmf-setup made on this target, so that it changes and removes nothing else.

Written before the first step: after a crash in the midst of them what was made is known to be ours. A name in it that
does not exist costs nothing.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kvstore.errors import ConfigError

__all__ = ["Record", "read_record", "write_record"]


@dataclass
class Record:
    """Names below ``subsystems``, ``ports`` and ``hosts``."""

    subsystems: set[str] = field(default_factory=set)
    ports: set[str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)

    def plus(self, other: Record) -> Record:
        """What is in either."""
        return Record(self.subsystems | other.subsystems, self.ports | other.ports, self.hosts | other.hosts)


def read_record(path: Path) -> Record:
    """Empty where there is no file.

    Raises
    ------
    ConfigError : it cannot be read, and nobody knows what is ours.
    """
    try:
        read = json.loads(path.read_text())
        return Record(*(set(map(str, read[name])) for name in ("subsystems", "ports", "hosts")))
    except FileNotFoundError:
        return Record()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: {error}. It lists what nvmf-setup made here; restore it, or remove it and what it made by hand"
        ) from error


def write_record(path: Path, record: Record) -> None:
    """In one step, on the disk when it returns. OSError: it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    with open(fresh, "w") as file:
        json.dump({name: sorted(names) for name, names in asdict(record).items()}, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
