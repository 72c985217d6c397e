# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""EngineSpaces: from the keys of LMCache's in-process mode to spaces, key bytes, salts and layouts."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from lmcache.utils import CacheEngineKey, LayerCacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.metadata import LMCacheMetadata

import kvstore
from kvstore.lmcache.keys import engine_key_bytes, engine_salt
from kvstore.lmcache.layout import Layout, layouts_of_engine
from kvstore.lmcache.spaces import SpaceTable


class EngineBatch(NamedTuple):
    """Keys of one space: where they stand in the caller's list, and how the store names them."""

    space: kvstore.Space
    positions: list[int]
    keys: list[bytes]
    salts: list[bytes]


class EngineSpaces:
    """The spaces of one engine.

    Parameters
    ----------
    table : makes spaces, once each.
    config, metadata : of the engine; the KV layer groups in ``metadata`` may come later.
    serialized : objects may be what LMCache's serializer makes of them.
    """

    def __init__(
        self,
        table: SpaceTable[CacheEngineKey],
        config: LMCacheEngineConfig,
        metadata: LMCacheMetadata,
        *,
        serialized: bool = True,
    ) -> None:
        self._table = table
        self._config = config
        self._metadata = metadata
        self._serialized = serialized
        self._layouts: tuple[Layout, ...] = ()
        self._layout_texts: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def batches(self, keys: Sequence[CacheEngineKey]) -> list[EngineBatch]:
        """Group keys by space; one batch, but for keys of several models or ranks."""
        batches: dict[int, EngineBatch] = {}
        for position, key in enumerate(keys):
            space = self._space(key)
            batch = batches.get(id(space))
            if batch is None:
                batch = batches[id(space)] = EngineBatch(space, [], [], [])
            batch.positions.append(position)
            batch.keys.append(engine_key_bytes(key))
            batch.salts.append(engine_salt(key))
        return list(batches.values())

    def layout_index(self, key: CacheEngineKey) -> int:
        """Return which of the engine's layouts the object of ``key`` has."""
        return 1 if isinstance(key, LayerCacheEngineKey) and len(self._known_layouts()) > 1 else 0

    def layout(self, key: CacheEngineKey) -> Layout:
        """Return the layout of the object of ``key``."""
        return self._known_layouts()[self.layout_index(key)]

    def _known_layouts(self) -> tuple[Layout, ...]:
        # Not made at the start: the serving engine registers its KV layer groups after it has made the connector.
        if not self._layouts or len(self._layouts[0].groups) != self._metadata.get_num_groups():
            with self._lock:
                layouts = layouts_of_engine(
                    self._metadata,
                    layerwise=bool(self._config.use_layerwise),
                    blending=bool(self._config.enable_blending),
                    binary=self._serialized and self._config.remote_serde == "cachegen",
                )
                self._layout_texts = tuple(str(layout) for layout in layouts)
                self._layouts = tuple(layouts)
        return self._layouts

    def _space(self, key: CacheEngineKey) -> kvstore.Space:
        self._known_layouts()
        texts = self._layout_texts
        token = (key.model_name, key.world_size, key.worker_id, key._dtype_str, texts)
        return self._table.get(
            token,
            lambda: {
                "model": key.model_name,
                "world_size": key.world_size,
                "worker_id": key.worker_id,
                "kv_dtype": key._dtype_str,
                "chunk_tokens": self._metadata.chunk_size,
                "layouts": list(texts),
            },
        )


def with_hash(key: CacheEngineKey, chunk_hash: int | bytes) -> CacheEngineKey:
    """Return ``key`` with another hash."""
    fields = {"layer_id": key.layer_id} if isinstance(key, LayerCacheEngineKey) else {}
    return type(key)(
        key.model_name, key.world_size, key.worker_id, chunk_hash, key.dtype, key.request_configs, **fields
    )
