# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Replay of a trace against the store itself: a real pool in a file, with blocks of another size.

Each request does what an engine does: matches its prefix, reads that run, puts what follows. Every block that is read
is compared with what was put under its key.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import kvstore
from kvstore.errors import ConfigError
from kvstore.replay.simulate import Admission, Result, Served
from kvstore.replay.trace import Trace

__all__ = ["StoreRun", "default_payload_bytes", "run_on_store"]

_PAGE = 4096
_REGION_BYTES_MIN = 64 << 10
_METADATA_OFFSET = 32 << 20
_DATA_ALIGNMENT = 1 << 20


@dataclass(frozen=True)
class StoreRun:
    """What a run counted, and what the pool says of itself."""

    result: Result
    payload_bytes: int
    regions: int
    blocks_per_region: int
    bytes_wrong: int  # of blocks read that are not what was put
    stats: dict[str, Any] = field(repr=False)

    def amplification(self, block_bytes: int) -> float:
        """Bytes written per byte put, for blocks of this size; 1 where none was put. Metadata counts, and does not grow
        with the blocks.
        """
        if not self.stats["bytes_put"]:
            return 1.0
        payload = self.stats["bytes_written_payload"] / self.stats["bytes_put"]
        return float(payload + self.stats["bytes_written_metadata"] / (self.stats["puts_stored"] * block_bytes))


def default_payload_bytes(blocks_per_region: int) -> int:
    """The smallest payload of whole pages with which a region is as large as it must be."""
    return max(-(-_REGION_BYTES_MIN // blocks_per_region // _PAGE) * _PAGE, _PAGE)


def run_on_store(
    trace: Trace,
    path: str | os.PathLike[str],
    capacity_blocks: int,
    blocks_per_region: int,
    *,
    payload_bytes: int | None = None,
    admission: Admission = Admission.ALL,
    **options: Any,
) -> StoreRun:
    """Make a pool of just this capacity, and replay a trace against it.

    Parameters
    ----------
    trace : its requests, one after the other, as fast as they go.
    path : of the file to make; it is left there.
    capacity_blocks, blocks_per_region : of the pool.
    payload_bytes : of one block, a multiple of 4 KiB; by default as small as regions may be.
    admission : which blocks are put.
    options : of :func:`kvstore.open`.

    Raises
    ------
    ConfigError : a size that cannot be.
    KvStoreError : of making and opening the pool, and of any block that could not be read or put.
    """
    payload_bytes = default_payload_bytes(blocks_per_region) if payload_bytes is None else payload_bytes
    if payload_bytes < _PAGE or payload_bytes % _PAGE:
        raise ConfigError(f"payload_bytes is {payload_bytes}: allowed are multiples of 4 KiB")
    regions = max(capacity_blocks // blocks_per_region, 1)
    _make_pool(path, regions, blocks_per_region * payload_bytes, payload_bytes)
    with kvstore.open(path, **options) as pool:
        replay = _Replay(pool, trace, payload_bytes)
        for request in trace.requests:
            replay.serve(request.blocks, admission.keep(request, trace.block_tokens))
        pool.flush()
        stats = pool.stats()
    result = Result("store", trace.lookups, int(stats["puts_stored"]), 0, replay.served)
    return StoreRun(result, payload_bytes, regions, blocks_per_region, replay.bytes_wrong, stats)


def _make_pool(path: str | os.PathLike[str], regions: int, region_bytes: int, payload_bytes: int) -> None:
    """Format a file that has room for so many regions and not one more."""
    roomy = _METADATA_OFFSET + 2 * regions * region_bytes + (64 << 20)
    plan = kvstore.plan_format(path, size=roomy, region_bytes=region_bytes, min_block_bytes=payload_bytes)
    metadata_end = _METADATA_OFFSET + regions * plan[0]["geometry"]["entry_bytes"]
    data_offset = -(-metadata_end // _DATA_ALIGNMENT) * _DATA_ALIGNMENT
    size = data_offset + regions * region_bytes + _PAGE
    made = kvstore.format(path, size=size, region_bytes=region_bytes, min_block_bytes=payload_bytes)
    found = made[0]["geometry"]["region_count"]
    if found != regions:
        raise ConfigError(f"{os.fspath(path)} has room for {found} regions, not {regions}: use a file of its own")


class _Replay:
    """One pass over a trace."""

    def __init__(self, pool: kvstore.Pool, trace: Trace, payload_bytes: int) -> None:
        self.served: list[Served] = []
        self.bytes_wrong = 0
        self._space = pool.space(engine="replay", trace=trace.name, payload_bytes=payload_bytes)
        self._payload_bytes = payload_bytes
        longest = max(len(request.blocks) for request in trace.requests)
        self._arena = pool.alloc(longest * payload_bytes)
        view = memoryview(self._arena)
        self._outs = [view[i * payload_bytes : (i + 1) * payload_bytes] for i in range(longest)]
        self._spoilt = b"\xff" * payload_bytes

    def serve(self, blocks: tuple[int, ...], keep: int) -> None:
        """One request."""
        keys = [_key(block) for block in blocks]
        run = self._space.match_prefix(keys)
        if run:
            # The request before often read the same blocks: left there, they would be right without being read.
            for out in self._outs[:run]:
                out[:] = self._spoilt
            # Nothing else is going on that could have evicted a block since; if it was, the run ends there.
            results = self._space.get_many(keys[:run], self._outs[:run]).wait()
            read = [result.status == "hit" for result in results]
            _raise_errors(results)
            run = run if all(read) else read.index(False)
            self._compare(blocks[:run])
        hits, written = run, 0
        if keep > run:
            results = self._space.put_many(
                keys[run:keep],
                [self._payload(block) for block in blocks[run:keep]],
                parents=[None if place == 0 else keys[place - 1] for place in range(run, keep)],
                depths=list(range(run, keep)),
            ).wait()
            _raise_errors(results)
            hits += sum(result.status == "present" for result in results)
            written = sum(result.status == "stored" for result in results)
        self.served.append(Served(run, hits, written))

    def _payload(self, block: int) -> bytes:
        return block.to_bytes(8, "little") * (self._payload_bytes // 8)

    def _compare(self, blocks: tuple[int, ...]) -> None:
        for block, out in zip(blocks, self._outs, strict=False):
            if bytes(out) != self._payload(block):
                self.bytes_wrong += self._payload_bytes


def _key(block: int) -> bytes:
    return block.to_bytes(16, "big")


def _raise_errors(results: list[kvstore.Result]) -> None:
    for result in results:
        if result.status == "error":
            raise kvstore.KvStoreError(f"a block could not be moved: {result.error}")
