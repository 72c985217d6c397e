# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""DeviceTransfer: a :class:`kvstore._transfer.Transfer` for a paged KV cache in the memory of a GPU.

A block goes one of two ways, chosen for each KV cache group at the start:

``extents``
    its parts are short (under 64 KiB): a kernel gathers them into an extent in GPU memory, which the store reads whole;
    a load is read into an extent, and scattered from there. Extents are few and fixed; jobs that find none wait for
    those before them, in order.
``straight``
    its parts are long, or it is one part, or its addresses are none that a kernel takes: they are the segments of the
    block, as :class:`kvstore._transfer.HostTransfer` has them.

Guarantees: the host waits for nothing when a job is submitted, and for a layer only while blocks of its job have no
extent yet; streams wait, by events. A store's bytes are those the cache has when the engine's stream has come to the
call, a load touches the cache only then. An extent is given back exactly once, when no device touches it (I11).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import kvstore
from kvstore import _core
from kvstore._transfer import SEGMENTS_MAX, Block, Done, Outcome, Pending, Region, check_segments, ends_by
from kvstore.buffers import Stream
from kvstore.errors import ConfigError, KvStoreError
from kvstore.gpu import DeviceExtents, OwnStream, PagedCache, StreamMark

EXTENTS_BYTES = 256 << 20
#: From this length on the copy engines reach their full rate for each part (gpu/kernel_launch.h has the source).
STRAIGHT_BYTES = 64 << 10

_KERNEL_UNIT = 16
_LANES = 8  # so many gets, or layers of one, are read at the same time
_WAIT_SLICE_S = 0.01
_LOOK_S = 20e-6


class Refused(NamedTuple):
    """A block that never came to the store, or whose bytes never came to the cache."""

    error: Exception
    status: str = "error"
    nbytes: int = 0

    def __bool__(self) -> bool:
        return False


class _Piece(NamedTuple):
    """Neighbouring regions that one kernel moves: ``first`` of them, at ``offset`` in the block."""

    first: int
    offset: int
    nbytes: int
    cache: PagedCache


class _Group:
    """The blocks of one KV cache group, and their way."""

    def __init__(self, number: int, regions: Sequence[Region], straight_bytes: int) -> None:
        self.regions = list(regions)
        self.block_bytes = sum(one.nbytes for one in regions)
        self.pieces: list[_Piece] = []
        few = len(regions) <= SEGMENTS_MAX
        long = few and (len(regions) == 1 or min(one.nbytes for one in regions) >= straight_bytes)
        fits = all(part % _KERNEL_UNIT == 0 for one in regions for part in (one.address, one.stride, one.nbytes))
        self.is_straight = long or (few and not fits)
        if not few and not fits:
            raise ConfigError(
                f"a block of KV cache group {number} has {len(regions)} parts at addresses that are no multiples of "
                f"{_KERNEL_UNIT}: of such at most {SEGMENTS_MAX} are one block"
            )
        if self.is_straight:
            check_segments(number, regions)
            self.device = _core.gpu_of_pointer(regions[0].address)
        else:
            self._make_pieces()
            self.device = self.pieces[0].cache.device

    def _make_pieces(self) -> None:
        offset = first = 0
        while first < len(self.regions):
            like = self.regions[first]
            last = first
            while last < len(self.regions) and self.regions[last][2:] == like[2:]:
                last += 1
            planes = [one.address for one in self.regions[first:last]]
            cache = PagedCache(
                planes, kv_count=1, cache_blocks=like.blocks, head_bytes=like.nbytes, block_stride=like.stride
            )
            nbytes = like.nbytes * len(planes)
            self.pieces.append(_Piece(first, offset, nbytes, cache))
            offset += nbytes
            first = last

    def segments(self, number: int) -> list[tuple[int, int]]:
        return [(one.address + number * one.stride, one.nbytes) for one in self.regions]


class _Lane:
    """Two streams for loads: ``reads`` waits for gets and for nothing else, so that reads do not wait for the engine,
    and ``moves`` has what touches the cache."""

    def __init__(self, device: int) -> None:
        self.reads = OwnStream(device)
        self.moves = OwnStream(device)


