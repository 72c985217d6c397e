# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Types of what a value or an out may be. Types only: the checks are in the core, which names what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

if TYPE_CHECKING:
    from typing_extensions import Buffer as _Buffer

__all__ = ["BlockBuffer", "Segment", "SupportsDLPack", "SupportsDataPtr"]


class SupportsDLPack(Protocol):
    """A tensor of any library, on the CPU."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


class SupportsDataPtr(Protocol):
    """A ``torch.Tensor``, on the CPU."""

    @property
    def nbytes(self) -> int: ...

    def data_ptr(self) -> int: ...

    def is_contiguous(self) -> bool: ...


#: One contiguous run of host memory. ``(pointer, nbytes)`` is memory that the caller keeps alive and mapped.
Segment: TypeAlias = Union["_Buffer", SupportsDLPack, SupportsDataPtr, tuple[int, int]]

#: The memory of one block: one segment, or 1 to 512 of them in order.
BlockBuffer: TypeAlias = Segment | Sequence[Segment]
