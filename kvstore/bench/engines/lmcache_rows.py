# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The rows of :class:`Buffers` as LMCache's memory objects, so that its backends move bytes to and from them without a
copy; and whether LMCache is there.

Objects are made once for each row and size: engines ask for them while time is taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from kvstore.bench.content import Buffers

__all__ = ["LMCACHE_MISSING", "RowObject", "RowObjects", "quiet_lmcache", "why_no_lmcache"]

LMCACHE_MISSING = (
    "LMCache is missing: pip install lmcache==0.5.6 lmcache-rust-raw-block-io (scripts/setup --lmcache: without CUDA)"
)


def why_no_lmcache(*further: str) -> str | None:
    """None when LMCache, torch and these modules can be imported."""
    return None if all(find_spec(name) for name in ("torch", "lmcache", *further)) else LMCACHE_MISSING


def quiet_lmcache() -> None:
    """Before its first import: errors only, where nobody has asked for more."""
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")


class _Metadata:
    """What a backend asks of ``MemoryObj.metadata``."""

    cached_positions = None

    def __init__(self, shape: Any, dtype: Any, fmt: Any) -> None:
        self.shape, self.dtype, self.fmt = shape, dtype, fmt


class RowObject:
    """The part of LMCache's ``MemoryObj`` that its storage backends use, over the first bytes of a row."""

    def __init__(
        self, buffers: Buffers, row: int, nbytes: int, shape: Any = None, dtype: Any = None, fmt: Any = None
    ) -> None:
        self.byte_array = buffers.view(row, nbytes)
        self.data_ptr = buffers.address(row)
        self.metadata = _Metadata(shape, dtype, fmt)
        self.tensor = self.raw_data = self.byte_array  # asked for whether it is there

    def get_size(self) -> int:
        """Bytes of the block."""
        return self.byte_array.nbytes

    def get_physical_size(self) -> int:
        """Bytes of the block, too: what comes after it in the row is not LMCache's."""
        return self.byte_array.nbytes

    def ref_count_up(self) -> None:
        """The row stays with the caller, who waits until it was moved."""

    def ref_count_down(self) -> None:
        """As above."""


class RowObjects:
    """Those of all rows. Safe from many threads, each with buffers of its own.

    Parameters
    ----------
    describe : shape, dtype and format of a block of so many bytes.
    """

    def __init__(self, describe: Callable[[int], tuple[Any, Any, Any]] = lambda nbytes: (None, None, None)) -> None:
        self._describe = describe
        self._made: dict[tuple[Buffers, int, int], RowObject] = {}

    def of(self, buffers: Buffers, row: int, nbytes: int) -> RowObject:
        """The first ``nbytes`` of a row."""
        found = self._made.get((buffers, row, nbytes))
        if found is None:
            found = self._made[buffers, row, nbytes] = RowObject(buffers, row, nbytes, *self._describe(nbytes))
        return found

    def clear(self) -> None:
        """Let go of the buffers."""
        self._made.clear()