class _Job:
    """One job of the caller's."""

    def __init__(self, kind: str, tag: int, space: kvstore.Space, blocks: Sequence[Block], after: StreamMark) -> None:
        self.kind = kind
        self.tag = tag
        self.space = space
        self.blocks = list(blocks)
        self.after = after  # what the engine had given its stream
        self.begun = 0  # blocks that are on their way, or over
        self.open = len(self.blocks)  # those that are not over
        self.good = [False] * len(self.blocks)
        self.results: list[Outcome | None] = [None] * len(self.blocks)
        self.elapsed_s = 0.0
        self.layer_marks: dict[str, list[StreamMark]] = {}

    def over(self, first: int, good: Sequence[bool], results: Sequence[Outcome]) -> None:
        self.good[first : first + len(good)] = good
        self.results[first : first + len(good)] = results
        self.open -= len(good)

    def done(self) -> Done:
        return Done(self.tag, self.good, [one for one in self.results if one is not None], self.elapsed_s)


class _Part:
    """Blocks of one job that are on their way together, each with its extent, or None when it goes straight."""

    def __init__(self, job: _Job, extents: list[int | None]) -> None:
        self.job = job
        self.first = job.begun
        self.blocks = job.blocks[job.begun : job.begun + len(extents)]
        self.extents = extents
        self.store = Pending(job.tag)
        self.marks: list[StreamMark] = []  # the last of what touches extents or cache, on each stream
        self.touches = False  # something of it has been given to a device
        self.error: Exception | None = None

    def is_quiet(self) -> bool:
        """Whether no device touches its memory any more."""
        if self.store.left:
            return False
        try:
            while self.marks and self.marks[-1].has_happened():
                self.marks.pop()
        except KvStoreError as error:
            # The context is gone, and its copies with it: nothing of what was on its streams is known to have happened.
            self.error = self.error or error
            return True
        return not self.marks


