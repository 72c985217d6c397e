# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Job files, in fio's form: sections of ``option=value``, and ``[global]`` ones that count for those after them.

Not configparser's form: here sections may bear the same name, ``[global]`` may come again, and an option without a
value is 1. ``#`` and ``;`` begin a comment at the beginning of a line or after a blank; ``${NAME}`` is from the
environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from kvstore.errors import ConfigError

__all__ = ["Section", "parse_job_text", "read_job_file"]

#: A name, and what was written in it and before it in [global].
Section = tuple[str, dict[str, str]]


def read_job_file(path: str) -> list[Section]:
    """The sections of a file but [global].

    Raises
    ------
    ConfigError : it cannot be read, or a line is none of a job file's; the message names the line.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return parse_job_text(text, path)


def parse_job_text(text: str, path: str = "job") -> list[Section]:
    """As :func:`read_job_file`, of the file's text."""
    everywhere: dict[str, str] = {}
    sections: list[Section] = []
    options: dict[str, str] | None = None
    for number, written in enumerate(text.splitlines(), start=1):
        line = re.sub(r"(^|\s)[#;].*", "", written).strip()
        if not line:
            continue
        header = re.fullmatch(r"\[(.+)\]", line)
        if header:
            options = everywhere if header[1] == "global" else dict(everywhere)
            if options is not everywhere:
                sections.append((header[1], options))
            continue
        if options is None:
            raise ConfigError(f"{path}:{number}: {line!r} is before the first [section]")
        key, equals, value = line.partition("=")
        options[_option_name(key, f"{path}:{number}")] = _expand(value.strip(), path, number) if equals else "1"
    if not sections:
        raise ConfigError(f"{path}: there is no [section] but [global] in it, so nothing to run")
    return sections


def _option_name(key: str, where: str) -> str:
    name = key.strip()
    if not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
        raise ConfigError(f"{where}: {name!r} is no option")
    return name


def _expand(value: str, path: str, number: int) -> str:
    def from_environment(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise ConfigError(f"{path}:{number}: the environment has no {match[1]}")
        return found

    return re.sub(r"\$\{(\w+)\}", from_environment, value)


def sections_of_command_line(given: Sequence[tuple[str, str]]) -> list[Section]:
    """Options in the order they were given, as fio takes them: those before the first ``name`` count for all."""
    everywhere: dict[str, str] = {}
    sections: list[Section] = []
    for key, value in given:
        if key == "name":
            sections.append((value, dict(everywhere)))
        elif sections:
            sections[-1][1][key] = value
        else:
            everywhere[key] = value
    return sections
