# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""EngineStore: a pool as the doors of LMCache's in-process mode use it, whoever allocates the memory of its objects.

Every coroutine runs on LMCache's one event loop and never blocks it: a batch is one job of the store. Buffers come
from an allocator of LMCache's and go back to it on every path that does not hand them out.

Guarantees: an object handed out is what was put, as long, and of the same layout; the memory of a load whose wait ended
goes back when the kernel is done with it (I11).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lmcache.logging import init_logger
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat, MemoryObj
from lmcache.v1.metadata import LMCacheMetadata

import kvstore
from kvstore.errors import KvStoreError
from kvstore.lmcache.chain import ChainTable
from kvstore.lmcache.config import DoorConfig
from kvstore.lmcache.engine_spaces import EngineBatch, EngineSpaces, with_hash
from kvstore.lmcache.keys import CONNECTOR_DOOR, engine_key, engine_key_bytes
from kvstore.lmcache.layout import describe_object, pack_meta
from kvstore.lmcache.loop_jobs import LoopJobs, release
from kvstore.lmcache.spaces import SpaceTable

logger = init_logger(__name__)

# A batch answers within this share of LMCache's own time limit: after it, LMCache throws the answer away.
_TIME_SHARE = 0.9

Allocate = Callable[[list[torch.Size], list[torch.dtype | None], MemoryFormat], MemoryObj | None]


