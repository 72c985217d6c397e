# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Types of what a value or an out may be; the checks are in the core, which names what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

if TYPE_CHECKING:
    from typing_extensions import Buffer as _Buffer

__all__ = [
    "BlockBuffer",
    "CupyStream",
    "Segment",
    "Stream",
    "SupportsCudaArray",
    "SupportsDLPack",
    "SupportsDataPtr",
    "TorchStream",
    "stream_handle",
]


class SupportsDLPack(Protocol):
    """A tensor of any library, on the CPU or on a CUDA device."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


class SupportsDataPtr(Protocol):
    """A ``torch.Tensor``, on the CPU or on a CUDA device."""

    @property
    def nbytes(self) -> int: ...

    def data_ptr(self) -> int: ...

    def is_contiguous(self) -> bool: ...


class SupportsCudaArray(Protocol):
    """An array on a CUDA device, such as cupy's."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class TorchStream(Protocol):
    """A ``torch.cuda.Stream``."""

    @property
    def cuda_stream(self) -> int: ...


class CupyStream(Protocol):
    """A ``cupy.cuda.Stream``."""

    @property
    def ptr(self) -> int: ...


#: What orders the work of a CUDA device; an int is the number of a CUstream.
Stream: TypeAlias = int | TorchStream | CupyStream

#: One contiguous run of memory. ``(pointer, nbytes)`` is memory that the caller keeps alive and mapped.
Segment: TypeAlias = Union["_Buffer", SupportsDLPack, SupportsDataPtr, SupportsCudaArray, tuple[int, int]]

#: The memory of one block: one segment, or 1 to 512 of them in order.
BlockBuffer: TypeAlias = Segment | Sequence[Segment]


def stream_handle(stream: Stream | None) -> int | None:
    """Return the number of a stream, CUDA's CUstream.

    Raises
    ------
    TypeError : it is no stream.
    """
    if stream is None:
        return None
    handle: object = stream
    for name in ("cuda_stream", "ptr"):
        handle = getattr(stream, name, handle)
    if isinstance(handle, bool) or not isinstance(handle, int):
        raise TypeError(f"stream is a {type(stream).__name__}, not a stream of torch or cupy, nor the number of one")
    return handle
