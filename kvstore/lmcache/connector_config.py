# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Where the in-process door finds its settings: LMCache's ``extra_config``, or the query of an ``external://`` URL."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.metadata import LMCacheMetadata

from kvstore.errors import ConfigError
from kvstore.lmcache.config import DoorConfig

_OF_LMCACHE = ("module_path", "class_name")
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
        fields: Mapping[str, Any] = {
            name[len(where) + 1 :]: value
            for name, value in (config.extra_config or {}).items()
            if name.startswith(where + ".") and name[len(where) + 1 :] not in _OF_LMCACHE
        }
    else:
        where, fields = "remote_url", _query_fields(config.remote_url or "")
    door = DoorConfig.from_mapping(fields, where)
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
