# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""SpaceTable: the spaces of one door in one pool, made on first use, and its blocks listed back as LMCache's keys."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import kvstore
from kvstore.lmcache.config import RESERVED_IDENTITY
from kvstore.lmcache.keys import ENGINE

Key = TypeVar("Key")

_IDENTITIES_MAX = 4096


class ListedBlock(NamedTuple, Generic[Key]):
    """One live block of a door: its key as LMCache knows it, and its payload bytes."""

    key: Key
    payload_bytes: int


class SpaceTable(Generic[Key]):
    """The spaces of one door.

    Parameters
    ----------
    pool : an open pool; stays the caller's.
    door : name of the door, part of every identity.
    identity : what the user adds to every identity.
    decode : makes LMCache's key from a space identity, a salt and key bytes; ValueError when it cannot.
    """

    def __init__(
        self,
        pool: kvstore.Pool,
        door: str,
        identity: Mapping[str, Any],
        decode: Callable[[Mapping[str, Any], bytes, bytes], Key],
    ) -> None:
        self._pool = pool
        self._identity = dict(identity)
        self._fixed = {**identity, "engine": ENGINE, "door": door}
        self._decode = decode
        self._spaces: dict[Any, kvstore.Space] = {}
        self._identities: dict[str, dict[str, Any] | None] = {}  # by their text: those of this door, None for others
        self._lock = threading.Lock()

    def get(self, token: Any, fields: Callable[[], Mapping[str, Any]]) -> kvstore.Space:
        """Return the space of ``token``.

        Parameters
        ----------
        token : hashable, equal exactly when ``fields()`` are equal.
        fields : makes the rest of the identity; called once per token.
        """
        space = self._spaces.get(token)
        if space is None:
            with self._lock:
                space = self._spaces.get(token)
                if space is None:
                    space = self._spaces[token] = self._pool.space(**self._fixed, **fields())
        return space

    def key_of(self, space_json: str, salt: bytes, key: bytes) -> Key | None:
        """Return LMCache's key of a block, or None for a block that is not of this door and identity."""
        identity = self._own(space_json)
        if identity is None:
            return None
        try:
            return self._decode(identity, salt, key)
        except ValueError:
            return None

    def _own(self, space_json: str) -> dict[str, Any] | None:
        """Return an identity when it is of this door and user, else None."""
        if space_json not in self._identities:
            if len(self._identities) >= _IDENTITIES_MAX:
                self._identities.clear()
            self._identities[space_json] = self._parse(space_json)
        return self._identities[space_json]

    def _parse(self, space_json: str) -> dict[str, Any] | None:
        identity: dict[str, Any] = json.loads(space_json)
        if identity.get("engine") != ENGINE or identity.get("door") != self._fixed["door"]:
            return None
        added = {name: value for name, value in identity.items() if name not in RESERVED_IDENTITY}
        return identity if added == self._identity else None

    def blocks(self) -> Iterator[ListedBlock[Key]]:
        """Iterate over the live blocks of this door, reading their descriptors from the device."""
        for block in self._pool.blocks():
            key = self.key_of(block.space_json, block.salt, block.key)
            if key is not None:
                yield ListedBlock(key, block.nbytes)

    def bytes_by_salt(self) -> Counter[bytes]:
        """Return the live payload bytes of this door under each salt, reading the descriptors from the device."""
        counts: Counter[bytes] = Counter()
        for block in self._pool.blocks():
            if self._own(block.space_json) is not None:
                counts[block.salt] += block.nbytes
        return counts
