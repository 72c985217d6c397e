# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""LMCache's in-process mode on a kvstore pool: a remote connector and the adapter that makes it.

Every coroutine runs on LMCache's one event loop and never blocks it: a batch is one job of the store. Buffers come
from LMCache's CPU backend and go back to it on every path that does not hand them out.

Contract of LMCache that shows here: ``put`` does not drop the caller's reference (a wrapper around every connector
does); nothing pins a key, so one may vanish between ``contains`` and ``get`` and is None then; a batch must be back
within ``blocking_timeout_secs``, or the whole request is computed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from lmcache.logging import init_logger
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector import ConnectorAdapter, ConnectorContext, extract_plugin_type
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

import kvstore
from kvstore.errors import KvStoreError
from kvstore.lmcache import compat
from kvstore.lmcache.chain import ChainTable
from kvstore.lmcache.connector_config import door_config
from kvstore.lmcache.engine_spaces import EngineBatch, EngineSpaces, with_hash
from kvstore.lmcache.keys import CONNECTOR_DOOR, engine_key, engine_key_bytes
from kvstore.lmcache.layout import describe_object, pack_meta
from kvstore.lmcache.loop_jobs import LoopJobs, release
from kvstore.lmcache.spaces import SpaceTable

logger = init_logger(__name__)

PLUGIN_TYPE = "kvstore"
_SCHEME = "plugin://"
# A batch answers within this share of LMCache's own time limit: after it, LMCache throws the answer away.
_TIME_SHARE = 0.9


