# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The identity of a vLLM door's space: all that two engines must agree on for one to use the other's blocks.

vLLM's key is the hash of the tokens (with LoRA, images and the cache salt in it) and the KV cache group. Everything
else that decides the bytes of a row is here. A field more makes a miss, a field less makes wrong bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from kvstore.space import Identity
from kvstore.vllm import compat

ENGINE = "vllm"
DOOR = "tier"


def identity_of(
    config: Any, row_bytes: int, revision: str, added: Mapping[str, Any], door: str = DOOR, rank: int | None = None
) -> dict[str, Identity]:
    """Return the identity of the space of one engine.

    Parameters
    ----------
    config : vLLM's ``OffloadingConfig``.
    row_bytes : of one chunk in the CPU tier, all ranks together.
    revision : of the weights.
    added : what the user adds.
    door : whose blocks they are: each cuts them in its own way.
    rank : of the worker whose part of each block it is; None: the parts of all ranks are one block.
    """
    parallel = config.parallel
    # The bytes of a row are the same under any parallel sizes then, by vLLM's own word.
    portable = rank is None and bool(parallel.is_parallelism_agnostic or config.replicated_layout)
    sizes = {
        "tp_size": parallel.tp_size,
        "pp_size": parallel.pp_size,
        "pcp_size": parallel.pcp_size,
        "dcp_size": parallel.dcp_size,
        "world_size": parallel.world_size,
    }
    return {
        **added,
        "engine": ENGINE,
        "door": door,
        "model": config.model.name,
        "revision": revision,
        "dtype": config.model.dtype,
        "platform": compat.platform_name(),
        "layout": str(config.kv_cache_layout),
        "canonical": compat.canonical_format(config),
        "replicated": bool(config.replicated_layout),
        "portable": portable,
        "row_bytes": row_bytes,
        "tokens_per_hash": config.cache.tokens_per_hash,
        "blocks_per_chunk": config.cache.blocks_per_chunk,
        "groups": [_group(group) for group in config.groups],
        **({} if portable else sizes),
        **({} if rank is None else {"rank": rank}),
    }


def _group(group: Any) -> str:
    """One KV cache group: which layers, as a digest of their names, of which there may be hundreds."""
    names = hashlib.blake2b("\0".join(group.layer_names).encode(), digest_size=8).hexdigest()
    return f"{group.group_id}:{group.tokens_per_block}:{len(group.layer_names)}:{names}"
