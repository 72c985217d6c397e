# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""LMCache's keys to and from what the store keeps: a space identity, a salt and key bytes. Both ways, without loss.

Multiprocess mode: the space is the model; the key is ``chunk_hash ‖ kv_rank (4 bytes) ‖ object_group_id (2 bytes)``,
so that all ranks and groups of one request fit in one batch; ``cache_salt`` is the salt.
In-process mode: the space is everything else in the key; the key is ``kind (1 byte) [‖ layer (2 bytes)] ‖ chunk_hash``;
request tags are the salt. Integers are big endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from lmcache.utils import CacheEngineKey, LayerCacheEngineKey
from lmcache.v1.distributed.api import ObjectKey

ENGINE = "lmcache"
L2_DOOR = "l2"
CONNECTOR_DOOR = "connector"

_RANK_AND_GROUP = struct.Struct(">IH")
_LAYER = struct.Struct(">H")
# The store keeps keys up to this length as they are; a longer one could not be listed after a restart.
_KEY_BYTES_MAX = 48
L2_HASH_BYTES_MAX = _KEY_BYTES_MAX - _RANK_AND_GROUP.size

_HASH_IS_BYTES = 1
_HAS_LAYER = 2


def l2_key_bytes(key: ObjectKey) -> bytes:
    """Encode an ``ObjectKey`` without its model and salt.

    Raises
    ------
    ValueError : a hash of more than 42 bytes or none, a rank over 32 bits, a group over 16.
    """
    if not 0 < len(key.chunk_hash) <= L2_HASH_BYTES_MAX:
        raise ValueError(f"chunk_hash must have 1 to {L2_HASH_BYTES_MAX} bytes, got {len(key.chunk_hash)}")
    try:
        return bytes(key.chunk_hash) + _RANK_AND_GROUP.pack(key.kv_rank, key.object_group_id)
    except struct.error:
        raise ValueError(
            f"kv_rank must fit 32 bits and object_group_id 16, got {key.kv_rank} and {key.object_group_id}"
        ) from None


def l2_sibling(key: bytes, chunk_hash: bytes) -> bytes:
    """Return the key bytes of another chunk of the same rank and group."""
    return chunk_hash + key[-_RANK_AND_GROUP.size :]


def l2_object_key(identity: Mapping[str, Any], salt: bytes, key: bytes) -> ObjectKey:
    """Decode what ``l2_key_bytes`` made, given the space's identity and the salt.

    Raises
    ------
    ValueError : not a key of this door.
    """
    if identity.get("engine") != ENGINE or identity.get("door") != L2_DOOR or len(key) <= _RANK_AND_GROUP.size:
        raise ValueError("not a key of LMCache's multiprocess mode")
    kv_rank, group = _RANK_AND_GROUP.unpack(key[-_RANK_AND_GROUP.size :])
    return ObjectKey(
        chunk_hash=key[: -_RANK_AND_GROUP.size],
        model_name=identity["model"],
        kv_rank=kv_rank,
        object_group_id=group,
        cache_salt=salt.decode(),
    )


def engine_key_bytes(key: CacheEngineKey) -> bytes:
    """Encode the chunk hash, and the layer of a ``LayerCacheEngineKey``.

    Raises
    ------
    ValueError : a hash that does not fit the store's key, a layer over 16 bits.
    """
    kind = 0
    if isinstance(key.chunk_hash, bytes):
        kind |= _HASH_IS_BYTES
        digest = key.chunk_hash
    else:
        # Signed: Python's own hash(), LMCache's default in this mode, is negative half the time.
        digest = key.chunk_hash.to_bytes(max(8, key.chunk_hash.bit_length() // 8 + 1), "big", signed=True)
    layer = b""
    if isinstance(key, LayerCacheEngineKey):
        kind |= _HAS_LAYER
        if not 0 <= key.layer_id < 1 << 16:
            raise ValueError(f"layer_id must fit 16 bits, got {key.layer_id}")
        layer = _LAYER.pack(key.layer_id)
    encoded = bytes([kind]) + layer + digest
    if not digest or len(encoded) > _KEY_BYTES_MAX:
        raise ValueError(f"chunk_hash must have 1 to {_KEY_BYTES_MAX - 1 - len(layer)} bytes, got {len(digest)}")
    return encoded


def engine_salt(key: CacheEngineKey) -> bytes:
    """Encode the request tags, in their order, as the salt; none is the empty salt."""
    if not key.tags:
        return b""
    return json.dumps([[name, value] for name, value in key.tags], separators=(",", ":")).encode()


def engine_key(identity: Mapping[str, Any], salt: bytes, key: bytes) -> CacheEngineKey:
    """Decode what ``engine_key_bytes`` and ``engine_salt`` made, given the space's identity.

    Raises
    ------
    ValueError : not a key of this door.
    """
    from lmcache.utils import STR_DTYPE_TO_TORCH_DTYPE

    if identity.get("engine") != ENGINE or identity.get("door") != CONNECTOR_DOOR or len(key) < 2:
        raise ValueError("not a key of LMCache's in-process mode")
    kind, rest = key[0], key[1:]
    fields: dict[str, Any] = {
        "model_name": identity["model"],
        "world_size": identity["world_size"],
        "worker_id": identity["worker_id"],
        "dtype": STR_DTYPE_TO_TORCH_DTYPE[identity["kv_dtype"]],
        "request_configs": {f"lmcache.tag.{name}": value for name, value in json.loads(salt)} if salt else None,
    }
    key_class: type[CacheEngineKey] = CacheEngineKey
    if kind & _HAS_LAYER:
        key_class = LayerCacheEngineKey
        fields["layer_id"] = _LAYER.unpack_from(rest)[0]
        rest = rest[_LAYER.size :]
    fields["chunk_hash"] = rest if kind & _HASH_IS_BYTES else int.from_bytes(rest, "big", signed=True)
    return key_class(**fields)
