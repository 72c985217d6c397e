# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Transfer: blocks between a space and the paged KV cache of an engine, asynchronously.

One interface and an implementation for each kind of memory, so that a door is written once. A block of the store is a
block of one KV cache group, all its layers one after another, so that a layer alone is a part of it which the store
verifies by itself: no key for each layer.

Guarantees: a block counts as loaded only when all its bytes were verified; no part of the cache is touched after its
job was reported (I11). What is not loaded has undefined bytes.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import kvstore
from kvstore.errors import ConfigError, KvStoreError, WaitTimeout

SEGMENTS_MAX = 512  # of one block, in the store's interface
_WAIT_SLICE_S = 10.0


class Region(NamedTuple):
    """A part of every block of one group: that of block ``number`` begins at ``address + number * stride``.

    ``blocks`` is how many there are; only memory of a GPU needs it.
    """

    layers: tuple[str, ...]
    address: int
    stride: int
    nbytes: int
    blocks: int = 0


class Block(NamedTuple):
    """A block of the store, and its place in the paged cache."""

    key: bytes
    group: int
    number: int
    parent: bytes | None = None
    depth: int = 0


class Outcome(Protocol):
    """What became of one block: the store's :class:`kvstore.Result`, or that it never came to the store."""

    @property
    def status(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def error(self) -> Exception | None: ...


class Done(NamedTuple):
    """A job that ended: for each block, in the order given, whether all of it was moved, and what became of it."""

    tag: int
    good: list[bool]
    results: Sequence[Outcome]
    elapsed_s: float


class Transfer(Protocol):
    """Moves blocks for a door. ``tag`` is the caller's number of a job, unique among those it has not been told of.

    A store takes the bytes that the cache has once all work is done which the engine gave its device before the call; a
    load is seen by all work it gives the device after the job was reported, or after :meth:`wait_layer`. Submitting
    does not block. Every submitted job is reported once by :meth:`poll`, unless submitting it raised. One thread.
    """

    space: kvstore.Space

    def store(self, tag: int, blocks: Sequence[Block]) -> None:
        """Start storing blocks of the cache."""

    def load(self, tag: int, blocks: Sequence[Block]) -> None:
        """Start loading blocks into the cache."""

    def load_by_layer(self, tag: int, blocks: Sequence[Block]) -> None:
        """Start loading blocks so that the first layers are there first."""

    def wait_layer(self, layer: str) -> None:
        """Wait until that layer of all blocks that are being loaded by layer is there, or is known not to come."""

    def poll(self) -> list[Done]:
        """The jobs that ended since the last call. Does not block."""

    def wait(self, tags: Collection[int]) -> None:
        """Wait until no device touches the blocks of these jobs; :meth:`poll` reports them. Unknown tags are done."""

    def close(self, timeout_s: float) -> bool:
        """Wait for what is in flight; whether all of it ended. What did not keeps the cache's memory in use."""


class Pending:
    """One job of the caller's: one job of the store, or one for each part when it loads by layer."""

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self.jobs: list[kvstore.Job] = []
        self.wanted: list[list[int]] = []  # bytes of each block, for each job
        self.by_layer: dict[str, list[kvstore.Job]] = {}
        self.left = 0

    def done(self) -> Done:
        """What became of each block: of its parts the first that is not good counts."""
        good: list[bool] = []
        whole: list[kvstore.Result] = []
        for job, wanted in zip(self.jobs, self.wanted, strict=True):
            results = job.results
            right = [bool(one) and one.nbytes in (n, 0) for one, n in zip(results, wanted, strict=True)]
            if not whole:
                good, whole = right, results
                continue
            whole = [now if g else was for g, was, now in zip(good, whole, results, strict=True)]
            good = [g and r for g, r in zip(good, right, strict=True)]
        return Done(self.tag, good, whole, max(job.elapsed_s for job in self.jobs))


class HostTransfer:
    """A :class:`Transfer` for a cache in memory that the CPU addresses: straight between it and the device queues.

    Parameters
    ----------
    space : of the blocks; may be exchanged between jobs.
    groups : the regions of each KV cache group, in the order of their layers.
    owner : keeps the cache's memory; held until all jobs ended.
    by_layer : also store the hash of each page, so that a layer can be verified alone.
    durable, deadline_ms : as :meth:`kvstore.space.Space.put_many` and ``get_many``.

    Raises
    ------
    ConfigError : a block has more parts than the store takes, or blocks of the cache overlap.
    """

    def __init__(
        self,
        space: kvstore.Space,
        groups: Mapping[int, Sequence[Region]],
        owner: Any = None,
        *,
        by_layer: bool = False,
        durable: bool = False,
        deadline_ms: float | None = None,
    ) -> None:
        self.space = space
        self.owner = owner
        self._groups = {group: list(regions) for group, regions in groups.items()}
        self._by_layer = by_layer
        self._durable = durable
        self._deadline_ms = deadline_ms
        self._queue = space.pool.queue()
        self._pending: dict[int, Pending] = {}
        self._of_job: dict[int, Pending] = {}
        for group, regions in self._groups.items():
            check_segments(group, regions)

    def block_bytes(self, group: int) -> int:
        """Payload of one block of that group."""
        return sum(region.nbytes for region in self._groups[group])

    def _parts(self, block: Block) -> list[tuple[int, int]]:
        return [(one.address + block.number * one.stride, one.nbytes) for one in self._groups[block.group]]

    def _began(self, pending: Pending, job: kvstore.Job, wanted: list[int]) -> None:
        pending.jobs.append(job)
        pending.wanted.append(wanted)
        pending.left += 1
        self._pending[pending.tag] = self._of_job[job.id] = pending

    def store(self, tag: int, blocks: Sequence[Block]) -> None:
        job = self.space.put_many(
            [block.key for block in blocks],
            [self._parts(block) for block in blocks],
            parents=[block.parent for block in blocks],
            depths=[block.depth for block in blocks],
            page_hashes=self._by_layer,
            durable=self._durable,
            queue=self._queue,
        )
        self._began(Pending(tag), job, [self.block_bytes(block.group) for block in blocks])

    def load(self, tag: int, blocks: Sequence[Block]) -> None:
        job = self.space.get_many(
            [block.key for block in blocks],
            [self._parts(block) for block in blocks],
            queue=self._queue,
            deadline_ms=self._deadline_ms,
        )
        self._began(Pending(tag), job, [self.block_bytes(block.group) for block in blocks])

    def load_by_layer(self, tag: int, blocks: Sequence[Block]) -> None:
        (group,) = {block.group for block in blocks}
        regions = self._groups[group]
        pending = Pending(tag)
        offset = 0
        try:
            for number, region in enumerate(regions):
                job = self.space.get_many(
                    [block.key for block in blocks],
                    [(region.address + block.number * region.stride, region.nbytes) for block in blocks],
                    offsets=offset,
                    nbytes=region.nbytes,
                    queue=self._queue,
                    deadline_ms=self._deadline_ms,
                    priority=len(regions) - number,
                )
                self._began(pending, job, [region.nbytes] * len(blocks))
                for layer in region.layers:
                    pending.by_layer.setdefault(layer, []).append(job)
                offset += region.nbytes
        except KvStoreError:
            # I11: refused as a whole, and so no device may touch the blocks any more.
            for job in pending.jobs:
                _end(job)
                self._of_job.pop(job.id, None)
            self._pending.pop(tag, None)
            raise

    def wait_layer(self, layer: str) -> None:
        for pending in self._pending.values():
            for job in pending.by_layer.get(layer, ()):
                _end(job)

    def poll(self) -> list[Done]:
        done = []
        for job in self._queue.drain() if self._of_job else ():
            pending = self._of_job.pop(job.id, None)
            if pending is None:
                continue
            pending.left -= 1
            if pending.left == 0:
                self._pending.pop(pending.tag, None)
                done.append(pending.done())
        return done

    def wait(self, tags: Collection[int]) -> None:
        for tag in tags:
            pending = self._pending.get(tag)
            for job in pending.jobs if pending is not None else ():
                _end(job)

    def close(self, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        ended = all(ends_by(job, end) for pending in self._pending.values() for job in pending.jobs)
        if ended:
            self.owner = None
        return ended


def check_segments(group: int, regions: Sequence[Region]) -> None:
    """Refuse regions that cannot be one block of the store as they lie.

    Raises
    ------
    ConfigError : there are too many, or blocks of the cache overlap.
    """
    if len(regions) > SEGMENTS_MAX:
        raise ConfigError(f"a block of KV cache group {group} has {len(regions)} parts, at most 512 are one block")
    for region in regions:
        if region.stride < region.nbytes:
            raise ConfigError(
                f"the KV cache's layout has blocks of group {group} in pieces: {region.nbytes} bytes of "
                f"{region.layers[0]} every {region.stride}; choose another with VLLM_KV_CACHE_LAYOUT"
            )


def _end(job: kvstore.Job) -> None:
    """Wait for a job, however long the device takes."""
    while not job.done:
        try:
            job.wait(_WAIT_SLICE_S)
        except WaitTimeout:
            continue


def ends_by(job: kvstore.Job, end: float) -> bool:
    """Wait for a job until ``end``, of :func:`time.monotonic`; whether it is done."""
    try:
        job.wait(max(0.0, end - time.monotonic()))
    except KvStoreError:
        return job.done
    return True
