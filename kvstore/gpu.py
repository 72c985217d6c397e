# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Paged KV caches in GPU memory: transfers between them and extents there, in the order of streams (docs/gpu.md).

An extent holds ``[layer][kv][token][head]`` without gaps, whatever an engine's cache looks like; a block of the store
is put from one, and read into one. Nothing here needs torch or cupy: addresses are ints, streams are as everywhere.

Guarantees: no call waits for the GPU. What a kernel is given is memory of its GPU as far as CUDA can tell, since a bad
address would take the process's CUDA with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvstore import _core
from kvstore.buffers import Stream, stream_handle
from kvstore.errors import ConfigError

__all__ = ["DeviceExtents", "OwnStream", "PagedCache", "StreamMark"]

#: The page of a GPU: extents begin at multiples of it, so that they can be registered with cuFile.
PAGE_BYTES = 64 * 1024


def _handle(stream: Stream) -> int:
    handle = stream_handle(stream)
    if handle is None:
        raise TypeError("stream is None: give the stream that the memory is used on")
    return handle


class OwnStream:
    """A stream of a GPU that is nobody else's.

    Parameters
    ----------
    device : the GPU's number, CUDA's.

    Attributes
    ----------
    ptr : the number of the CUstream; the object itself is taken wherever a ``stream`` is.

    Raises
    ------
    UnsupportedError : there is no CUDA driver.
    ConfigError : there is no such GPU, or CUDA refuses.

    Notes
    -----
    It does not wait for the legacy default stream. When it is let go, what is on it is still done.
    """

    __slots__ = ("_core", "ptr")

    def __init__(self, device: int) -> None:
        self._core = _core.OwnStream(device)
        self.ptr = self._core.handle

    @property
    def device(self) -> int:
        """The GPU's number."""
        return self._core.device


class StreamMark:
    """What was under way on a stream when the mark was made.

    Parameters
    ----------
    device : the GPU's number.
    stream : of that GPU.

    Raises
    ------
    ConfigError : CUDA refuses, for example because the stream is being captured into a graph.
    """

    __slots__ = ("_core",)

    def __init__(self, device: int, stream: Stream) -> None:
        self._core = _core.StreamMark(device, _handle(stream))

    def has_happened(self) -> bool:
        """Whether it is done. Does not wait.

        Raises
        ------
        KvStoreError : a stream of the process ran into an error; CUDA cannot be used again in it.
        """
        return self._core.has_happened()

    def hold_back(self, stream: Stream) -> None:
        """Let what is put on ``stream`` from here on run only after it. The host does not wait."""
        self._core.hold_back(_handle(stream))