class KVStoreConnector(RemoteConnector):
    """Remote connector of LMCache's in-process mode.

    Parameters
    ----------
    loop : LMCache's event loop; every coroutine of this object runs on it.
    local_cpu_backend : allocates the buffers of loads.
    config : LMCache's own settings.
    metadata : of the engine; None takes that of ``local_cpu_backend``.
    plugin_name : whose ``remote_storage_plugin.<name>.*`` settings count; None takes those of ``remote_url``.

    Raises
    ------
    ConfigError : a bad setting; the message names it.
    KvStoreError : the pool cannot be opened.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        local_cpu_backend: LocalCPUBackend,
        config: LMCacheEngineConfig,
        metadata: LMCacheMetadata | None = None,
        plugin_name: str | None = None,
    ) -> None:
        if metadata is None:
            metadata = local_cpu_backend.metadata
        super().__init__(config, metadata)
        self._loop = loop
        self._cpu = local_cpu_backend
        self._door = door_config(config, metadata, plugin_name)
        of_lmcache = float(config.blocking_timeout_secs) * _TIME_SHARE
        self._timeout_s = min(self._door.load_timeout_s or of_lmcache, of_lmcache)
        self._chain: ChainTable[int | bytes] = ChainTable(self._door.chain_entries)
        self._misfits = 0
        self._pool = kvstore.open(list(self._door.path), **self._door.open_options())
        self._table = SpaceTable(self._pool, CONNECTOR_DOOR, self._door.identity, engine_key)
        self._engine = EngineSpaces(self._table, config, metadata)
        self._queue = self._pool.queue()
        self._jobs = LoopJobs(loop, self._queue)

    # ---- presence ----

    async def exists(self, key: CacheEngineKey) -> bool:
        return self.exists_sync(key)

    def exists_sync(self, key: CacheEngineKey) -> bool:
        return self.batched_contains([key]) == 1

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: list[CacheEngineKey]) -> int:
        """Return how many keys from the first one on are there. No I/O; safe from any thread."""
        if len(keys) > 1:
            self._chain.learn([key.chunk_hash for key in keys])
        run = len(keys)
        for batch in self._engine.batches(keys):
            found = batch.space.match_prefix(batch.keys, salts=batch.salts)
            if found < len(batch.keys):
                run = min(run, batch.positions[found])
        return run

    def support_batched_async_contains(self) -> bool:
        return True

    async def batched_async_contains(self, lookup_id: str, keys: list[CacheEngineKey], pin: bool = False) -> int:
        """As ``batched_contains``. ``pin`` does nothing: LMCache never unpins a remote key."""
        return self.batched_contains(keys)

    # ---- put ----

    async def put(self, key: CacheEngineKey, memory_obj: MemoryObj) -> None:
        """Store one object. Its reference stays the caller's.

        Raises
        ------
        KvStoreError : it was not stored; LMCache counts and logs that.
        """
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        return True

    async def batched_put(self, keys: Sequence[CacheEngineKey], memory_objs: Sequence[MemoryObj]) -> None:
        """Store objects. Their references stay the caller's.

        Raises
        ------
        KvStoreError : some were not stored; the message says how many and why the first one.
        """
        fitting = [i for i, (key, obj) in enumerate(zip(keys, memory_objs, strict=True)) if self._fits(key, obj)]
        chosen, objects = [keys[i] for i in fitting], [memory_objs[i] for i in fitting]
        errors: list[KvStoreError] = []
        waiting = []
        for batch in self._engine.batches(chosen):
            part = [objects[position] for position in batch.positions]
            try:
                job = self._submit_put(batch, [chosen[position] for position in batch.positions], part)
            except KvStoreError as error:
                errors.append(error)
                continue
            # The wrapper drops its reference when this coroutine is cancelled, while the kernel may still read.
            for obj in part:
                obj.ref_count_up()
            waiting.append(self._jobs.watch(job, part, release_at_end=True))
        for future in waiting:
            errors += [result.error for result in await future if result.error is not None]
        if errors:
            raise KvStoreError(f"not all of {len(keys)} blocks were stored, the first error: {errors[0]}") from errors[
                0
            ]

    def _submit_put(
        self, batch: EngineBatch, keys: Sequence[CacheEngineKey], objects: Sequence[MemoryObj]
    ) -> kvstore.Job:
        places = [self._chain.position(key.chunk_hash) for key in keys]
        parents = [
            None if place.parent is None else engine_key_bytes(with_hash(key, place.parent))
            for key, place in zip(keys, places, strict=True)
        ]
        metas = [
            pack_meta(self._engine.layout_index(key), self._engine.layout(key).tokens_in(obj.get_size()) or 0)
            for key, obj in zip(keys, objects, strict=True)
        ]
        return batch.space.put_many(
            batch.keys,
            [compat.buffer_of(obj) for obj in objects],
            parents=parents,
            depths=[place.depth for place in places],
            salts=batch.salts,
            metas=metas,
            durable=self._door.durable,
            queue=self._queue,
        )

    def _fits(self, key: CacheEngineKey, memory_obj: MemoryObj) -> bool:
        layout = self._engine.layout(key)
        if layout.fits(memory_obj):
            return True
        if self._misfits == 0:
            logger.warning(
                "kvstore does not store what could not be rebuilt from this engine's layout: got %s, expected %s",
                describe_object(memory_obj),
                layout,
            )
        self._misfits += 1
        return False

    # ---- get ----

    async def get(self, key: CacheEngineKey) -> MemoryObj | None:
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: list[CacheEngineKey]) -> list[MemoryObj | None]:
        """Load objects; None for what is missing, cannot be read, or has no room in LMCache's CPU memory.

        The objects handed out are the caller's, with one reference each.
        """
        return await self._load(keys, prefix_only=False)

    def support_batched_get_non_blocking(self) -> bool:
        return True

    async def batched_get_non_blocking(self, lookup_id: str, keys: list[CacheEngineKey]) -> list[MemoryObj]:
        """Load the objects from the first key on, up to the first that is not there."""
        found = await self._load(keys, prefix_only=True)
        run = next((i for i, obj in enumerate(found) if obj is None), len(found))
        release([obj for obj in found[run:] if obj is not None])
        return [obj for obj in found[:run] if obj is not None]

    async def _load(self, keys: Sequence[CacheEngineKey], *, prefix_only: bool) -> list[MemoryObj | None]:
        waiting: list[tuple[asyncio.Future[Sequence[kvstore.Result]], list[int], list[MemoryObj]]] = []
        for batch in self._engine.batches(keys):
            chosen, objects = self._allocate(batch, keys, prefix_only)
            if not chosen:
                continue
            try:
                job = batch.space.get_many(
                    [batch.keys[item] for item in chosen],
                    [compat.buffer_of(obj) for obj in objects],
                    salts=[batch.salts[item] for item in chosen],
                    queue=self._queue,
                )
            except KvStoreError as error:
                logger.warning("kvstore refused to load %d blocks: %s", len(chosen), error)
                release(objects)
                continue
            waiting.append((self._jobs.watch(job, objects), [batch.positions[item] for item in chosen], objects))
        return await self._results(waiting, len(keys))

    def _allocate(
        self, batch: EngineBatch, keys: Sequence[CacheEngineKey], prefix_only: bool
    ) -> tuple[list[int], list[MemoryObj]]:
        """Allocate a buffer for each block that is there, until memory is short, or at the first gap if asked to.

        Returns
        -------
        items of ``batch`` and their objects.
        """
        try:
            sizes = batch.space.lookup(batch.keys, salts=batch.salts)
        except KvStoreError as error:
            logger.warning("kvstore cannot look up %d blocks, they are misses: %s", len(batch.keys), error)
            return [], []
        chosen: list[int] = []
        objects: list[MemoryObj] = []
        for item, nbytes in enumerate(sizes):
            layout = self._engine.layout(keys[batch.positions[item]])
            tokens = layout.tokens_in(nbytes)
            if tokens is not None:
                # Not the busy loop that is the default: it would hold the event loop whose work frees memory.
                obj = self._cpu.allocate(layout.shapes(tokens), layout.dtypes(), layout.format, busy_loop=False)
                if obj is None:
                    logger.warning("kvstore: no CPU memory of LMCache for %d blocks", len(sizes) - item)
                    break
                chosen.append(item)
                objects.append(obj)
            elif prefix_only:
                break
        return chosen, objects

    async def _results(
        self,
        waiting: Sequence[tuple[asyncio.Future[Sequence[kvstore.Result]], list[int], list[MemoryObj]]],
        count: int,
    ) -> list[MemoryObj | None]:
        """Wait for loads; the objects of those that are late or cancelled are released when the kernel is done."""
        found: list[MemoryObj | None] = [None] * count
        if not waiting:
            return found
        try:
            await asyncio.wait([future for future, _, _ in waiting], timeout=self._timeout_s)
        except asyncio.CancelledError:
            for future, _, objects in waiting:
                if not self._jobs.abandon(future):
                    release(objects)
            raise
        for future, positions, objects in waiting:
            if self._jobs.abandon(future):
                logger.warning("kvstore: a load took over %.1f s; it is computed again", self._timeout_s)
                continue
            for position, obj, result in zip(positions, objects, future.result(), strict=True):
                if result and result.nbytes == obj.get_size():
                    found[position] = obj
                    continue
                if result.error is not None:
                    logger.warning("kvstore could not load a block, LMCache computes it again: %s", result.error)
                obj.ref_count_down()
        return found

    # ---- the rest ----

    async def list(self) -> list[str]:
        """Return the keys of this door in the pool, as LMCache writes them. Reads the device; not for the data path."""
        return await self._loop.run_in_executor(None, _key_texts, self._table)

    def remove_sync(self, key: CacheEngineKey) -> bool:
        batch = self._engine.batches([key])[0]
        return bool(batch.space.delete(batch.keys, salts=batch.salts)[0])

    def support_ping(self) -> bool:
        return True

    async def ping(self) -> int:
        """Return 0 when the pool answers, else 1."""
        try:
            self._pool.stats()
        except KvStoreError:
            return 1
        return 0

    async def close(self) -> None:
        """Drop what has not begun, wait for the rest at most ``close_timeout_s``, close the pool. Idempotent."""
        limit = self._door.close_timeout_s
        await self._jobs.close(limit)
        try:
            await self._loop.run_in_executor(None, self._pool.close, limit)
        except KvStoreError as error:
            logger.error("kvstore: the pool did not close cleanly: %s", error)

    def __repr__(self) -> str:
        return f"KVStoreConnector({', '.join(self._door.path)})"


def _key_texts(table: SpaceTable[Any]) -> list[str]:
    return [block.key.to_string() for block in table.blocks()]


class KVStoreConnectorAdapter(ConnectorAdapter):
    """Makes the connector for ``remote_storage_plugins: ["kvstore"]`` and for ``kvstore.<instance>``."""

    def __init__(self) -> None:
        super().__init__(_SCHEME + PLUGIN_TYPE)

    def can_parse(self, url: str) -> bool:
        return url.startswith(_SCHEME) and extract_plugin_type(url[len(_SCHEME) :]) == PLUGIN_TYPE

    def create_connector(self, context: ConnectorContext) -> RemoteConnector:
        name = context.plugin_name or context.url[len(_SCHEME) :]
        return KVStoreConnector(context.loop, context.local_cpu_backend, context.config, context.metadata, name)