class EngineStore:
    """A pool behind one engine.

    Parameters
    ----------
    loop : LMCache's event loop; every coroutine of this object runs on it.
    door : the settings.
    config, metadata : of the engine.
    allocate : gives memory for an object that is to be loaded, without waiting; None: there is none.
    buffer_of : what the store reads from or writes to for an object.
    serialized : objects may be what LMCache's serializer makes of them.

    Attributes
    ----------
    pool : the pool.
    timeout_s : how long a load takes at most.

    Raises
    ------
    KvStoreError : the pool cannot be opened.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        door: DoorConfig,
        config: LMCacheEngineConfig,
        metadata: LMCacheMetadata,
        *,
        allocate: Allocate,
        buffer_of: Callable[[MemoryObj], Any],
        serialized: bool,
    ) -> None:
        self._loop = loop
        self._door = door
        self._allocate_object = allocate
        self._buffer_of = buffer_of
        of_lmcache = float(config.blocking_timeout_secs) * _TIME_SHARE
        self.timeout_s = min(door.load_timeout_s or of_lmcache, of_lmcache)
        self._chain: ChainTable[int | bytes] = ChainTable(door.chain_entries)
        self._misfits = 0
        self.pool = kvstore.open(list(door.path), **door.open_options())
        self._table = SpaceTable(self.pool, CONNECTOR_DOOR, door.identity, engine_key)
        self._engine = EngineSpaces(self._table, config, metadata, serialized=serialized)
        self._queue = self.pool.queue()
        self._jobs = LoopJobs(loop, self._queue)

    def leading_run(self, keys: Sequence[CacheEngineKey], pin: bool = False) -> int:
        """Return how many keys from the first one on are there; ``pin`` those. No I/O; safe from any thread."""
        if len(keys) > 1:
            self._chain.learn([key.chunk_hash for key in keys])
        run = len(keys)
        for batch in self._engine.batches(keys):
            found = batch.space.match_prefix(batch.keys, pin, salts=batch.salts)
            if found < len(batch.keys):
                run = min(run, batch.positions[found])
        return run

    def unpin(self, key: CacheEngineKey) -> None:
        """Undo one pin. Safe from any thread."""
        batch = self._engine.batches([key])[0]
        batch.space.unpin(batch.keys, salts=batch.salts)

    async def put(
        self, keys: Sequence[CacheEngineKey], memory_objs: Sequence[MemoryObj]
    ) -> tuple[list[bool], KvStoreError | None]:
        """Store objects; their references stay the caller's.

        Returns
        -------
        for each whether it is there now, and the first error. One that does not fit the engine's layout is no error.
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
            waiting.append((self._jobs.watch(job, part, release_at_end=True), batch.positions))
        stored = [False] * len(keys)
        for future, positions in waiting:
            for position, result in zip(positions, await future, strict=True):
                stored[fitting[position]] = bool(result)
                if result.error is not None:
                    errors.append(result.error)
        return stored, errors[0] if errors else None

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
            [self._buffer_of(obj) for obj in objects],
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

    async def load(self, keys: Sequence[CacheEngineKey], *, prefix_only: bool = False) -> list[MemoryObj | None]:
        """Load objects; None for what is missing, cannot be read, or has no memory.

        With ``prefix_only`` nothing after the first that is not there need be loaded. The objects handed out are the
        caller's, with one reference each.
        """
        waiting: list[tuple[asyncio.Future[Sequence[kvstore.Result]], list[int], list[MemoryObj]]] = []
        for batch in self._engine.batches(keys):
            chosen, objects = self._allocate(batch, keys, prefix_only)
            if not chosen:
                continue
            try:
                job = batch.space.get_many(
                    [batch.keys[item] for item in chosen],
                    [self._buffer_of(obj) for obj in objects],
                    salts=[batch.salts[item] for item in chosen],
                    queue=self._queue,
                )
            except KvStoreError as error:
                logger.warning("kvstore refused to load %d blocks: %s", len(chosen), error)
                release(objects)
                continue
            waiting.append((self._jobs.watch(job, objects), [batch.positions[item] for item in chosen], objects))
        return await self._results(waiting, len(keys))

    async def load_prefix(self, keys: Sequence[CacheEngineKey]) -> list[MemoryObj]:
        """Load the objects from the first key on, up to the first that is not there."""
        found = await self.load(keys, prefix_only=True)
        run = next((i for i, obj in enumerate(found) if obj is None), len(found))
        release([obj for obj in found[run:] if obj is not None])
        return [obj for obj in found[:run] if obj is not None]

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
                obj = self._allocate_object(layout.shapes(tokens), layout.dtypes(), layout.format)
                if obj is None:
                    logger.warning("kvstore: no memory of LMCache's for %d blocks", len(sizes) - item)
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
            await asyncio.wait([future for future, _, _ in waiting], timeout=self.timeout_s)
        except asyncio.CancelledError:
            for future, _, objects in waiting:
                if not self._jobs.abandon(future):
                    release(objects)
            raise
        for future, positions, objects in waiting:
            if self._jobs.abandon(future):
                logger.warning("kvstore: a load took over %.1f s; it is computed again", self.timeout_s)
                continue
            for position, obj, result in zip(positions, objects, future.result(), strict=True):
                if result and result.nbytes == obj.get_size():
                    found[position] = obj
                    continue
                if result.error is not None:
                    logger.warning("kvstore could not load a block, LMCache computes it again: %s", result.error)
                obj.ref_count_down()
        return found

    def keys(self) -> list[str]:
        """Return the keys of this door in the pool, as LMCache writes them. Reads the device."""
        return [block.key.to_string() for block in self._table.blocks()]

    def remove(self, key: CacheEngineKey) -> bool:
        """Delete a block; whether it was there. Safe from any thread."""
        batch = self._engine.batches([key])[0]
        return bool(batch.space.delete(batch.keys, salts=batch.salts)[0])

    async def close(self) -> bool:
        """Drop what has not begun, wait for the rest at most ``close_timeout_s``, close the pool. Idempotent.

        Returns
        -------
        whether nothing can touch memory of objects any more.
        """
        limit = self._door.close_timeout_s
        await self._jobs.close(limit)
        try:
            await self._loop.run_in_executor(None, self.pool.close, limit)
        except KvStoreError as error:
            logger.error("kvstore: the pool did not close cleanly: %s", error)
            return False
        return True
