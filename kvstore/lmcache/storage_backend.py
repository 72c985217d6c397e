# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""KVStoreStorageBackend: LMCache's in-process mode on a kvstore pool, with memory of its own, as its GdsBackend has it.

The memory is the worker's GPU's, so that what is loaded lands there and LMCache copies it to the KV cache within the
GPU. Where LMCache has no GPU it is memory of the host that the device queues know. What is stored LMCache copies into
it, out of its own memory.

Guarantees: no call raises into LMCache once this is made, but for bugs; what does not come is None. A key is stored
once at a time. Memory that the kernel may still write to is never given back (I11).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

import torch
from lmcache.logging import init_logger
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_allocators.gpu_memory_allocator import GPUMemoryAllocator
from lmcache.v1.memory_allocators.tensor_memory_allocator import TensorMemoryAllocator
from lmcache.v1.memory_management import MemoryAllocatorInterface, MemoryFormat, MemoryObj
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.abstract_backend import AllocatorBackendInterface, StoragePluginInterface

from kvstore.errors import ConfigError, KvStoreError
from kvstore.lmcache import compat
from kvstore.lmcache.connector_config import storage_config
from kvstore.lmcache.engine_store import EngineStore

logger = init_logger(__name__)

_ALIGN_BYTES = 4096
_ALLOCATE_ATTEMPTS = 10
_ALLOCATE_WAIT_S = 0.1
_MARGIN_S = 10.0  # of a wait for the event loop, beyond what its work takes at most

Answer = TypeVar("Answer")
Shapes: TypeAlias = torch.Size | list[torch.Size]
Dtypes: TypeAlias = torch.dtype | list[torch.dtype]

# Memory that a device may still write to after its backend was closed. Held for the life of the process (I11).
_leaked: list[Any] = []


