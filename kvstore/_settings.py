# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The settings that every engine's door has in common, and the checks of all of them.

Each door checks what its user wrote once, against a table of name to check; every error names its setting and says
what is allowed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kvstore.errors import ConfigError

Check = Callable[[Any, str], Any]

_VERIFY = ("always", "first_read", "off")
_MODES = ("owner", "shared")
_DEVICE_KINDS = ("auto", "uring", "threads")
_GPU_DIRECT = ("off", "auto", "on")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """How a door opens its pool.

    Parameters
    ----------
    path : block device or pool file, or a list of them (one pool).
    mode : ``owner``, one opener at a time; ``shared``: every worker, server and host opens the same pool.
    engine : shared mode, who says who may write what: ``sqlite:``, ``sqlite:/path`` or ``etcd://host:port,…``; empty is
        ``sqlite:``.
    lease_s : shared mode: stores are refused when the engine was silent for so long; 0 is the store's default.
    verify : ``always``, ``first_read`` or ``off``.
    device_kind : ``auto``, ``uring`` or ``threads``.
    window_bytes : bytes in flight per device; 0 is the store's default.
    gpu_direct : ``off``, ``auto`` or ``on``: cuFile, as of ``kvstore.open``.
    wait_s : how long to wait for another opener of the device to go away.
    close_timeout_s : how long closing waits for what is in flight.
    """

    path: tuple[str, ...]
    mode: str = "owner"
    engine: str = ""
    lease_s: float = 0.0
    verify: str = "always"
    device_kind: str = "auto"
    window_bytes: int = 0
    gpu_direct: str = "off"
    wait_s: float = 10.0
    close_timeout_s: float = 60.0

    def open_options(self) -> dict[str, Any]:
        """Return the keyword arguments of ``kvstore.open`` that differ from its defaults."""
        options: dict[str, Any] = {"wait_s": self.wait_s}
        if self.mode != "owner":
            options["mode"] = self.mode
        if self.engine:
            options["engine"] = self.engine
        if self.lease_s:
            options["lease_s"] = self.lease_s
        if self.verify != "always":
            options["verify"] = self.verify
        if self.device_kind != "auto":
            options["device_kind"] = self.device_kind
        if self.window_bytes:
            options["window_bytes"] = self.window_bytes
        if self.gpu_direct != "off":
            options["gpu_direct"] = self.gpu_direct
        return options


def check_settings(fields: Mapping[str, Any], where: str, checks: Mapping[str, Check]) -> dict[str, Any]:
    """Check the settings of a door.

    Parameters
    ----------
    fields : name to value, as they come from JSON, YAML or a URL.
    where : names the place the user wrote them, for messages: ``adapter_params`` or a key prefix.
    checks : all settings there are, each with its check.

    Returns
    -------
    the checked values, of those that were given.

    Raises
    ------
    ConfigError : an unknown, missing or bad setting; the message names it and what is allowed.
    """
    if not isinstance(fields, Mapping):
        raise ConfigError(f"{where} must be a mapping of settings, got {type(fields).__name__}")
    unknown = sorted(set(fields) - set(checks))
    if unknown:
        raise ConfigError(f"{where}.{unknown[0]}: no such setting; known are {', '.join(checks)}")
    if "path" not in fields:
        raise ConfigError(f"{where}.path is missing: name a block device or a pool file made by `kvstore format`")
    values = {name: checks[name](value, f"{where}.{name}") for name, value in fields.items()}
    mode = values.get("mode", "owner")
    for name in ("engine", "lease_s"):
        if mode != "shared" and values.get(name):
            raise ConfigError(f'{where}.{name} is for {where}.mode "shared"; the mode is {mode!r}')
    return values


def paths(value: Any, name: str) -> tuple[str, ...]:
    """One path, or a list of them."""
    given = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else ()
    if not given or not all(isinstance(path, str) and path for path in given):
        raise ConfigError(f"{name} must be a path or a non-empty list of paths, got {value!r}")
    return given


def identity(reserved: Collection[str]) -> Check:
    """What the user adds to the identity of a space; ``reserved`` are the names that the door sets itself."""

    def check(value: Any, name: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} must be a mapping of names to values, got {value!r}")
        for key, item in value.items():
            if not isinstance(key, str) or not key:
                raise ConfigError(f"{name}: names must be non-empty strings, got {key!r}")
            if key in reserved:
                raise ConfigError(f"{name}.{key} is set by kvstore itself; choose another name")
            if item is not None and not isinstance(item, (str, int, bool)):
                raise ConfigError(f"{name}.{key} must be a string, an integer, a boolean or null, got {item!r}")
        return dict(value)

    return check


def one_of(allowed: Sequence[str]) -> Check:
    """One of a few words."""

    def check(value: Any, name: str) -> str:
        if value not in allowed:
            raise ConfigError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")
        return str(value)

    return check


def text(value: Any, name: str) -> str:
    """Text, which may be empty."""
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be text, got {value!r}")
    return value


def boolean(value: Any, name: str) -> bool:
    """True or false."""
    if isinstance(value, str) and value.lower() in ("true", "false"):  # a URL has no booleans
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, got {value!r}")
    return value


def number(kind: type, lowest: float, unit: str) -> Check:
    """A whole number (``int``) or any finite one (``float``), of so many at least; a URL gives it as text."""

    def check(value: Any, name: str) -> Any:
        try:
            given = kind(value) if isinstance(value, str) else value
        except ValueError:
            given = None
        allowed = (int,) if kind is int else (int, float)
        if isinstance(given, bool) or not isinstance(given, allowed) or not lowest <= given < float("inf"):
            whole = "a whole number of" if kind is int else "a number of"
            raise ConfigError(f"{name} must be {whole} {unit}, at least {lowest:g}; got {value!r}")
        return kind(given)

    return check


POOL_CHECKS: dict[str, Check] = {
    "path": paths,
    "mode": one_of(_MODES),
    "engine": text,
    "lease_s": number(float, 0, "seconds"),
    "verify": one_of(_VERIFY),
    "device_kind": one_of(_DEVICE_KINDS),
    "window_bytes": number(int, 0, "bytes"),
    "gpu_direct": one_of(_GPU_DIRECT),
    "wait_s": number(float, 0, "seconds"),
    "close_timeout_s": number(float, 0, "seconds"),
}