class DeviceTransfer:
    """A :class:`kvstore._transfer.Transfer` for a cache in GPU memory.

    Parameters
    ----------
    space : of the blocks; may be exchanged between jobs.
    groups : the regions of each KV cache group, in the order of their layers, with their number of blocks.
    owner : keeps the cache's memory; held until all jobs ended.
    stream : gives the stream that the engine works on at the moment.
    by_layer : also store the hash of each page, so that a layer can be verified alone.
    durable, deadline_ms : as :meth:`kvstore.space.Space.put_many` and ``get_many``.
    extents_bytes : GPU memory for extents, at most.
    straight_bytes : parts of this length and more go straight.

    Raises
    ------
    ConfigError : a layout that neither way takes, groups on several GPUs, or not one extent fits.
    UnsupportedError : there is no CUDA driver.
    """

    def __init__(
        self,
        space: kvstore.Space,
        groups: Mapping[int, Sequence[Region]],
        owner: Any = None,
        *,
        stream: Callable[[], Stream],
        by_layer: bool = False,
        durable: bool = False,
        deadline_ms: float | None = None,
        extents_bytes: int = EXTENTS_BYTES,
        straight_bytes: int = STRAIGHT_BYTES,
    ) -> None:
        self.space = space
        self.owner = owner
        self._groups = {number: _Group(number, regions, straight_bytes) for number, regions in groups.items()}
        devices = {group.device for group in self._groups.values()}
        if len(devices) != 1 or min(devices) < 0:
            raise ConfigError(f"the KV cache must be in the memory of one GPU, and is on {sorted(devices)}")
        (self.device,) = devices
        self._engine_stream = stream
        self._by_layer = by_layer
        self._durable = durable
        self._deadline_ms = deadline_ms
        sizes = [group.block_bytes for group in self._groups.values() if not group.is_straight]
        self._extents = DeviceExtents(self.device, max(sizes), extents_bytes) if sizes else None
        self._gathers = OwnStream(self.device)
        self._lanes = deque(_Lane(self.device) for _ in range(_LANES))
        self._queue = space.pool.queue()
        self._waiting: deque[_Job] = deque()  # in order; those with blocks that have no extent yet
        self._jobs: dict[int, _Job] = {}
        self._parts: list[_Part] = []
        self._of_store_job: dict[int, _Part] = {}
        self._over: list[Done] = []

    @property
    def ways(self) -> dict[int, str]:
        """The way of each group's blocks: ``extents`` or ``straight``."""
        return {number: "straight" if group.is_straight else "extents" for number, group in self._groups.items()}

    @property
    def extents_bytes(self) -> int:
        """GPU memory that extents take."""
        return self._extents.nbytes if self._extents is not None else 0

    def block_bytes(self, group: int) -> int:
        """Payload of one block of that group."""
        return self._groups[group].block_bytes

    # ---- submitting ----

    def store(self, tag: int, blocks: Sequence[Block]) -> None:
        self._submit("store", tag, blocks)

    def load(self, tag: int, blocks: Sequence[Block]) -> None:
        self._submit("load", tag, blocks)

    def load_by_layer(self, tag: int, blocks: Sequence[Block]) -> None:
        if len({block.group for block in blocks}) > 1:
            raise ValueError("blocks that are loaded by layer are of one KV cache group")
        self._submit("load_by_layer", tag, blocks)

    def _submit(self, kind: str, tag: int, blocks: Sequence[Block]) -> None:
        if not blocks:
            raise ConfigError("a job has one block or more")
        for block in blocks:
            count = self._groups[block.group].regions[0].blocks
            if not 0 <= block.number < count:
                raise ConfigError(
                    f"block {block.number} of KV cache group {block.group}: the cache has 0 to {count - 1}"
                )
        after = StreamMark(self.device, self._engine_stream())
        job = _Job(kind, tag, self.space, blocks, after)
        self._jobs[tag] = job
        self._waiting.append(job)
        try:
            self._begin_waiting(job)
        except BaseException:
            if self._waiting and self._waiting[-1] is job:
                self._waiting.pop()
            self._jobs.pop(tag, None)
            raise

    def _begin_waiting(self, submitted: _Job | None = None) -> None:
        """Begin what there are extents for, in order. Raises only if nothing of ``submitted`` was begun."""
        while self._waiting:
            job = self._waiting[0]
            extents = self._take_extents(job)
            if not extents:
                return
            part = _Part(job, extents)
            self._parts.append(part)
            try:
                self._begin(part)
            except (KvStoreError, TypeError, ValueError) as error:
                part.error = error
                if not part.touches:
                    self._give_back(part)
                    if job is submitted and part.first == 0:
                        raise
                    self._refused(part, error)
            job.begun += len(extents)
            if job.begun == len(job.blocks):
                self._waiting.popleft()
            self._report(job)

    def _take_extents(self, job: _Job) -> list[int | None]:
        taken: list[int | None] = []
        for block in job.blocks[job.begun :]:
            address = None
            if not self._groups[block.group].is_straight:
                address = self._extents.take() if self._extents is not None else None
                if address is None:
                    break
            taken.append(address)
        return taken

    def _give_back(self, part: _Part) -> None:
        self._parts.remove(part)
        for address in part.extents:
            if address is not None and self._extents is not None:
                self._extents.give_back(address)

    def _begin(self, part: _Part) -> None:
        if part.job.kind == "store":
            self._begin_store(part)
        elif part.job.kind == "load":
            self._begin_load(part)
        else:
            self._begin_load_by_layer(part)

    def _places(self, part: _Part) -> list[list[tuple[int, int]]]:
        """The memory of each block that the store is given."""
        return [
            self._groups[block.group].segments(block.number)
            if address is None
            else [(address, self._groups[block.group].block_bytes)]
            for block, address in zip(part.blocks, part.extents, strict=True)
        ]

    def _move(self, part: _Part, stream: OwnStream, *, to_cache: bool) -> None:
        """Gather or scatter the blocks that have extents."""
        for number, group in self._groups.items():
            of_group = [
                (address, block.number)
                for block, address in zip(part.blocks, part.extents, strict=True)
                if address is not None and block.group == number
            ]
            for piece in group.pieces if of_group else ():
                move = piece.cache.scatter if to_cache else piece.cache.gather
                move(
                    [(address + piece.offset, piece.nbytes) for address, _ in of_group],
                    [[block] for _, block in of_group],
                    stream=stream,
                )

    def _submitted(self, part: _Part, job: kvstore.Job, wanted: list[int]) -> None:
        part.touches = True
        part.store.jobs.append(job)
        part.store.wanted.append(wanted)
        part.store.left += 1
        self._of_store_job[job.id] = part

    def _begin_store(self, part: _Part) -> None:
        blocks = part.blocks
        part.job.after.hold_back(self._gathers)
        try:
            if any(address is not None for address in part.extents):
                part.touches = True
                self._move(part, self._gathers, to_cache=False)
            job = part.job.space.put_many(
                [block.key for block in blocks],
                self._places(part),
                parents=[block.parent for block in blocks],
                depths=[block.depth for block in blocks],
                page_hashes=self._by_layer,
                durable=self._durable,
                queue=self._queue,
                stream=self._gathers,
            )
            self._submitted(part, job, [self.block_bytes(block.group) for block in blocks])
        finally:
            if part.touches:
                part.marks.append(StreamMark(self.device, self._gathers))

    def _lane(self) -> _Lane:
        self._lanes.rotate(-1)
        return self._lanes[-1]

    def _get(self, part: _Part, lane: _Lane, outs: Sequence[Any], wanted: list[int], **options: Any) -> None:
        """A get that what is put on the lane's ``moves`` afterwards waits for, and for the engine's stream.

        What goes straight is read only once the engine's stream has come so far.
        """
        if None in part.extents:
            part.job.after.hold_back(lane.reads)
        job = part.job.space.get_many(
            [block.key for block in part.blocks],
            outs,
            queue=self._queue,
            deadline_ms=self._deadline_ms,
            stream=lane.reads,
            **options,
        )
        self._submitted(part, job, wanted)
        StreamMark(self.device, lane.reads).hold_back(lane.moves)
        part.job.after.hold_back(lane.moves)

    def _begin_load(self, part: _Part) -> None:
        lane = self._lane()
        try:
            self._get(part, lane, self._places(part), [self.block_bytes(block.group) for block in part.blocks])
            self._move(part, lane.moves, to_cache=True)
        finally:
            if part.touches:
                part.marks.append(StreamMark(self.device, lane.moves))

    def _begin_load_by_layer(self, part: _Part) -> None:
        group = self._groups[part.blocks[0].group]
        pieces = [(piece, number) for piece in group.pieces for number in range(piece.nbytes // _nbytes(group, piece))]
        offset = 0
        for number, region in enumerate(group.regions):
            lane = self._lane()
            outs = [
                (region.address + block.number * region.stride if address is None else address + offset, region.nbytes)
                for block, address in zip(part.blocks, part.extents, strict=True)
            ]
            options = {"offsets": offset, "nbytes": region.nbytes, "priority": len(group.regions) - number}
            try:
                self._get(part, lane, outs, [region.nbytes] * len(outs), **options)
                if pieces:
                    piece, layer = pieces[number]
                    piece.cache.scatter(
                        [(address + piece.offset, piece.nbytes) for address in part.extents if address is not None],
                        [[block.number] for block in part.blocks],
                        stream=lane.moves,
                        layers=(layer, 1),
                    )
            finally:
                if part.touches:
                    mark = StreamMark(self.device, lane.moves)
                    part.marks.append(mark)
                    for name in region.layers:
                        part.job.layer_marks.setdefault(name, []).append(mark)
            offset += region.nbytes

    # ---- what ended ----

    def _advance(self) -> None:
        for job in self._queue.drain() if self._of_store_job else ():
            part = self._of_store_job.pop(job.id, None)
            if part is not None:
                part.store.left -= 1
        for part in [one for one in self._parts if one.is_quiet()]:
            self._give_back(part)
            if part.error is not None:
                self._refused(part, part.error)
            else:
                done = part.store.done()
                part.job.elapsed_s = max(part.job.elapsed_s, done.elapsed_s)
                part.job.over(part.first, done.good, done.results)
            self._report(part.job)
        self._begin_waiting()

    @staticmethod
    def _refused(part: _Part, error: Exception) -> None:
        part.job.over(part.first, [False] * len(part.blocks), [Refused(error)] * len(part.blocks))

    def _report(self, job: _Job) -> None:
        if job.open == 0 and self._jobs.pop(job.tag, None) is not None:
            self._over.append(job.done())

    def poll(self) -> list[Done]:
        self._advance()
        over, self._over = self._over, []
        return over

    # ---- waiting ----

    def wait_layer(self, layer: str) -> None:
        for job in list(self._jobs.values()):
            if job.kind != "load_by_layer":
                continue
            while job.begun < len(job.blocks):  # waits for extents
                self._advance()
                self._pause([job.tag])
            stream = self._engine_stream()
            for mark in job.layer_marks.get(layer, ()):
                mark.hold_back(stream)

    def wait(self, tags: Collection[int]) -> None:
        while not self._jobs.keys().isdisjoint(tags):
            self._advance()
            self._pause(tags)

    def _pause(self, tags: Collection[int], end: float = float("inf")) -> None:
        """Wait a little for a part of these jobs, or of whichever keeps them from an extent."""
        mine = [part for part in self._parts if part.job.tag in tags] or self._parts
        if not mine:
            return
        slice_end = min(end, time.monotonic() + _WAIT_SLICE_S)
        for job in mine[0].store.jobs if mine[0].store.left else ():
            if not job.done:
                ends_by(job, slice_end)
                return
        time.sleep(_LOOK_S)

    def close(self, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        self._advance()
        while (self._jobs or self._parts) and time.monotonic() < end:
            self._pause(self._jobs, end)
            self._advance()
        if self._jobs or self._parts:
            if self._extents is not None:
                self._extents.leak()
            return False
        self.owner = self._extents = None
        self._lanes.clear()
        return True


def _nbytes(group: _Group, piece: _Piece) -> int:
    return group.regions[piece.first].nbytes
