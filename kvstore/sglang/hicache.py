# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""KVStoreHiCache: SGLang's HiCache on a kvstore pool.

Three of SGLang's threads call: one looks up, one loads, one stores. Each call is one job of the store, at its full
depth, straight from and into SGLang's host pool. None of them raises: what goes wrong is a miss, logged once a call.
What is wrong with the configuration is an error when the backend is made or given its host pool.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)

import kvstore
from kvstore.errors import ConfigError, KvStoreError
from kvstore.sglang import compat
from kvstore.sglang.config import WHERE, DoorConfig
from kvstore.sglang.counters import Counters
from kvstore.sglang.identity import FLAT, PIECES, pool_identity, rank_identity
from kvstore.sglang.keys import key_bytes, places_of
from kvstore.sglang.pages import HostPages
from kvstore.sglang.transfers import Transfers

Answer = TypeVar("Answer")

_log = logging.getLogger("kvstore.sglang")

# What a call with arguments that SGLang should not have given, or on a pool in trouble, ends with. An AssertionError is
# how SGLang's host pool refuses indices.
_TROUBLE = (KvStoreError, ValueError, TypeError, AssertionError)
_DELETES_AT_ONCE = 1024


class KVStoreHiCache(HiCacheStorage):
    """Storage backend of HiCache.

    Parameters
    ----------
    storage_config : SGLang's; its ``extra_config`` has the settings of :class:`~kvstore.sglang.config.DoorConfig`.
    kwargs : of SGLang's factory; not used.

    Raises
    ------
    ConfigError : a bad setting; the message names it.
    KvStoreError : the pool cannot be opened.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None) -> None:
        ranks = {
            name: getattr(storage_config, name) for name in ("tp_rank", "tp_size", "pp_rank", "pp_size", "dp_rank")
        }
        self._door = DoorConfig.from_sglang(storage_config.extra_config, ranks)
        self._rank_identity = rank_identity(storage_config, self._door.identity)
        self._is_writer = bool(storage_config.is_storage_writer)
        self._form = PIECES if (storage_config.extra_config or {}).get("interface_v1") else FLAT
        self._pages: HostPages | None = None
        self._spaces: dict[str, kvstore.Space] = {}
        self._registered: list[tuple[int, int]] = []
        self._counters = Counters()
        self._transfers = Transfers(
            self._door.load_timeout_s,
            self._door.store_timeout_s,
            staged_loads=self._door.staged_loads,
            durable=self._door.durable,
        )
        self._pool = kvstore.open(list(self._door.path), **self._door.open_options())

    # ---- the host pool ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Take the host pool whose pages are loaded and stored.

        Raises
        ------
        ConfigError : its layout has no addressable pages, or its dtype is one of several; the message says the mend.
        """
        super().register_mem_pool_host(mem_pool_host)
        try:
            self._pages = HostPages(mem_pool_host)
        except ConfigError:
            if self._form == PIECES:
                raise
        pieces = self._pages.pieces if self._pages is not None else ()
        for form in (PIECES, FLAT):
            fields = pool_identity(mem_pool_host, pieces, form, self._door.identity)
            self._spaces[form] = self._pool.space(**self._rank_identity, pool="kv", **fields)
        if self._door.register_host_pool:
            self._register(mem_pool_host)
        if self._form == FLAT:
            _log.warning('every page is copied: add "interface_v1": 1 to %s', WHERE)
        _log.info(
            "kvstore: %s open for pages of %s bytes, space %s",
            ", ".join(self._door.path),
            f"{self._pages.page_bytes:,}" if self._pages is not None else "unknown",
            self._spaces[self._form].json,
        )

    def _register(self, mem_pool_host: Any) -> None:
        for arena in compat.arenas_of(mem_pool_host):
            try:
                registration = self._pool.register(arena)
            except KvStoreError as error:  # not page-aligned, for one
                _log.info("the host pool is not registered: %s", error)
                continue
            if registration:
                self._registered.append(arena)
            else:
                _log.info("the host pool is not registered: %s", registration.reason)

    # ---- presence ----

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        """Return how many pages from the first on are there. No I/O."""

        def match() -> int:
            run = self._space(self._form).match_prefix([key_bytes(key) for key in keys])
            self._counters.looked_up(len(keys), run)
            return run

        return self._answer("look up", len(keys), match, 0) if keys else 0

    # ---- pages of the host pool ----

    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Read pages into the host pool; return which are there now, whole and verified."""

        def load() -> list[bool]:
            pages = self._host_pages()
            return self._load(PIECES, keys, pages.buffers(host_indices, len(keys)), pages.page_bytes)

        return self._answer("load", len(keys), load, [False] * len(keys)) if keys else []

    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Write pages of the host pool; return which are in the store now."""

        def store() -> list[bool]:
            pages = self._host_pages()
            return self._store(PIECES, keys, pages.buffers(host_indices, len(keys)), pages.page_bytes, extra_info)

        return self._answer("store", len(keys), store, [False] * len(keys)) if keys else []

    # ---- SGLang's generic calls ----

    def get(self, key: str, target_location: Any | None = None, target_sizes: Any | None = None) -> torch.Tensor | None:
        """Read one page into ``target_location`` and return that; None on a miss.

        Parameters
        ----------
        target_location : a CPU tensor of the page's size; None: bytes in a tensor of their own.
        """
        return self.batch_get([key], [target_location], [target_sizes])[0]

    def batch_get(
        self, keys: list[str], target_locations: Any | None = None, target_sizes: Any | None = None
    ) -> list[torch.Tensor | None]:
        """As ``get``, each key with its location; one job for all."""
        locations = list(target_locations) if target_locations is not None else [None] * len(keys)

        def load() -> list[torch.Tensor | None]:
            space = self._space(FLAT)
            sizes = space.lookup([key_bytes(key) for key in keys])
            outs = [
                torch.empty(max(size, 1), dtype=torch.uint8) if location is None else location
                for location, size in zip(locations, sizes, strict=True)
            ]
            fitting = [at for at, (out, size) in enumerate(zip(outs, sizes, strict=True)) if out.nbytes == size]
            found: list[torch.Tensor | None] = [None] * len(keys)
            # One group for each size of pages; SGLang's have all the same.
            for page_bytes in {sizes[at] for at in fitting}:
                group = [at for at in fitting if sizes[at] == page_bytes]
                hits = self._load(FLAT, [keys[at] for at in group], [outs[at] for at in group], page_bytes)
                for at, hit in zip(group, hits, strict=True):
                    found[at] = outs[at] if hit else None
            return found

        return self._answer("load", len(keys), load, [None] * len(keys)) if keys else []

    def set(
        self,
        key: str,
        value: Any | None = None,
        target_location: Any | None = None,
        target_sizes: Any | None = None,
    ) -> bool:
        """Write one page, a contiguous CPU tensor; return whether it is in the store now."""
        return self.batch_set([key], [value])

    def batch_set(
        self,
        keys: list[str],
        values: Any | None = None,
        target_locations: Any | None = None,
        target_sizes: Any | None = None,
    ) -> bool:
        """As ``set``, each key with its value; one job for all, and true when all are there."""

        def store() -> bool:
            pages = list(values or ())
            if len(pages) != len(keys) or any(page is None for page in pages):
                raise ValueError(f"{len(pages)} values for {len(keys)} pages")
            return all(self._store(FLAT, keys, pages, pages[0].nbytes, None))

        return self._answer("store", len(keys), store, False) if keys else True

    # ---- hybrid models ----

    def on_host_pools_registered(self) -> None:
        """Refuse models that keep more than keys and values; called once, when SGLang has named all host pools.

        Raises
        ------
        ConfigError : there are others; the message names them.
        """
        others = sorted(str(name) for name in getattr(self, "registered_pools", {}) if str(name) != PoolName.KV.value)
        if others:
            raise ConfigError(
                f"this model keeps {', '.join(others)} beside its keys and values, and kvstore.sglang does not store "
                "that: run it without --hicache-storage-backend dynamic"
            )

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """No page is usable: what a model has beside its KV pool is not stored, and pages are nothing without it."""
        return PoolTransferResult.empty()

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        return {transfer.name: [False] * len(transfer.keys or ()) for transfer in transfers}

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        return {transfer.name: [False] * len(transfer.keys or ()) for transfer in transfers}

    # ---- the rest ----

    def clear(self) -> None:
        """Delete every page of this model and rank. Reads the metadata of the whole pool."""
        ours = {space.json for space in self._spaces.values()}

        def delete() -> None:
            for space in self._spaces.values():
                keys = list(space.keys())
                for start in range(0, len(keys), _DELETES_AT_ONCE):
                    space.delete(keys[start : start + _DELETES_AT_ONCE])
            for block in self._pool.blocks():
                if block.key_is_digest and block.space_json in ours:  # its key is not known any more
                    self._pool.drop_block(block)

        self._answer("clear", 0, delete, None)

    def get_stats(self) -> Any:
        """Return SGLang's ``StorageMetrics`` of the batches since the last call."""
        return compat.storage_metrics(*self._counters.take_samples())

    def numbers(self) -> dict[str, int]:
        """Return what this backend did since it was made, by name."""
        return {
            **self._counters.numbers(),
            "loads_late": self._transfers.loads_late,
            "stores_late": self._transfers.stores_late,
        }

    def close(self) -> None:
        """Close the pool; what is in flight has ``close_timeout_s``. Closing again does nothing."""
        try:
            for arena in self._registered:
                self._pool.unregister(arena)
            self._registered.clear()
            self._pool.close(self._door.close_timeout_s)
        except KvStoreError as error:
            _log.error("kvstore: the pool did not close cleanly: %s", error)

    # ---- inside ----

    def _answer(self, what: str, pages: int, call: Callable[[], Answer], miss: Answer) -> Answer:
        try:
            return call()
        except _TROUBLE as error:
            _log.warning("could not %s %d pages: %s", what, pages, error)
            return miss

    def _space(self, form: str) -> kvstore.Space:
        if form not in self._spaces:
            raise ConfigError("no host pool is registered yet")
        return self._spaces[form]

    def _host_pages(self) -> HostPages:
        if self._pages is None:
            raise ConfigError("no host pool with addressable pages is registered")
        return self._pages

    def _load(self, form: str, keys: Sequence[str], outs: Sequence[Any], page_bytes: int) -> list[bool]:
        started_at = time.monotonic()
        found = self._transfers.load(self._space(form), [key_bytes(key) for key in keys], outs, page_bytes)
        self._counters.loaded(sum(found), len(found) - sum(found), page_bytes, started_at)
        return found

    def _store(
        self,
        form: str,
        keys: Sequence[str],
        values: Sequence[Any],
        page_bytes: int,
        extra_info: HiCacheStorageExtraInfo | None,
    ) -> list[bool]:
        if not self._is_writer:  # the bytes are the same on every rank, and the first one stores them
            return [True] * len(keys)
        started_at = time.monotonic()
        encoded = [key_bytes(key) for key in keys]
        parents, depths = places_of(encoded, extra_info.prefix_keys if extra_info is not None else None)
        done = self._transfers.store(self._space(form), encoded, values, parents, depths)
        self._counters.stored(sum(done), len(done) - sum(done), page_bytes, started_at)
        return done
