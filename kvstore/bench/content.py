# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the blocks of a benchmark hold: computed from the block's number, so that every get can be checked cheaply.

A block is random bytes, the same for all blocks of a run, with 24 bytes at the head of each 4 KiB page replaced by a
stamp: the block's number, the page's place in it, the store's nonce. To make or check a block is to write or compare
one stamp a page. A part page at the end has a stamp too, cut short if need be. No two stores have the same nonce, so
that what an earlier one left at the same place, in another job or run, is never right.

Before a get the stamps are spoilt, so that an engine that moved nothing is noticed. Where every byte is to be compared
blocks are ``whole``: their random bytes are rotated by the number too, and every byte is spoilt.
"""

from __future__ import annotations

import mmap
import secrets
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["PAGE_BYTES", "Buffers", "Content", "Verify", "whole_pages"]

PAGE_BYTES = 4096


def whole_pages(nbytes: int) -> int:
    """What direct I/O moves for so many bytes."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


_STAMP_WORDS = 3
_WORD_BYTES = 8
_WORD_MASK = 0xFFFFFFFFFFFFFFFF
_SPOILT = np.uint64(_WORD_MASK)
_SPOILT_BYTE = np.uint8(0xFF)

Verify: TypeAlias = Literal["none", "stamp", "full"]
Bytes: TypeAlias = npt.NDArray[np.uint8]


