# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""LMCache's in-process mode on a kvstore pool: a remote connector and the adapter that makes it.

Every coroutine runs on LMCache's one event loop. Buffers come from LMCache's CPU backend.

Contract of LMCache that shows here: ``put`` does not drop the caller's reference (a wrapper around every connector
does); nothing pins a key, so one may vanish between ``contains`` and ``get`` and is None then; a batch must be back
within ``blocking_timeout_secs``, or the whole request is computed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat, MemoryObj
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector import ConnectorAdapter, ConnectorContext, extract_plugin_type
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

from kvstore.errors import KvStoreError
from kvstore.lmcache import compat
from kvstore.lmcache.connector_config import door_config
from kvstore.lmcache.engine_store import EngineStore

PLUGIN_TYPE = "kvstore"
_SCHEME = "plugin://"


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
        self._store = EngineStore(
            loop, self._door, config, metadata, allocate=self._allocate, buffer_of=compat.buffer_of, serialized=True
        )
        self._pool = self._store.pool

    def _allocate(
        self, shapes: list[torch.Size], dtypes: list[torch.dtype | None], form: MemoryFormat
    ) -> MemoryObj | None:
        # Not the busy loop that is the default: it would hold the event loop whose work frees memory.
        return self._cpu.allocate(shapes, dtypes, form, busy_loop=False)

    # ---- presence ----

    async def exists(self, key: CacheEngineKey) -> bool:
        return self.exists_sync(key)

    def exists_sync(self, key: CacheEngineKey) -> bool:
        return self.batched_contains([key]) == 1

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: list[CacheEngineKey]) -> int:
        """Return how many keys from the first one on are there. No I/O; safe from any thread."""
        return self._store.leading_run(keys)

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
        _, error = await self._store.put(keys, memory_objs)
        if error is not None:
            raise KvStoreError(f"not all of {len(keys)} blocks were stored, the first error: {error}") from error

    # ---- get ----

    async def get(self, key: CacheEngineKey) -> MemoryObj | None:
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: list[CacheEngineKey]) -> list[MemoryObj | None]:
        """Load objects; None for what is missing, cannot be read, or has no room in LMCache's CPU memory.

        The objects handed out are the caller's, with one reference each.
        """
        return await self._store.load(keys)

    def support_batched_get_non_blocking(self) -> bool:
        return True

    async def batched_get_non_blocking(self, lookup_id: str, keys: list[CacheEngineKey]) -> list[MemoryObj]:
        """Load the objects from the first key on, up to the first that is not there."""
        return await self._store.load_prefix(keys)

    # ---- the rest ----

    async def list(self) -> list[str]:
        """Return the keys of this door in the pool, as LMCache writes them. Reads the device; not for the data path."""
        return await self._loop.run_in_executor(None, self._store.keys)

    def remove_sync(self, key: CacheEngineKey) -> bool:
        return self._store.remove(key)

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
        await self._store.close()

    def __repr__(self) -> str:
        return f"KVStoreConnector({', '.join(self._door.path)})"


class KVStoreConnectorAdapter(ConnectorAdapter):
    """Makes the connector for ``remote_storage_plugins: ["kvstore"]`` and for ``kvstore.<instance>``."""

    def __init__(self) -> None:
        super().__init__(_SCHEME + PLUGIN_TYPE)

    def can_parse(self, url: str) -> bool:
        return url.startswith(_SCHEME) and extract_plugin_type(url[len(_SCHEME) :]) == PLUGIN_TYPE

    def create_connector(self, context: ConnectorContext) -> RemoteConnector:
        name = context.plugin_name or context.url[len(_SCHEME) :]
        return KVStoreConnector(context.loop, context.local_cpu_backend, context.config, context.metadata, name)
