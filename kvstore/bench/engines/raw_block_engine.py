# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""LMCache's ``raw_block``: slots on its Rust device, an index in Python; called as its L2 adapter does.

One call of its core for each batch; with io_uring the rows are registered as fixed buffers. Its periodic checkpoint is
off, and what LMCache's controller evicts in the background is deleted here before a put that needs the slots. A
payload has no checksum.
"""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any, ClassVar

from kvstore.bench.content import Buffers
from kvstore.bench.engines.base import Engine, Op, Work
from kvstore.bench.engines.lmcache_rows import RowObjects, quiet_lmcache, why_no_lmcache
from kvstore.bench.places import grow, sync, usable_bytes

__all__ = ["RawBlockPosix", "RawBlockUring"]

MIB = 1 << 20
_HEADER_BYTES = 4096
_META_BYTES = 16 * MIB


class RawBlockPosix(Engine):
    """One file or device. A batch is read block after block: so does LMCache."""

    name = "raw_block-posix"
    operations = frozenset({"get", "put", "lookup"})
    io_engine: ClassVar[str] = "posix"

    def __init__(self) -> None:
        self.core: Any = None
        self.objects = RowObjects()

    def why_not(self) -> str | None:
        return why_no_lmcache("lmcache_rust_raw_block_io")

    def open(self, work: Work) -> None:
        quiet_lmcache()
        raw_block = import_module("lmcache.v1.storage_backend.raw_block.core")
        self.key_spec = import_module("lmcache.v1.storage_backend.raw_block.key_codec").RawBlockKeySpec
        self.work = work
        grow(work.paths[0], work.size_bytes)
        capacity = usable_bytes(work.paths[0], work.size_bytes)
        slot_bytes = work.row_bytes + _HEADER_BYTES
        self.slots = (capacity - _META_BYTES) // slot_bytes
        if self.slots < work.population:
            raise RuntimeError(f"{work.paths[0]} has room for {self.slots} slots, not for {work.population}")
        self.core = raw_block.RawBlockCore(
            raw_block.RawBlockCoreConfig(
                device_path=work.paths[0],
                capacity_bytes=capacity,
                block_align=4096,
                header_bytes=_HEADER_BYTES,
                slot_bytes=slot_bytes,
                use_odirect=True,
                enable_zero_copy=True,
                meta_total_bytes=_META_BYTES,
                meta_magic=b"LMCIDX01",
                meta_version=1,
                meta_checkpoint_interval_sec=3600,
                meta_idle_quiet_ms=100,
                meta_enable_periodic=False,
                meta_verify_on_load=True,
                load_checkpoint_on_init=False,
                io_engine=self.io_engine,
                iouring_queue_depth=256,
            ),
            key_namespace="object",
        )
        self.there: deque[int] = deque()
        self.free = self.slots
        self._lock = threading.Lock()

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        if op == "lookup":
            found: list[bool] = self.core.exists_many([_key(number) for number in numbers])
            return found
        objects = [self.objects.of(buffers, row, self.work.bytes_of(number)) for row, number in enumerate(numbers)]
        if op == "get":
            loaded: list[bool] = self.core.load_many_into([_key(number) for number in numbers], objects)
            return loaded
        self._make_room(len(numbers))
        stored = self.core.put_many([self.key_spec(_key(number), number + 1) for number in numbers], objects)
        if not all(stored.results):
            raise RuntimeError(f"put_many stored {sum(stored.results)} of {len(numbers)} blocks")
        with self._lock:
            self.there.extend(numbers)
        return None

    def _make_room(self, count: int) -> None:
        with self._lock:
            self.free -= count
            oldest = [self.there.popleft() for _ in range(min(max(-self.free, 0), len(self.there)))]
            self.free += len(oldest)
        if oldest:
            self.core.delete_many([_key(number) for number in oldest])

    def flush(self) -> None:
        """Its core syncs with its checkpoint only, which is off."""
        sync(self.work.paths[0])

    def close(self) -> None:
        self.objects.clear()
        if self.core is not None:
            self.core.close()
            self.core = None

    def facts(self) -> dict[str, Any]:
        return {"version": f"lmcache {version('lmcache')}", "path": f"{self.io_engine}, O_DIRECT, no checksum"}


class RawBlockUring(RawBlockPosix):
    """The whole batch in flight, through its worker thread."""

    name = "raw_block-io_uring"
    io_engine = "io_uring"

    def open(self, work: Work) -> None:
        super().open(work)
        self.fixed_buffers = "registered"
        self.left = list(range(work.numjobs))
        # It can register one range, so the rows of all workers lie in one.
        self.arena = memoryview(mmap.mmap(-1, work.numjobs * work.iodepth * work.row_bytes))
        whole = Buffers(1, self.arena.nbytes, self.arena)
        try:
            self.core.register_fixed_buffer_range(whole.address(0), self.arena.nbytes)
        except Exception as error:  # noqa: BLE001 - its extension's own; without, it is slower and not wrong
            self.fixed_buffers = f"not registered: {error}"

    def buffers(self) -> Buffers:
        nbytes = self.work.iodepth * self.work.row_bytes
        begin = self.left.pop() * nbytes
        return Buffers(self.work.iodepth, self.work.row_bytes, self.arena[begin : begin + nbytes])

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"fixed_buffers": self.fixed_buffers}


def _key(number: int) -> str:
    return f"block-{number}"