class DeviceExtents:
    """A fixed number of equal extents in the memory of a GPU, taken from the driver at once.

    Parameters
    ----------
    device : the GPU's number.
    extent_bytes : of each; rounded up to 64 KiB, to which extents are aligned.
    total_bytes : of all together, at most.

    Raises
    ------
    ConfigError : not one extent fits, or the GPU has not that much memory left.

    Notes
    -----
    The memory is given back to the driver when this object goes, unless :meth:`leak` was called. Not thread-safe.
    """

    def __init__(self, device: int, extent_bytes: int, total_bytes: int) -> None:
        rounded = -(-extent_bytes // PAGE_BYTES) * PAGE_BYTES
        self.count = total_bytes // rounded if rounded else 0
        if self.count == 0:
            raise ConfigError(
                f"{total_bytes:,} bytes of GPU memory for extents of {extent_bytes:,}: at least one must fit, so give "
                f"{rounded:,} or more"
            )
        self._arena = _core.DeviceArena(device, self.count * rounded)
        # The last one given back is the first one taken: few extents stay warm in the GPU's cache.
        self._free = [self._arena.ptr + place * rounded for place in reversed(range(self.count))]
        self._taken: set[int] = set()

    @property
    def free(self) -> int:
        """How many can be taken."""
        return len(self._free)

    @property
    def nbytes(self) -> int:
        """GPU memory that they take."""
        return self._arena.nbytes

    def take(self) -> int | None:
        """Return the address of an extent that is the caller's until :meth:`give_back`; None: all are taken."""
        if not self._free:
            return None
        address = self._free.pop()
        self._taken.add(address)
        return address

    def give_back(self, address: int) -> None:
        """Give an extent back that no device touches any more.

        Raises
        ------
        ValueError : it is not taken: given back twice, it would be two callers' at once.
        """
        if address not in self._taken:
            raise ValueError(f"the extent at {address:#x} is not taken")
        self._taken.remove(address)
        self._free.append(address)

    def leak(self) -> None:
        """Never give the memory back to the driver: something may still write to it (I11)."""
        self._arena.leak()


class PagedCache:
    """An engine's paged KV cache in the memory of one GPU.

    The address of a run of ``head_bytes`` is ``planes[layer * kv_count + kv] + block * block_stride + token *
    token_stride + head * head_stride``.

    Parameters
    ----------
    planes : addresses of cache block 0: for each layer ``kv_count`` of them.
    cache_blocks : how many blocks the cache has.
    head_bytes : one head of one token; or, with one token and one head a block, all of a block in one plane.
    block_stride, token_stride, head_stride : bytes from one to the next; those of which there is one do not count.
    kv_count : 2, keys and values; 1: one latent, or both in one run.
    block_tokens : tokens of a cache block.
    heads : KV heads of a token.

    Attributes
    ----------
    device : the GPU's number.
    run_bytes : the longest run that is contiguous in the cache and in an extent.

    Raises
    ------
    ConfigError : strides that overlap, addresses, strides or lengths that are no multiples of 16, or memory that is not
        of one GPU; the message names it.

    Notes
    -----
    Safe from many threads. The memory is the caller's, to be kept as long as transfers run.
    """

    __slots__ = ("_core", "device", "run_bytes")

    def __init__(
        self,
        planes: Sequence[int],
        *,
        cache_blocks: int,
        head_bytes: int,
        block_stride: int,
        token_stride: int = 0,
        head_stride: int = 0,
        kv_count: int = 2,
        block_tokens: int = 1,
        heads: int = 1,
    ) -> None:
        self._core = _core.PagedCache(
            planes, kv_count, cache_blocks, block_tokens, heads, head_bytes, block_stride, token_stride, head_stride
        )
        self.device = self._core.device
        self.run_bytes = self._core.run_bytes

    def extent_bytes(self, tokens: int) -> int:
        """Bytes of an extent of so many tokens."""
        return self._core.extent_bytes(tokens)

    def way(self, stream: Stream) -> str:
        """How it moves bytes on that stream: ``kernel``, ``copy_batch`` (runs of 64 KiB and more) or ``copies``."""
        return self._core.way(_handle(stream))

    @property
    def kernels_missing(self) -> str:
        """Why there are no kernels and copies do their work; empty: there are."""
        return self._core.kernels_missing

    def gather(
        self,
        extents: Sequence[tuple[int, int]],
        blocks: Sequence[Sequence[int | None]],
        *,
        stream: Stream,
        tokens: Sequence[int] | None = None,
        layers: tuple[int, int] | None = None,
    ) -> None:
        """Begin to copy cache blocks into extents, on a stream.

        Parameters
        ----------
        extents : (address, nbytes) each, GPU memory aligned to 16 bytes; nbytes is that of all layers.
        blocks : the numbers of the cache blocks of each extent, in order; None: that part is left out.
        stream : a stream of the cache's GPU; both sides are in use until it has come to what is put there next.
        tokens : of each extent, when its last block is a partial one; None: whole blocks.
        layers : (first, count); None: all.

        Raises
        ------
        ConfigError : a block or layer that the cache has not, or an extent of the wrong length or on no GPU; nothing
            was begun.
        DeviceError : CUDA refused; some of it may have begun, so wait for the stream before the memory is used again.
        """
        self._move(False, extents, blocks, stream, tokens, layers)

    def scatter(
        self,
        extents: Sequence[tuple[int, int]],
        blocks: Sequence[Sequence[int | None]],
        *,
        stream: Stream,
        tokens: Sequence[int] | None = None,
        layers: tuple[int, int] | None = None,
    ) -> None:
        """Begin to copy extents into cache blocks, on a stream; as :meth:`gather`, and no block twice."""
        self._move(True, extents, blocks, stream, tokens, layers)

    def _move(
        self,
        to_cache: bool,
        extents: Sequence[tuple[int, int]],
        blocks: Sequence[Sequence[int | None]],
        stream: Stream,
        tokens: Sequence[int] | None,
        layers: tuple[int, int] | None,
    ) -> None:
        if tokens is None:
            tokens = [len(numbers) * self._core.block_tokens for numbers in blocks]
        first, count = (0, None) if layers is None else layers
        self._core.move(to_cache, extents, tokens, blocks, first, count, _handle(stream))
