# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Space: the identity all keys of one caller share, and the operations on its blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, overload

from kvstore import _core
from kvstore._arguments import flag
from kvstore._core import BlockInfo, Result
from kvstore.buffers import stream_handle
from kvstore.errors import ConfigError
from kvstore.job import CompletionQueue, Job

if TYPE_CHECKING:
    from kvstore.buffers import BlockBuffer, Stream
    from kvstore.pool import Pool

__all__ = ["Identity", "Space", "canonical_identity"]

Scalar: TypeAlias = str | int | bool | None
Identity: TypeAlias = Scalar | Sequence[Scalar]

_IDENTITY_BYTES_MAX = 3900


def canonical_identity(identity: Mapping[str, Identity]) -> str:
    """The one text of an identity: JSON with sorted keys, no white space, ASCII only.

    Parameters
    ----------
    identity : field names to str, int, bool, None, or lists of these. Types matter: ``1``, ``"1"`` and ``True`` differ.

    Raises
    ------
    ConfigError : no field, or more than 3,900 bytes of text.
    TypeError : a value of another type.

    Examples
    --------
    >>> canonical_identity({"model": "m", "tp_size": 4, "layers": [0, 1]})
    '{"layers":[0,1],"model":"m","tp_size":4}'
    """
    if not identity:
        raise ConfigError("a space needs at least one field: an identity such as model='…', dtype='…'")
    for field, value in identity.items():
        items = value if isinstance(value, (list, tuple)) else [value]
        for item in items:
            if item is not None and not isinstance(item, (str, int)):
                raise TypeError(
                    f"field {field} of the space holds a {type(item).__name__}: allowed are str, int, bool, None and "
                    "lists of these"
                )
    text = json.dumps(dict(identity), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    if len(text) > _IDENTITY_BYTES_MAX:
        raise ConfigError(f"the space's identity is {len(text):,} bytes of JSON, allowed are {_IDENTITY_BYTES_MAX:,}")
    return text


def _queue(queue: CompletionQueue | None) -> _core.QueueHandle | None:
    if queue is None:
        return None
    if not isinstance(queue, CompletionQueue):
        raise TypeError(f"queue is a {type(queue).__name__}, not a CompletionQueue")
    return queue._core


class Space:
    """The blocks of one identity: put, get and ask for them by key.

    Made by :meth:`Pool.space`. A space is an identity, not a folder: change any one field, or its type, and nothing
    hits.

    *Keys* are bytes, 1 to 1,024 long. *Salts* are bytes, up to 1,024 long: blocks under different salts never match
    each other; there may be very many. Where a call takes ``salts``, one bytes object counts for all its keys.

    *Values and outs* are host memory: anything with the buffer protocol, a torch CPU tensor, a DLPack object,
    ``(pointer, nbytes)``, or a list of up to 512 of these, which together are one block. C-contiguous; an out must be
    writable and have room for what is asked; it may be larger, and the rest is left untouched. Page-aligned memory of
    whole 4 KiB pages moves without a copy.

    Or they are memory of a CUDA device (docs/gpu.md): a cupy array, a torch tensor, anything with DLPack or
    ``__cuda_array_interface__``. A put reads it when what is on its *stream* has run; what is put on the stream of a
    ``get_many`` afterwards runs when that has ended, whatever came of it, and no thread of the host waits for it.
    ``stream`` is a ``torch.cuda.Stream``, a ``cupy.cuda.Stream`` or the number of a CUstream; with it, ``(pointer,
    nbytes)`` may be a device pointer. None: the stream that a ``__cuda_array_interface__`` names; torch tensors and
    DLPack are ordered by their library, and a get into them has happened when its job is done.

    Notes
    -----
    Safe from many threads. Calls that block release the GIL. Not usable in a forked child.

    Examples
    --------
    >>> pool = kvstore.open(example_pool)
    >>> space = pool.space(engine="vllm", model="Qwen/Qwen2.5-32B", dtype="bfloat16", tp_size=4, tp_rank=0)
    >>> space.put(b"space-1", b"some bytes").status
    'stored'
    >>> out = bytearray(16)
    >>> space.get(b"space-1", out)
    10
    >>> bytes(out[:10])
    b'some bytes'
    >>> space.match_prefix([b"space-1", b"space-2"])
    1
    >>> pool.close()
    """

    __slots__ = ("_core", "_id", "_json", "_pool")

    def __init__(self, pool: Pool, core: _core.PoolHandle, canonical: str) -> None:
        self._pool = pool
        self._core = core
        self._json = canonical
        self._id = core.register_space(canonical)

    @property
    def pool(self) -> Pool:
        """The pool this space is in."""
        return self._pool

    @property
    def identity(self) -> dict[str, Identity]:
        """The fields of the identity, a fresh dict."""
        fields: dict[str, Identity] = json.loads(self._json)
        return fields

    @property
    def json(self) -> str:
        """The identity's canonical JSON, as stored on the device."""
        return self._json

    # ---- one block ----

    def put(
        self,
        key: bytes,
        value: BlockBuffer,
        parent: bytes | None = None,
        depth: int = 0,
        salt: bytes = b"",
        meta: bytes = b"",
        durable: bool = False,
        page_hashes: bool = False,
        *,
        stream: Stream | None = None,
    ) -> Result:
        """Store one block and wait until its payload is on the device.

        Parameters
        ----------
        key : bytes, 1 to 1,024.
        value : the payload, 1 byte or more, less than 4 GiB and what a region can hold.
        parent : key of the block before this one in its chain; None: none.
        depth : place in the chain, 0 first.
        salt : bytes, up to 1,024.
        meta : the caller's own, up to 28 bytes, kept with the block.
        durable : wait until the block survives a crash. Otherwise it does within 50 ms, or after :meth:`Pool.flush`.
        page_hashes : also store the hash of each 4 KiB page (0.2 %), so that parts can be read alone.
        stream : of a GPU; see :class:`Space`.

        Returns
        -------
        ``"stored"``, or ``"present"`` when the key was there: then nothing is written, the first value wins.

        Raises
        ------
        ConfigError, TypeError : a wrong argument; nothing was written.
        BusyError : no space can be reclaimed, everything is pinned; or too many jobs are in flight.
        DeviceError : the device failed; the block is a miss.
        ClosedError, FencedError, StoreFailed : the pool takes no writes any more.

        Notes
        -----
        Blocking. The buffer is free again when this returns. One device write and one checksum pass.
        """
        return self._core.put_one(
            self._id, key, value, parent, depth, salt, meta, flag(durable, "durable"),
            flag(page_hashes, "page_hashes"), stream_handle(stream),
        )  # fmt: skip

    def get(
        self,
        key: bytes,
        out: BlockBuffer,
        *,
        salt: bytes = b"",
        offset: int = 0,
        nbytes: int | None = None,
        stream: Stream | None = None,
    ) -> int | None:
        """Read one block, or a part of it, into ``out``.

        Parameters
        ----------
        key, salt : as put.
        out : writable, with room for the bytes asked for; more is left untouched.
        offset : first byte wanted.
        nbytes : bytes wanted; None: from ``offset`` to the end. A part is verified alone when the block was put with
            ``page_hashes``; otherwise the whole block is read to verify it.
        stream : of a GPU; see :class:`Space`.

        Returns
        -------
        bytes read; None when the block is not there or did not verify (counted in ``stats``). On a miss and on an
        error the contents of ``out`` are undefined.

        Raises
        ------
        ConfigError, TypeError : a wrong argument, ``out`` too short, or a part beyond the end of the block.
        DeviceError : the device failed.
        ClosedError : the pool is closed.

        Notes
        -----
        Blocking, on the calling thread when the engine is idle. Returns exactly what was put under this space, salt
        and key, or a miss (I5). One device read and one checksum pass.
        """
        return self._core.get_one(self._id, key, out, salt, offset, nbytes, stream_handle(stream))

    # ---- batches ----

    def put_many(
        self,
        keys: Sequence[bytes],
        values: Sequence[BlockBuffer],
        *,
        parents: Sequence[bytes | None] | None = None,
        depths: Sequence[int] | None = None,
        chain: bool = False,
        salts: bytes | Sequence[bytes | None] = b"",
        metas: bytes | Sequence[bytes | None] | None = None,
        durable: bool = False,
        page_hashes: bool = False,
        queue: CompletionQueue | None = None,
        tag: int = 0,
        deadline_ms: float | None = None,
        priority: int = 0,
        stream: Stream | None = None,
    ) -> Job:
        """Submit a batch of blocks to store.

        Parameters
        ----------
        keys, values : n each, 1 or more; see :meth:`put`.
        parents, depths : n each, or None. Without them the blocks are *not* taken to be a chain.
        chain : the blocks are a chain from its beginning: the parent of item i is key i-1, its depth is i.
        salts, metas : one for all, or n.
        durable : the job is done when the blocks survive a crash.
        page_hashes : as put.
        queue : also put the finished job there.
        tag : 0 to 2**64 - 1, the caller's own; comes back as ``job.tag``.
        deadline_ms : more than 0; for loads only. Blocks that cannot be read by then are refused at once, those that
            are late are given up: code ``"timeout"``. A put takes none: it has no slower way to fall back on.
        priority : higher first among waiting jobs of the same kind.
        stream : of a GPU; see :class:`Space`.

        Returns
        -------
        a :class:`Job`. The buffers are in use until it is done; they are held.

        Raises
        ------
        ConfigError, TypeError : a wrong argument; nothing of the batch was taken.
        BusyError : ``jobs_max`` jobs are in flight.
        ClosedError : the pool is closed.

        Notes
        -----
        Does not block. Trouble of single items is in their results.
        """
        core = self._core.put_many(
            self._id, keys, values, parents, depths, salts, metas,
            flag(chain, "chain"), flag(durable, "durable"), flag(page_hashes, "page_hashes"),
            _queue(queue), tag, deadline_ms, priority, stream_handle(stream),
        )  # fmt: skip
        return Job(core)

    def get_many(
        self,
        keys: Sequence[bytes],
        outs: Sequence[BlockBuffer],
        *,
        salts: bytes | Sequence[bytes | None] = b"",
        offsets: int | Sequence[int | None] | None = None,
        nbytes: int | Sequence[int | None] | None = None,
        queue: CompletionQueue | None = None,
        tag: int = 0,
        deadline_ms: float | None = None,
        priority: int = 0,
        stream: Stream | None = None,
    ) -> Job:
        """Submit a batch of blocks to read.

        Parameters
        ----------
        keys, outs : n each, 1 or more; see :meth:`get`.
        offsets, nbytes : of the part wanted of each block: one for all, n, or None for whole blocks.
        salts, queue, tag, deadline_ms, priority, stream : as :meth:`put_many`.

        Returns
        -------
        a :class:`Job`. The outs are written until it is done; they are held. The contents of an out whose result is
        not ``"hit"`` are undefined.

        Raises
        ------
        ConfigError, TypeError : a wrong argument; nothing of the batch was taken.
        BusyError : ``jobs_max`` jobs are in flight.
        ClosedError : the pool is closed.

        Notes
        -----
        Does not block. An out too short for its block is an error of that item, code ``"invalid"``.
        """
        core = self._core.get_many(
            self._id, keys, outs, salts, offsets, nbytes,
            _queue(queue), tag, deadline_ms, priority, stream_handle(stream),
        )  # fmt: skip
        return Job(core)

    def prefetch(
        self,
        keys: Sequence[bytes],
        deadline_ms: float | None = None,
        queue: CompletionQueue | None = None,
        *,
        salts: bytes | Sequence[bytes | None] = b"",
        tag: int = 0,
        priority: int = 0,
    ) -> Job:
        """Read blocks into the store's staging cache, so that a later get is served from memory.

        Parameters
        ----------
        keys : n, 1 or more.
        deadline_ms, queue, salts, tag, priority : as :meth:`put_many`.

        Returns
        -------
        a :class:`Job`: ``"hit"`` when staged, ``"miss"``, or an error of code ``"busy"`` or ``"timeout"`` when refused.

        Notes
        -----
        Does not block. The cache is bounded by ``prefetch_bytes`` of :func:`kvstore.open`.
        """
        core = self._core.prefetch(self._id, keys, salts, _queue(queue), tag, deadline_ms, priority)
        return Job(core)

    # ---- index only ----

    @overload
    def contains(self, keys: bytes, pin: bool = False, *, salts: bytes = b"") -> bool: ...
    @overload
    def contains(
        self, keys: Sequence[bytes], pin: bool = False, *, salts: bytes | Sequence[bytes | None] = b""
    ) -> list[bool]: ...
    def contains(
        self, keys: bytes | Sequence[bytes], pin: bool = False, *, salts: bytes | Sequence[bytes | None] = b""
    ) -> bool | list[bool]:
        """Whether blocks are there.

        Parameters
        ----------
        keys : one key, or n.
        pin : keep those that are there from being reclaimed and deleted until :meth:`unpin`, or for ``pin_lease_s``.
        salts : one for all, or n.

        Returns
        -------
        a bool for one key, a list of n for n.

        Notes
        -----
        No I/O: a block that does not verify when read is still a miss then. About 0.1 us a key. Counts as a use.
        """
        if isinstance(keys, (bytes, bytearray, memoryview)):
            return self._core.contains(self._id, [bytes(keys)], salts, flag(pin, "pin"))[0]
        return self._core.contains(self._id, keys, salts, flag(pin, "pin"))

    def lookup(
        self, keys: Sequence[bytes], pin: bool = False, *, salts: bytes | Sequence[bytes | None] = b""
    ) -> list[int]:
        """Payload bytes of each block, or -1 where it is not there. Otherwise as :meth:`contains`."""
        return self._core.lookup(self._id, keys, salts, flag(pin, "pin"))

    def match_prefix(
        self, keys: Sequence[bytes], pin: bool = False, *, salts: bytes | Sequence[bytes | None] = b""
    ) -> int:
        """How many keys from the first on are there without a gap.

        Parameters
        ----------
        keys : of a chain, in order.
        pin : pin those, and only those.
        salts : one for all, or n.

        Notes
        -----
        No I/O; at most 0.3 ms for 1,000 keys. Counts as a use of the run, tail first.
        """
        return self._core.match_prefix(self._id, keys, salts, flag(pin, "pin"))

    def unpin(self, keys: Sequence[bytes], *, salts: bytes | Sequence[bytes | None] = b"") -> None:
        """Undo one pin of each key. Keys that are not pinned are left alone. No I/O."""
        self._core.unpin(self._id, keys, salts)

    def touch(self, keys: Sequence[bytes], *, salts: bytes | Sequence[bytes | None] = b"") -> None:
        """Count a use of each block without reading it, so that it is reclaimed later. No I/O."""
        self._core.touch(self._id, keys, salts)

    def delete(self, keys: Sequence[bytes], *, salts: bytes | Sequence[bytes | None] = b"") -> list[Result]:
        """Delete blocks.

        Returns
        -------
        per key ``"deleted"``, ``"miss"``, or an error with code ``"busy"`` when it is pinned.

        Notes
        -----
        Takes effect at once; survives a crash after :meth:`Pool.flush`. Space is reused by whole regions, later.
        """
        return self._core.delete(self._id, keys, salts)

    # ---- listing ----

    def keys(self, salt: bytes | None = None) -> Iterator[bytes]:
        """Iterate over the keys of this space that are on the device.

        Parameters
        ----------
        salt : only those under this salt; None: under any.

        Notes
        -----
        Reads the metadata of the whole pool. A key longer than 48 bytes is listed as its BLAKE2b-384 digest;
        :meth:`Pool.blocks` tells them apart.
        """
        for block in self._core.blocks(self._json):
            if salt is None or block.salt == salt:
                yield block.key

    def describe(self, keys: Sequence[bytes], *, salts: bytes | Sequence[bytes | None] = b"") -> list[BlockInfo | None]:
        """The descriptor of each block, or None where it is not there. Reads metadata from the device."""
        return self._core.describe(self._id, self._json, keys, salts)

    def __repr__(self) -> str:
        return f"<Space {self._json}>"
