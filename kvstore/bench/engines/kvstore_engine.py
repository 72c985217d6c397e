# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""This store: a call of the batch API for each batch, and of those for single blocks where it is one block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import kvstore
from kvstore.bench.content import Buffers, whole_pages
from kvstore.bench.engines.base import Engine, Moved, Op, Work
from kvstore.bench.machine import fill_level
from kvstore.bench.places import device_bytes

__all__ = ["KvStoreEngine", "KvStoreThreads", "KvStoreUnverified"]

#: Of a region at least.
_BLOCKS_MIN = 4
#: What a block may end as.
_GOOD: dict[Op, frozenset[str]] = {
    "put": frozenset({"stored"}),
    "get": frozenset({"hit", "miss"}),
    "prefetch": frozenset({"hit", "miss"}),
}


class KvStoreEngine(Engine):
    """A pool in owner mode, which all threads share."""

    name = "kvstore"
    operations = frozenset({"get", "put", "prefetch", "lookup"})
    many_paths = True
    overlaps = True
    option_help: ClassVar[Mapping[str, str]] = {
        "verify_reads": "always, first_read or off (I5)",
        "device_kind": "auto, uring or threads",
        "region_bytes": "unit of reuse; chosen from the block size",
        "window_bytes": "in flight on a device at most",
    }
    #: Options that a variant of this engine has where the user gives none.
    defaults: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self.pool: kvstore.Pool | None = None

    def open(self, work: Work) -> None:
        self.work = work
        options = {**self.defaults, **work.options}
        kind = cast(Literal["auto", "uring", "threads"], options.get("device_kind", "auto"))
        files = [path for path in work.paths if not Path(path).is_block_device()]
        shape: dict[str, Any] = {
            # A file that is there already may be larger than is asked for, never smaller.
            "size": max(work.size_bytes, *(device_bytes(path) for path in files)) if files else None,
            "block_bytes": work.block_bytes,
            "min_block_bytes": min(whole_pages(min(work.block_sizes)), 256 * 1024),
            "force": True,
            "device_kind": kind,
        }
        geometry = kvstore.plan_format(work.paths, **shape)[0]["geometry"]
        region_bytes = options.get("region_bytes", _region_bytes(work, geometry))
        kvstore.format(work.paths, region_bytes=region_bytes, **shape)
        self.pool = kvstore.open(
            work.paths,
            verify=cast(Literal["always", "off"], options.get("verify_reads", "always")),
            device_kind=kind,
            window_bytes=options.get("window_bytes"),
            prefetch_bytes=max(2 * work.iodepth * work.numjobs * work.row_bytes, 256 << 20),
        )
        self.space = self.pool.space(engine="kvbench", seed=work.seed)

    def buffers(self) -> Buffers:
        assert self.pool is not None
        arena = self.pool.alloc(self.work.iodepth * self.work.row_bytes)
        return Buffers(self.work.iodepth, self.work.row_bytes, arena)

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Moved:
        if op == "lookup":
            return self.space.contains([self.key(number) for number in numbers])
        if len(numbers) == 1 and op != "prefetch":
            return self._one(op, self.key(numbers[0]), self._views(numbers, buffers)[0])
        return self.begin(op, numbers, buffers)()

    def begin(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Callable[[], Moved]:
        keys = [self.key(number) for number in numbers]
        if op == "lookup":
            found = self.space.contains(keys)
            return lambda: found
        if op == "prefetch":
            return partial(self._end, self.space.prefetch(keys), op)
        views = self._views(numbers, buffers)
        call = self.space.put_many if op == "put" else self.space.get_many
        return partial(self._end, call(keys, views), op, views)

    def _end(self, job: kvstore.Job, op: Op, views: Sequence[memoryview] = ()) -> Moved:
        results = job.wait()
        moved = [self._moved(op, result) for result in results]
        if op == "get":
            for result, view, hit in zip(results, views, moved, strict=True):
                if hit:
                    self._whole(result.nbytes, view)
        return moved

    def _views(self, numbers: Sequence[int], buffers: Buffers) -> list[memoryview]:
        if len(self.work.block_sizes) == 1:
            return buffers.views(self.work.block_bytes)[: len(numbers)]
        return [buffers.view(row, self.work.bytes_of(number)) for row, number in enumerate(numbers)]

    def _one(self, op: Op, key: bytes, view: memoryview) -> Moved:
        """A block at a time is what the calls for one block are for."""
        if op == "put":
            self._moved(op, self.space.put(key, view))
            return None
        found = self.space.get(key, view)
        if found is None:
            return [False]
        self._whole(found, view)
        return None

    @staticmethod
    def _whole(nbytes: int, view: memoryview) -> None:
        """A block of another length is not the one that was put: no miss, which a store may have at any time."""
        if nbytes != view.nbytes:
            raise RuntimeError(f"a get brought {nbytes} bytes, not {view.nbytes}")

    @staticmethod
    def key(number: int) -> bytes:
        """Of a block."""
        return b"block %12d" % number

    @staticmethod
    def _moved(op: Op, result: kvstore.Result) -> bool:
        """Whether it was. A put that found its key present wrote nothing, and would count as infinitely fast."""
        if result.status not in _GOOD[op]:
            raise RuntimeError(f"{op} of a block ended as {result.status} {result.code or ''}".rstrip())
        return result.status != "miss"

    def flush(self) -> None:
        assert self.pool is not None
        self.pool.flush()

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
            self.pool = None

    def staged(self) -> int | None:
        assert self.pool is not None
        return int(self.pool.stats()["prefetch_hits"])

    def facts(self) -> dict[str, Any]:
        assert self.pool is not None
        stats = self.pool.stats()
        put, payload, metadata = (
            int(stats[name]) for name in ("bytes_put", "bytes_written_payload", "bytes_written_metadata")
        )
        return {
            "version": kvstore.__version__,
            "path": ", ".join(f"{device['kind']} on {device['path']}" for device in self.pool.devices()),
            "fill_level": fill_level(stats),
            "write_amplification": (payload + metadata) / put if put else None,
            "stats": stats,
        }


def _region_bytes(work: Work, geometry: Mapping[str, int]) -> int:
    """What ``format`` chooses, or less in a small pool of several sizes. A region has blocks of one size, and an eighth
    of all is open at once: where there are few, a put of one size would seal the region of another, nearly empty.
    """
    region_bytes, regions = geometry["region_bytes"], geometry["region_count"]
    sizes = len({whole_pages(size) for size in work.block_sizes})
    wanted = 8 * (sizes + 1) if sizes > 1 else 0
    while regions < wanted and region_bytes // 2 >= _BLOCKS_MIN * work.row_bytes:
        region_bytes, regions = region_bytes // 2, regions * 2
    return region_bytes


class KvStoreThreads(KvStoreEngine):
    """With threads in the place of io_uring, as where a container forbids it."""

    name = "kvstore-threads"
    defaults: ClassVar[Mapping[str, str]] = {"device_kind": "threads"}


class KvStoreUnverified(KvStoreEngine):
    """Without checking checksums (I5), which no rival below has."""

    name = "kvstore-unverified"
    defaults: ClassVar[Mapping[str, str]] = {"verify_reads": "off"}
