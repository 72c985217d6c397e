# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The settings of both LMCache doors: one dataclass, checked once, every error naming its field."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kvstore import _settings

# Set by the doors themselves, from LMCache's own keys.
RESERVED_IDENTITY = frozenset(
    {"engine", "door", "model", "world_size", "worker_id", "kv_dtype", "chunk_tokens", "layouts"}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoorConfig(_settings.PoolSettings):
    """Settings of one LMCache door, besides those of its pool.

    ``{worker_id}``, ``{local_worker_id}`` and ``{world_size}`` in a path are replaced in the in-process mode, where in
    owner mode every rank needs a device of its own.

    Parameters
    ----------
    identity : what tells these blocks apart beyond LMCache's own key: model revision, KV dtype, layout. A change of
        any value makes every stored block a miss, which is the point.
    durable : a store task completes only when its descriptors are on the device too.
    register_l1 : register LMCache's arena with the kernel, where it exposes a stable one.
    load_timeout_s : a load that takes longer is answered as a miss; 0 waits for ever.
    max_capacity_bytes : what LMCache's watermark is measured against; 0 is the pool's payload capacity.
    chain_entries : how many chain positions learnt from lookups are remembered.
    """

    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    durable: bool = False
    register_l1: bool = True
    load_timeout_s: float = 30.0
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
        return cls(**_settings.check_settings(fields, where, _CHECKS))


_CHECKS: dict[str, _settings.Check] = {
    **_settings.POOL_CHECKS,
    "identity": _settings.identity(RESERVED_IDENTITY),
    "durable": _settings.boolean,
    "register_l1": _settings.boolean,
    "load_timeout_s": _settings.number(float, 0, "seconds"),
    "max_capacity_bytes": _settings.number(int, 0, "bytes"),
    "chain_entries": _settings.number(int, 1, "entries"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StorageConfig(DoorConfig):
    """Settings of the storage plugin, besides those of every door.

    Parameters
    ----------
    buffer_bytes : memory for objects on their way, of the worker's GPU; where there is none, of the host.
    """

    buffer_bytes: int = 1 << 30

    @classmethod
    def from_mapping(cls, fields: Mapping[str, Any], where: str) -> StorageConfig:
        return cls(**_settings.check_settings(fields, where, _STORAGE_CHECKS))


_STORAGE_CHECKS: dict[str, _settings.Check] = {**_CHECKS, "buffer_bytes": _settings.number(int, 4096, "bytes")}
