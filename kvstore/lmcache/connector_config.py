# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Where the in-process doors find their settings: LMCache's ``extra_config``, or the query of a ``remote_url``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.metadata import LMCacheMetadata

from kvstore.errors import ConfigError
from kvstore.lmcache.config import DoorConfig, StorageConfig

_OF_LMCACHE = ("module_path", "class_name")
Door = TypeVar("Door", bound=DoorConfig)
_PLACEHOLDERS = ("worker_id", "local_worker_id", "world_size")


def door_config(config: LMCacheEngineConfig, metadata: LMCacheMetadata, plugin_name: str | None) -> DoorConfig:
    """Read and check the settings of one connector.

    Parameters
    ----------
    plugin_name : whose ``remote_storage_plugin.<name>.*`` settings count; None: those of ``remote_url``.

    Raises
    ------
    ConfigError : a bad setting; the message names it as the user wrote it.
    """
    if plugin_name is not None:
        where = f"remote_storage_plugin.{plugin_name}"
        fields: Mapping[str, Any] = _extra_fields(config, where)
    else:
        where, fields = "remote_url", _query_fields(config.remote_url or "")
    return with_paths(DoorConfig.from_mapping(fields, where), metadata, where)


def storage_config(config: LMCacheEngineConfig, metadata: LMCacheMetadata, class_name: str) -> StorageConfig:
    """Read and check the settings of a storage plugin, which LMCache does not tell its name.

    Parameters
    ----------
    class_name : whose ``storage_plugin.<name>.*`` settings count.

    Raises
    ------
    ConfigError : several plugins have this class, or a bad setting; the message names it.
    """
    ending = ".class_name"
    names = [
        name
        for name, value in (config.extra_config or {}).items()
        if name.startswith("storage_plugin.") and name.endswith(ending) and value == class_name
    ]
    if len(names) != 1:
        raise ConfigError(
            f"extra_config must have one storage_plugin.<name>.class_name of {class_name}, and has {len(names)}: "
            "LMCache does not tell a plugin which of them it is"
        )
    where = names[0][: -len(ending)]
    return with_paths(StorageConfig.from_mapping(_extra_fields(config, where), where), metadata, where)


def _extra_fields(config: LMCacheEngineConfig, where: str) -> dict[str, Any]:
    return {
        name[len(where) + 1 :]: value
        for name, value in (config.extra_config or {}).items()
        if name.startswith(where + ".") and name[len(where) + 1 :] not in _OF_LMCACHE
    }


def with_paths(door: Door, metadata: LMCacheMetadata, where: str) -> Door:
    """Put the engine's ranks into the paths.

    Raises
    ------
    ConfigError : other braces.
    """
    values = {name: getattr(metadata, name) for name in _PLACEHOLDERS}
    try:
        paths = tuple(path.format_map(values) for path in door.path)
    except (KeyError, ValueError, IndexError, AttributeError):
        allowed = ", ".join(f"{{{name}}}" for name in _PLACEHOLDERS)
        raise ConfigError(f"{where}.path may contain the placeholders {allowed} and no other braces") from None
    return dataclasses.replace(door, path=paths)


def _query_fields(url: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    paths: list[str] = []
    identity: dict[str, str] = {}
    for name, value in parse_qsl(urlsplit(url).query):
        if name == "path":
            paths.append(value)
        elif name.startswith("identity."):
            identity[name.removeprefix("identity.")] = value
        elif name != "connector_name":
            fields[name] = value
    if paths:
        fields["path"] = paths
    if identity:
        fields["identity"] = identity
    return fields