class Buffers:
    """``count`` page-aligned rows of whole pages, for one worker.

    Parameters
    ----------
    arena : page-aligned writable memory of ``count`` rows of ``row_bytes``; None: anonymous memory.
    """

    def __init__(self, count: int, row_bytes: int, arena: Any = None) -> None:
        if row_bytes % PAGE_BYTES:
            raise ValueError(f"rows of {row_bytes} bytes are not whole pages")
        self.arena = mmap.mmap(-1, count * row_bytes) if arena is None else arena
        flat = np.frombuffer(self.arena, np.uint8)
        self.rows: Bytes = flat.reshape(count, row_bytes)
        self._address = int(self.rows.ctypes.data)
        self._views: dict[int, list[memoryview]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def view(self, row: int, nbytes: int) -> memoryview:
        """The first ``nbytes`` of a row, writable."""
        return self.views(nbytes)[row]

    def views(self, nbytes: int) -> list[memoryview]:
        """The same of every row. Made once: engines ask for it while time is taken."""
        found = self._views.get(nbytes)
        if found is None:
            found = self._views[nbytes] = [row[:nbytes].data for row in self.rows]
        return found

    def address(self, row: int) -> int:
        """Of a row's first byte."""
        return self._address + row * self.rows.shape[1]


class Content:
    """Makes and checks blocks of up to ``block_bytes_max``, of one store. Safe from many threads, each with buffers of
    its own.

    Parameters
    ----------
    seed : of the random bytes.
    whole : blocks differ in all their bytes, which ``verify="full"`` needs, and making one writes all of them; else
        in their stamps.
    nonce : of the store; drawn where none is given. Several processes that check one store's blocks must agree on it.
    """

    def __init__(self, block_bytes_max: int, seed: int, *, whole: bool = False, nonce: int | None = None) -> None:
        pages = -(-block_bytes_max // PAGE_BYTES)
        self.row_bytes = pages * PAGE_BYTES
        self.whole = whole
        self.nonce = secrets.randbits(64) if nonce is None else nonce
        self._body = np.random.default_rng(seed).integers(0, 256, self.row_bytes, np.uint8)
        self._pages = np.arange(pages, dtype=np.uint64)

    def fill(self, buffers: Buffers) -> None:
        """Random bytes in every row, once, before the first :meth:`stamp`."""
        buffers.rows[:] = self._body

    def stamp(self, buffers: Buffers, numbers: Sequence[int]) -> None:
        """Make row i the block ``numbers[i]``. Further rows are left as they are, and so is what lies between the
        stamps unless blocks are ``whole``.
        """
        if self.whole:
            for row, number in enumerate(numbers):
                self._rotate_into(buffers.rows[row], number)
        self._stamps(buffers.rows[: len(numbers)])[:] = self._expected(numbers)

    def spoil(self, buffers: Buffers, count: int) -> None:
        """Make the first ``count`` rows no block at all: every byte where blocks are ``whole``, else the stamps only.
        Further rows are left as they are.
        """
        if self.whole:
            buffers.rows[:count] = _SPOILT_BYTE
        else:
            self._stamps(buffers.rows[:count])[:] = _SPOILT

    def check(self, buffers: Buffers, numbers: Sequence[int], sizes: Sequence[int], verify: Verify) -> list[str | None]:
        """What is wrong with each row i, which should be block ``numbers[i]`` of ``sizes[i]`` bytes; None: nothing.

        Changes nothing. Bytes of a row beyond its block are not looked at, nor with ``verify="stamp"`` those between
        the stamps; with ``"none"`` nothing is. ``"full"`` raises ValueError unless blocks are ``whole``.
        """
        whole = all(size == self.row_bytes for size in sizes)
        if (
            whole
            and verify == "stamp"
            and (self._stamps(buffers.rows[: len(numbers)]) == self._expected(numbers)).all()
        ):
            return [None] * len(numbers)
        return [
            self.wrong(buffers, row, number, size, verify)
            for row, (number, size) in enumerate(zip(numbers, sizes, strict=True))
        ]

    def wrong(self, buffers: Buffers, row: int, number: int, nbytes: int, verify: Verify) -> str | None:
        """What is wrong with row ``row``, which should be block ``number`` of ``nbytes``; looks at what :meth:`check`
        looks at. None: nothing.
        """
        if verify == "none":
            return None
        if verify == "full" and not self.whole:
            raise ValueError("all blocks have the same bytes between their stamps: whole=True is for comparing them")
        whole, rest = divmod(nbytes, PAGE_BYTES)
        expected = self._expected([number])[0]
        differs = (self._stamps(buffers.rows[row])[:whole] != expected[:whole]).any(axis=1)
        if differs.any():
            page = int(differs.argmax())
            found = self._stamps(buffers.rows[row])[page].tolist()
            return f"block {number}, page {page}: its stamp is {found}, not {expected[page].tolist()}"
        if verify == "full":
            block = np.empty_like(self._body)
            self._rotate_into(block, number)
            self._stamps(block)[:] = expected
            differs_at = np.flatnonzero(buffers.rows[row, :nbytes] != block[:nbytes])
            if differs_at.size:
                return f"block {number}: byte {int(differs_at[0])} and {differs_at.size - 1} more are wrong"
        elif rest:
            stamp = expected[whole].tobytes()[:rest]
            begin = whole * PAGE_BYTES
            if buffers.rows[row, begin : begin + len(stamp)].tobytes() != stamp:
                return f"block {number}, page {whole}: its stamp is wrong"
        return None

    def _rotate_into(self, row: Bytes, number: int) -> None:
        """What lies between the stamps of a block."""
        # Fibonacci hashing: those of successive numbers are far apart.
        shift = (((number + self.nonce) * 0x9E3779B97F4A7C15 & _WORD_MASK) >> 32) % self.row_bytes
        row[: self.row_bytes - shift], row[self.row_bytes - shift :] = self._body[shift:], self._body[:shift]

    def _expected(self, numbers: Sequence[int]) -> npt.NDArray[np.uint64]:
        """Block by block, page by page."""
        stamps = np.empty((len(numbers), len(self._pages), _STAMP_WORDS), np.uint64)
        stamps[:, :, 0] = np.asarray(numbers, np.uint64)[:, np.newaxis]
        stamps[:, :, 1], stamps[:, :, 2] = self._pages, self.nonce
        return stamps

    def _stamps(self, rows: Bytes) -> npt.NDArray[np.uint64]:
        """The stamps of a row's pages, or of several rows', to read and to write."""
        pages = rows.view(np.uint64).reshape(*rows.shape[:-1], -1, PAGE_BYTES // _WORD_BYTES)
        return pages[..., :_STAMP_WORDS]
