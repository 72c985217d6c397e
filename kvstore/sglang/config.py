# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The settings of SGLang's door: one dataclass, checked once, every error naming its field."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kvstore import _settings
from kvstore.errors import ConfigError
from kvstore.sglang.compat import OF_SGLANG

WHERE = "hicache-storage-backend-extra-config"

#: Set by the door itself, from what SGLang says of the model, the rank and the host pool.
RESERVED_IDENTITY = frozenset(
    {"engine", "door", "pool", "form", "dtype", "layout", "page_tokens", "pieces", "shape", "tp", "pp", "cp", "dcp"}
)
_PLACEHOLDERS = ("tp_rank", "tp_size", "pp_rank", "pp_size", "dp_rank")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoorConfig(_settings.PoolSettings):
    """Settings of one backend, besides those of its pool.

    ``{tp_rank}``, ``{tp_size}``, ``{pp_rank}``, ``{pp_size}`` and ``{dp_rank}`` in a path are replaced: so every rank
    may have a device of its own. ``mode`` is ``shared`` unless said otherwise where several ranks have one path.

    Parameters
    ----------
    identity : what tells these blocks apart beyond what SGLang says: model revision, quantisation. ``model`` takes the
        place of SGLang's name of the model, which is a path on some hosts and another one elsewhere.
    load_timeout_s : a batch of loads that takes longer is given up; what is not there by then is a miss. 0 waits.
    store_timeout_s : a batch of stores that takes longer is given up. 0 waits.
    staged_loads : all loads go through the store's own memory, so that they end in time whatever the device does, for
        a copy. Otherwise only those that follow a late one.
    durable : a store is complete only when its descriptors are on the device too.
    register_host_pool : register SGLang's host pool with the kernel.
    """

    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    load_timeout_s: float = 10.0
    store_timeout_s: float = 30.0
    staged_loads: bool = False
    durable: bool = False
    register_host_pool: bool = True

    @classmethod
    def from_sglang(cls, extra_config: Mapping[str, Any] | None, ranks: Mapping[str, int]) -> DoorConfig:
        """Check SGLang's extra config and build the settings.

        Parameters
        ----------
        extra_config : as SGLang hands it on; what SGLang itself reads in it is left out.
        ranks : the values of the placeholders.

        Raises
        ------
        ConfigError : an unknown, missing or bad setting; the message names it and what is allowed.
        """
        fields = {name: value for name, value in (extra_config or {}).items() if name not in OF_SGLANG}
        several = ranks["tp_size"] * ranks["pp_size"] > 1 or ranks["dp_rank"] > 0
        has_own_device = "{" in str(fields.get("path"))
        if several and not has_own_device:
            fields.setdefault("mode", "shared")
        made = cls(**_settings.check_settings(fields, WHERE, _CHECKS))
        if several and not has_own_device and made.mode != "shared":
            raise ConfigError(
                f'{WHERE}.mode is "owner", but {ranks["tp_size"]} x {ranks["pp_size"]} ranks have one path: use '
                '"shared", or a path with {tp_rank} in it'
            )
        return dataclasses.replace(made, path=tuple(_filled_in(path, ranks) for path in made.path))


def _filled_in(path: str, ranks: Mapping[str, int]) -> str:
    try:
        return path.format_map({name: ranks[name] for name in _PLACEHOLDERS})
    except (KeyError, ValueError, IndexError, AttributeError):
        allowed = ", ".join(f"{{{name}}}" for name in _PLACEHOLDERS)
        raise ConfigError(f"{WHERE}.path may contain the placeholders {allowed} and no other braces") from None


_CHECKS: dict[str, _settings.Check] = {
    **_settings.POOL_CHECKS,
    "identity": _settings.identity(RESERVED_IDENTITY),
    "load_timeout_s": _settings.number(float, 0, "seconds"),
    "store_timeout_s": _settings.number(float, 0, "seconds"),
    "staged_loads": _settings.boolean,
    "durable": _settings.boolean,
    "register_host_pool": _settings.boolean,
}
