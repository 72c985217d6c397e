# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The settings of both LMCache doors: one dataclass, checked once, every error naming its field."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvstore.errors import ConfigError

# Set by the doors themselves, from LMCache's own keys.
RESERVED_IDENTITY = frozenset(
    {"engine", "door", "model", "world_size", "worker_id", "kv_dtype", "chunk_tokens", "layouts"}
)
_VERIFY = ("always", "first_read", "off")
_MODES = ("owner", "shared")
_DEVICE_KINDS = ("auto", "uring", "threads")


@dataclasses.dataclass(frozen=True)
class DoorConfig:
    """Settings of one LMCache door.

    Parameters
    ----------
    path : block device or pool file, or a list of them (one pool). ``{worker_id}``, ``{local_worker_id}`` and
        ``{world_size}`` are replaced in the in-process mode, where in owner mode every rank needs a device of its own.
    mode : ``owner``, one opener at a time; ``shared``: every worker, server and host opens the same pool.
    engine : shared mode, who says who may write what: ``sqlite:``, ``sqlite:/path`` or ``etcd://host:port,…``; empty is
        ``sqlite:``.
    lease_s : shared mode: stores are refused when the engine was silent for so long; 0 is the store's default.
    identity : what tells these blocks apart beyond LMCache's own key: model revision, KV dtype, layout. A change of
        any value makes every stored block a miss, which is the point.
    verify : ``always``, ``first_read`` or ``off``.
    device_kind : ``auto``, ``uring`` or ``threads``.
    window_bytes : bytes in flight per device; 0 is the store's default.
    wait_s : how long to wait for another opener of the device to go away.
    durable : a store task completes only when its descriptors are on the device too.
    register_l1 : register LMCache's arena with the kernel, where it exposes a stable one.
    load_timeout_s : a load that takes longer is answered as a miss; 0 waits for ever.
    close_timeout_s : how long ``close`` waits for what is in flight.
    max_capacity_bytes : what LMCache's watermark is measured against; 0 is the pool's payload capacity.
    chain_entries : how many chain positions learnt from lookups are remembered.
    """

    path: tuple[str, ...]
    mode: str = "owner"
    engine: str = ""
    lease_s: float = 0.0
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    verify: str = "always"
    device_kind: str = "auto"
    window_bytes: int = 0
    wait_s: float = 10.0
    durable: bool = False
    register_l1: bool = True
    load_timeout_s: float = 30.0
    close_timeout_s: float = 60.0
    max_capacity_bytes: int = 0
    chain_entries: int = 65_536

    @classmethod
    def from_mapping(cls, fields: Mapping[str, Any], where: str) -> DoorConfig:
        """Check ``fields`` and build the settings.

        Parameters
        ----------
        fields : name to value, as they come from JSON, YAML or a URL.
        where : names the place the user wrote them, for messages: ``adapter_params`` or a key prefix.

        Raises
        ------
        ConfigError : an unknown, missing or bad field; the message names it and what is allowed.
        """
        if not isinstance(fields, Mapping):
            raise ConfigError(f"{where} must be a mapping of settings, got {type(fields).__name__}")
        unknown = sorted(set(fields) - set(_CHECKS))
        if unknown:
            raise ConfigError(f"{where}.{unknown[0]}: no such setting; known are {', '.join(_CHECKS)}")
        if "path" not in fields:
            raise ConfigError(f"{where}.path is missing: name a block device or a pool file made by `kvstore format`")
        made = cls(**{name: _CHECKS[name](value, f"{where}.{name}") for name, value in fields.items()})
        for name in ("engine", "lease_s"):
            if made.mode != "shared" and getattr(made, name):
                raise ConfigError(f'{where}.{name} is for {where}.mode "shared"; the mode is {made.mode!r}')
        return made

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
        return options


def _paths(value: Any, name: str) -> tuple[str, ...]:
    paths = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else ()
    if not paths or not all(isinstance(path, str) and path for path in paths):
        raise ConfigError(f"{name} must be a path or a non-empty list of paths, got {value!r}")
    return paths


def _identity(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a mapping of names to values, got {value!r}")
    for key, item in value.items():
        if not isinstance(key, str) or not key:
            raise ConfigError(f"{name}: names must be non-empty strings, got {key!r}")
        if key in RESERVED_IDENTITY:
            raise ConfigError(f"{name}.{key} is set by kvstore itself; choose another name")
        if item is not None and not isinstance(item, (str, int, bool)):
            raise ConfigError(f"{name}.{key} must be a string, an integer, a boolean or null, got {item!r}")
    return dict(value)


def _one_of(allowed: Sequence[str]) -> Callable[[Any, str], str]:
    def check(value: Any, name: str) -> str:
        if value not in allowed:
            raise ConfigError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")
        return str(value)

    return check


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be text, got {value!r}")
    return value


def _boolean(value: Any, name: str) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):  # a URL has no booleans
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, got {value!r}")
    return value


def _number(kind: type, lowest: float, unit: str) -> Callable[[Any, str], Any]:
    def check(value: Any, name: str) -> Any:
        try:
            number = kind(value) if isinstance(value, str) else value
        except ValueError:
            number = None
        allowed = (int,) if kind is int else (int, float)
        if isinstance(number, bool) or not isinstance(number, allowed) or not lowest <= number < float("inf"):
            whole = "a whole number of" if kind is int else "a number of"
            raise ConfigError(f"{name} must be {whole} {unit}, at least {lowest:g}; got {value!r}")
        return kind(number)

    return check


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "path": _paths,
    "mode": _one_of(_MODES),
    "engine": _text,
    "lease_s": _number(float, 0, "seconds"),
    "identity": _identity,
    "verify": _one_of(_VERIFY),
    "device_kind": _one_of(_DEVICE_KINDS),
    "window_bytes": _number(int, 0, "bytes"),
    "wait_s": _number(float, 0, "seconds"),
    "durable": _boolean,
    "register_l1": _boolean,
    "load_timeout_s": _number(float, 0, "seconds"),
    "close_timeout_s": _number(float, 0, "seconds"),
    "max_capacity_bytes": _number(int, 0, "bytes"),
    "chain_entries": _number(int, 1, "entries"),
}
