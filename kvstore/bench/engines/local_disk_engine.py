# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""LMCache's ``LocalDiskBackend``: a file for each block, written and read by its thread pools.

Called as its storage manager does: a batch of puts is submitted and then waited for, a batch of gets is one
``batched_get_blocking``. Memory that LMCache would allocate is the caller's rows here, and it has as many threads as
blocks are in flight (``disk_io_threads``, 4 by default): both in its favour. O_DIRECT (``use_odirect``) unless
``direct=0``, which is LMCache's default; sizes that are not whole pages go through the page cache either way. It evicts
first in, first out.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any, ClassVar

from kvstore.bench.content import Buffers
from kvstore.bench.engines.base import Op, Work
from kvstore.bench.engines.folder import Folder, FolderEngine, direct_io
from kvstore.bench.engines.lmcache_rows import RowObject, RowObjects, quiet_lmcache, why_no_lmcache

__all__ = ["LocalDiskEngine"]

_GIB = 1 << 30
_DEFAULT_THREADS = 4
_PATIENCE_S = 120.0


class _RowsInTurn:
    """In the place of LMCache's CPU backend: what is allocated is the calling thread's next row."""

    def __init__(self) -> None:
        self._mine = threading.local()

    def use(self, objects: Sequence[RowObject]) -> None:
        """What the next calls of this thread are given."""
        self._mine.rows = iter(objects)

    def allocate(self, *_shape_dtype_format: Any, **_how: Any) -> RowObject:
        """A row; its size is that of the block that is asked for."""
        rows: Iterator[RowObject] = self._mine.rows
        return next(rows)


class LocalDiskEngine(FolderEngine):
    """One backend, which all threads share."""

    name = "lmcache-local-disk"
    operations = frozenset({"get", "put", "lookup"})
    option_help: ClassVar[Mapping[str, str]] = {
        "direct": "1: O_DIRECT; 0: through the page cache",
        "threads": "disk_io_threads; as many as blocks are in flight, 4 at least",
    }

    def __init__(self) -> None:
        self.backend: Any = None
        self.objects = RowObjects(self._describe)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None

    def why_not(self) -> str | None:
        return why_no_lmcache()

    def open(self, work: Work) -> None:
        quiet_lmcache()
        self.torch = import_module("torch")
        self.key_class = import_module("lmcache.utils").CacheEngineKey
        self.memory_format = import_module("lmcache.v1.memory_management").MemoryFormat.BINARY_BUFFER
        self.work = work
        self.direct = direct_io(work)
        self.folder = Folder(work)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        config = import_module("lmcache.v1.config").LMCacheEngineConfig.from_defaults(
            chunk_size=256,
            local_cpu=False,
            local_disk=str(self.path),
            max_local_disk_size=max(work.size_bytes, work.population * work.row_bytes) / _GIB,
            cache_policy="FIFO",
            extra_config={
                "use_odirect": self.direct,
                "disk_io_threads": int(work.options.get("threads", max(work.iodepth * work.numjobs, _DEFAULT_THREADS))),
            },
        )
        self.rows = _RowsInTurn()
        module = import_module("lmcache.v1.storage_backend.local_disk_backend")
        self.backend = module.LocalDiskBackend(config, self.loop, self.rows, dst_device="cpu")

    def _key(self, number: int) -> Any:
        return self.key_class("kvbench", 1, 0, number + 1, self.torch.uint8)

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        keys = [self._key(number) for number in numbers]
        if op == "lookup":
            return [self.backend.contains(key) for key in keys]
        objects = [self.objects.of(buffers, row, self.work.bytes_of(number)) for row, number in enumerate(numbers)]
        if op == "put":
            self._put(keys, objects)
            return None
        there = [self.backend.contains(key) for key in keys]
        self.rows.use([one for one, hit in zip(objects, there, strict=True) if hit])
        return [found is not None for found in self.backend.batched_get_blocking(keys)]

    def _describe(self, nbytes: int) -> tuple[Any, Any, Any]:
        return self.torch.Size([nbytes]), self.torch.uint8, self.memory_format

    def _put(self, keys: Sequence[Any], objects: Sequence[RowObject]) -> None:
        written = threading.Semaphore(0)
        self.backend.batched_submit_put_task(keys, objects, on_complete_callback=lambda _key: written.release())
        for _ in keys:
            # A write that fails is told to nobody.
            if not written.acquire(timeout=_PATIENCE_S):
                raise RuntimeError(f"a block was not written within {_PATIENCE_S:.0f} s; LMCache's log says why")

    def close(self) -> None:
        self.objects.clear()
        if self.backend is not None:
            self.backend.close()
            self.backend = None
        if self.loop is not None and self.thread is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()
            self.loop = self.thread = None
        super().close()

    def facts(self) -> dict[str, Any]:
        path = "O_DIRECT" if self.direct else "page cache, empty after filling"
        return {"version": f"lmcache {version('lmcache')}", "path": f"a file for each block, {path}"}