class _Allocator(GPUMemoryAllocator):
    """LMCache's allocator of GPU memory, on memory that it is given."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.allocator = TensorMemoryAllocator(tensor, align_bytes=_ALIGN_BYTES)
        self.device_mem_lock = threading.Lock()

    def __str__(self) -> str:
        return "KVStoreMemoryAllocator"


class KVStoreStorageBackend(StoragePluginInterface, AllocatorBackendInterface):
    """Storage plugin of LMCache's in-process mode.

    Parameters
    ----------
    config, metadata, loop : LMCache's; ``local_cpu`` must be false.
    dst_device : where the KV cache is; ``cuda…``: objects are in that GPU's memory.
    local_cpu_backend : unused: this backend has memory of its own.

    Raises
    ------
    ConfigError : a bad setting; the message names it.
    KvStoreError : the pool cannot be opened.
    """

    def __init__(
        self,
        config: LMCacheEngineConfig,
        metadata: LMCacheMetadata,
        loop: asyncio.AbstractEventLoop,
        local_cpu_backend: Any = None,
        dst_device: str = "cpu",
    ) -> None:
        super().__init__(dst_device, config, metadata, local_cpu_backend, loop)
        if config.local_cpu:
            raise ConfigError(
                "local_cpu must be false beside KVStoreStorageBackend: LMCache's CPU cache would keep what it loaded "
                "here, in this backend's buffer, until that is full"
            )
        self._loop = loop
        self._door = storage_config(config, metadata, type(self).__name__)
        self._is_on_gpu = dst_device.startswith("cuda")
        self._store = EngineStore(
            loop,
            self._door,
            config,
            metadata,
            allocate=self._allocate_now,
            buffer_of=compat.DeviceBuffer if self._is_on_gpu else compat.buffer_of,
            serialized=False,
        )
        self._is_closed = False
        self._putting: set[CacheEngineKey] = set()
        self._put_lock = threading.Lock()
        self._allocator: _Allocator | None = None
        if metadata.role != "scheduler":  # which only asks what is there
            try:
                self._allocator = self.initialize_allocator(config, metadata)
            except BaseException:
                self._store.pool.close()
                raise

    def __str__(self) -> str:
        return type(self).__name__

    # ---- presence ----

    def contains(self, key: CacheEngineKey, pin: bool = False) -> bool:
        return self.batched_contains([key], pin) == 1

    def batched_contains(self, keys: list[CacheEngineKey], pin: bool = False) -> int:
        """Return how many keys from the first one on are there, pinned if asked to. No I/O."""
        try:
            return self._store.leading_run(keys, pin)
        except KvStoreError as error:
            logger.warning("kvstore cannot look up %d blocks, they are misses: %s", len(keys), error)
            return 0

    async def batched_async_contains(self, lookup_id: str, keys: list[CacheEngineKey], pin: bool = False) -> int:
        return self.batched_contains(keys, pin)

    def pin(self, key: CacheEngineKey) -> bool:
        return self.contains(key, pin=True)

    def unpin(self, key: CacheEngineKey) -> bool:
        try:
            self._store.unpin(key)
        except KvStoreError as error:
            logger.warning("kvstore cannot unpin a block: %s", error)
            return False
        return True

    def remove(self, key: CacheEngineKey, force: bool = True) -> bool:
        """Delete a block. One that is pinned stays."""
        try:
            return self._store.remove(key)
        except KvStoreError as error:
            logger.warning("kvstore cannot delete a block: %s", error)
            return False

    # ---- put ----

    def exists_in_put_tasks(self, key: CacheEngineKey) -> bool:
        with self._put_lock:
            return key in self._putting

    def batched_submit_put_task(
        self,
        keys: Sequence[CacheEngineKey],
        objs: list[MemoryObj],
        transfer_spec: Any = None,
        on_complete_callback: Callable[[CacheEngineKey], None] | None = None,
    ) -> list[Future[None]] | None:
        """Start storing objects. Their references stay the caller's; one more is held until they are stored.

        Returns
        -------
        one future for all; None: all are on their way already, or the event loop has ended.
        """
        chosen = []
        with self._put_lock:
            for key, obj in zip(keys, objs, strict=False):
                if key not in self._putting:
                    self._putting.add(key)
                    chosen.append((key, obj))
        if not chosen:
            return None
        for _, obj in chosen:
            obj.ref_count_up()
        future = self._submit(self._put(chosen, on_complete_callback))
        if future is None:
            self._put_ended(chosen)
            return None
        return [future]

    async def _put(
        self,
        chosen: Sequence[tuple[CacheEngineKey, MemoryObj]],
        on_complete_callback: Callable[[CacheEngineKey], None] | None,
    ) -> None:
        try:
            stored, error = await self._store.put([key for key, _ in chosen], [obj for _, obj in chosen])
            if error is not None:
                logger.warning("kvstore did not store all of %d blocks, the first error: %s", len(chosen), error)
        finally:
            self._put_ended(chosen)
        for (key, _), is_stored in zip(chosen, stored, strict=True):
            if is_stored and on_complete_callback is not None:
                try:
                    on_complete_callback(key)
                except Exception as failed:  # noqa: BLE001 - LMCache's, which wants it logged
                    logger.error("a callback of LMCache's failed for %s: %s", key.to_string(), failed)

    def _put_ended(self, chosen: Sequence[tuple[CacheEngineKey, MemoryObj]]) -> None:
        for _, obj in chosen:
            obj.ref_count_down()
        with self._put_lock:
            self._putting.difference_update(key for key, _ in chosen)

    # ---- get ----

    def get_blocking(self, key: CacheEngineKey) -> MemoryObj | None:
        return self.batched_get_blocking([key])[0]

    def batched_get_blocking(self, keys: list[CacheEngineKey]) -> list[MemoryObj | None]:
        """Load objects; None for what is missing, cannot be read in time, or has no room in the buffer.

        The objects handed out are the caller's, with one reference each. Not on the event loop's thread.
        """
        found: list[MemoryObj | None] = [None] * len(keys)
        return self._wait(self._store.load(keys), self._store.timeout_s, found)

    async def batched_get_non_blocking(
        self, lookup_id: str, keys: list[CacheEngineKey], transfer_spec: Any = None
    ) -> list[MemoryObj]:
        return await self._store.load_prefix(keys)

    def _submit(self, work: Coroutine[Any, Any, Answer]) -> Future[Answer] | None:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop is closed
            work.close()
            return None

    def _wait(self, work: Coroutine[Any, Any, Answer], timeout_s: float, otherwise: Answer) -> Answer:
        """The answer of work on the event loop, or ``otherwise`` when it does not come in time."""
        future = self._submit(work)
        if future is None:
            return otherwise
        try:
            return future.result(timeout_s + _MARGIN_S)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            future.cancel()
            logger.error("kvstore: LMCache's event loop did not answer within %.1f s", timeout_s + _MARGIN_S)
        except KvStoreError as error:
            logger.error("kvstore: %s", error)
        return otherwise

    # ---- memory ----

    def initialize_allocator(self, config: LMCacheEngineConfig, metadata: LMCacheMetadata) -> _Allocator:
        nbytes = self._door.buffer_bytes
        if self._is_on_gpu:
            return _Allocator(compat.device_buffer(nbytes, self.dst_device))
        return _Allocator(torch.frombuffer(self._store.pool.alloc(nbytes), dtype=torch.uint8))

    def get_memory_allocator(self) -> MemoryAllocatorInterface:
        if self._allocator is None:
            raise ConfigError("the scheduler's part of KVStoreStorageBackend has no memory")
        return self._allocator

    def get_allocator_backend(self) -> AllocatorBackendInterface:
        return self

    def _allocate_now(
        self, shapes: list[torch.Size], dtypes: list[torch.dtype | None], form: MemoryFormat
    ) -> MemoryObj | None:
        return self.get_memory_allocator().allocate(shapes, dtypes, form)

    def allocate(
        self,
        shapes: Shapes,
        dtypes: Dtypes,
        fmt: MemoryFormat = MemoryFormat.KV_2LTD,
        eviction: bool = True,
        busy_loop: bool = True,
    ) -> MemoryObj | None:
        """Allocate one object; with ``busy_loop`` wait up to a second until others are given back."""
        return self._waiting(lambda: self.get_memory_allocator().allocate(shapes, dtypes, fmt), busy_loop)

    def batched_allocate(
        self,
        shapes: Shapes,
        dtypes: Dtypes,
        batch_size: int,
        fmt: MemoryFormat = MemoryFormat.KV_2LTD,
        eviction: bool = True,
        busy_loop: bool = True,
    ) -> list[MemoryObj] | None:
        """Allocate several equal objects, or none; as :meth:`allocate`."""
        return self._waiting(
            lambda: self.get_memory_allocator().batched_allocate(shapes, dtypes, batch_size, fmt), busy_loop
        )

    @staticmethod
    def _waiting(allocate: Callable[[], Answer | None], busy_loop: bool) -> Answer | None:
        for attempt in range(_ALLOCATE_ATTEMPTS if busy_loop else 1):
            if attempt:
                time.sleep(_ALLOCATE_WAIT_S)
            allocated = allocate()
            if allocated is not None:
                return allocated
        return None

    def calculate_chunk_budget(self) -> int:
        """Return how many whole chunks the buffer holds."""
        assert self.metadata is not None
        chunk_bytes = sum(
            shape.numel() * dtype.itemsize
            for shape, dtype in zip(
                self.metadata.get_shapes(self.metadata.chunk_size), self.metadata.get_dtypes(), strict=True
            )
        )
        return int(self._door.buffer_bytes // (-(-chunk_bytes // _ALIGN_BYTES) * _ALIGN_BYTES))

    # ---- end ----

    def close(self) -> None:
        """Drop what has not begun, wait for the rest at most ``close_timeout_s``, close the pool. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._wait(self._store.close(), self._door.close_timeout_s, False):
            logger.error("kvstore: objects may still be written to, their memory stays")
            _leaked.append((self._store, self._allocator))
