# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The settings of the tier and of the connector: a dataclass each, checked once, every error naming its field."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kvstore import _settings
from kvstore._device_transfer import EXTENTS_BYTES

# Set by the door itself, from vLLM's own configuration; see kvstore.vllm.space.
RESERVED_IDENTITY = frozenset(
    {
        *("engine", "door", "model", "revision", "dtype", "platform", "layout", "canonical", "replicated", "portable"),
        *("row_bytes", "tokens_per_hash", "blocks_per_chunk", "groups", "epoch"),
        *("tp_size", "pp_size", "pcp_size", "dcp_size", "world_size", "rank"),
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TierConfig(_settings.PoolSettings):
    """Settings of the vLLM tier, besides those of its pool.

    Parameters
    ----------
    revision : of the model's weights; empty: told from the weights themselves, see :mod:`kvstore.vllm.revision`.
    identity : what else tells these blocks apart that vLLM does not tell a tier: overrides of the model's
        configuration, a quantization chosen on the command line.
    durable : a store is complete only when its descriptors are on the device too.
    register_primary : register the memory of vLLM's CPU tier with the kernel.
    load_timeout_s : a load that takes longer is a miss. Loads go through staging memory then, with one copy; 0 waits
        as long as the device does, without a copy.
    locality : ``LOCAL``, ``REMOTE`` or empty, as vLLM means it: for its events and for requests that choose tiers.
    enable_kv_events : tell vLLM's event stream what was stored and evicted here.
    """

    revision: str = ""
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    durable: bool = False
    register_primary: bool = True
    load_timeout_s: float = 0.0
    locality: str = ""
    enable_kv_events: bool = False

    @classmethod
    def from_mapping(cls, fields: Mapping[str, Any], where: str) -> TierConfig:
        """Check ``fields`` and build the settings.

        Parameters
        ----------
        fields : of the tier in ``secondary_tiers``, less those that vLLM takes out.
        where : names the tier, for messages.

        Raises
        ------
        ConfigError : an unknown, missing or bad field; the message names it and what is allowed.
        """
        return cls(**_settings.check_settings(fields, where, _CHECKS))


_CHECKS: dict[str, _settings.Check] = {
    **_settings.POOL_CHECKS,
    "revision": _settings.text,
    "identity": _settings.identity(RESERVED_IDENTITY),
    "durable": _settings.boolean,
    "register_primary": _settings.boolean,
    "load_timeout_s": _settings.number(float, 0, "seconds"),
    "locality": _settings.one_of(("", "LOCAL", "REMOTE")),
    "enable_kv_events": _settings.boolean,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectorConfig(_settings.PoolSettings):
    """Settings of the vLLM connector, besides those of its pool.

    Parameters
    ----------
    revision, identity, durable, load_timeout_s : as :class:`TierConfig`.
    layerwise : load layer by layer while the first ones are computed already, instead of before the request is
        scheduled.
    gpu_extents_bytes : memory of its GPU that a worker takes for blocks on their way, when a block has parts under
        64 KiB. At least one block.
    offload_prompt_only, self_describing_kv_events : vLLM's own, see its offloading.
    """

    revision: str = ""
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    durable: bool = False
    load_timeout_s: float = 0.0
    layerwise: bool = False
    gpu_extents_bytes: int = EXTENTS_BYTES
    offload_prompt_only: bool = True
    self_describing_kv_events: bool = False

    @classmethod
    def from_mapping(cls, fields: Mapping[str, Any], where: str) -> ConnectorConfig:
        """Check ``kv_connector_extra_config`` and build the settings; as :meth:`TierConfig.from_mapping`."""
        return cls(**_settings.check_settings(fields, where, _CONNECTOR_CHECKS))


_CONNECTOR_CHECKS: dict[str, _settings.Check] = {
    **_settings.POOL_CHECKS,
    "revision": _settings.text,
    "identity": _settings.identity(RESERVED_IDENTITY),
    "durable": _settings.boolean,
    "load_timeout_s": _settings.number(float, 0, "seconds"),
    "layerwise": _settings.boolean,
    "gpu_extents_bytes": _settings.number(int, 1, "bytes"),
    "offload_prompt_only": _settings.boolean,
    "self_describing_kv_events": _settings.boolean,
}
