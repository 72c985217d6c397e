# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""L2Batches: from the keys of LMCache's multiprocess mode to batches of the store, with their places in chains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lmcache.logging import init_logger
from lmcache.v1.distributed.api import ObjectKey

import kvstore
from kvstore.lmcache.chain import ChainTable
from kvstore.lmcache.keys import l2_key_bytes, l2_sibling
from kvstore.lmcache.spaces import SpaceTable

logger = init_logger(__name__)


class L2Batch(NamedTuple):
    """Keys of one space: where they stand in the caller's list, and how the store names them."""

    space: kvstore.Space
    positions: list[int]
    keys: list[bytes]
    salts: list[bytes]


class L2Batches:
    """Makes batches of keys, and remembers the order that lookups teach. Thread-safe.

    Parameters
    ----------
    spaces : makes spaces, once each.
    chain_entries : how many chain positions are remembered.
    """

    def __init__(self, spaces: SpaceTable[ObjectKey], chain_entries: int) -> None:
        self._spaces = spaces
        self.chain: ChainTable[bytes] = ChainTable(chain_entries)
        self.refused_keys = 0

    def of(self, keys: Sequence[ObjectKey]) -> list[L2Batch]:
        """Group keys by model. A key the store cannot keep is left out, and said once."""
        batches: dict[str, L2Batch] = {}
        for position, key in enumerate(keys):
            try:
                encoded = l2_key_bytes(key)
            except ValueError as error:
                if self.refused_keys == 0:
                    logger.warning("kvstore cannot keep some of LMCache's keys, they are misses: %s", error)
                self.refused_keys += 1
                continue
            batch = batches.get(key.model_name)
            if batch is None:
                batch = batches[key.model_name] = L2Batch(self._space(key.model_name), [], [], [])
            batch.positions.append(position)
            batch.keys.append(encoded)
            batch.salts.append(key.cache_salt.encode())
        return list(batches.values())

    def learn(self, keys: Sequence[ObjectKey]) -> None:
        """Take in the order of a lookup: rows of chunk-ordered keys, a row for each rank and object group."""
        row = (keys[0].kv_rank, keys[0].object_group_id)
        # Every row has the same hashes in the same order, so the first one teaches all of them.
        length = next((i for i, key in enumerate(keys) if (key.kv_rank, key.object_group_id) != row), len(keys))
        self.chain.learn([key.chunk_hash for key in keys[:length]])

    def places(self, batch: L2Batch, keys: Sequence[ObjectKey]) -> tuple[list[bytes | None], list[int]]:
        """Return the parent and the depth of each key of ``batch``, as far as lookups taught them."""
        places = [self.chain.position(keys[position].chunk_hash) for position in batch.positions]
        parents = [
            None if place.parent is None else l2_sibling(encoded, place.parent)
            for place, encoded in zip(places, batch.keys, strict=True)
        ]
        return parents, [place.depth for place in places]

    def _space(self, model: str) -> kvstore.Space:
        return self._spaces.get(model, lambda: {"model": model})
