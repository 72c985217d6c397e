# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""HostPages: the pages of one of SGLang's host pools, as memory that the store reads and writes without a copy.

A page is one block, however many pieces of memory it has (K and V of all layers in the page_first layouts): one
checksum covers them, so a page is a hit as a whole or a miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvstore.errors import ConfigError
from kvstore.sglang import compat

_PIECES_MAX = 512  # segments of one block


class HostPages:
    """The pages of one host pool.

    Parameters
    ----------
    host_pool : SGLang's, whose memory stays where it is.

    Raises
    ------
    ConfigError : its layout has no pages that can be addressed; the message says which have.
    """

    def __init__(self, host_pool: Any) -> None:
        self._pool = host_pool
        self._page_tokens = compat.page_tokens(host_pool)
        try:
            _, sizes = host_pool.get_page_buffer_meta(torch.arange(self._page_tokens))
        except (AttributeError, NotImplementedError, ValueError) as error:
            raise ConfigError(
                f"a host pool of layout {getattr(host_pool, 'layout', None)!r} gives no addresses of its pages "
                f"({error}): run SGLang with --hicache-mem-layout page_first"
            ) from error
        self.pieces = tuple(int(size) for size in sizes)
        self.page_bytes = sum(self.pieces)
        if not 1 <= len(self.pieces) <= _PIECES_MAX:
            raise ConfigError(
                f"a page of this host pool has {len(self.pieces)} pieces, allowed are 1 to {_PIECES_MAX}: run SGLang "
                "with --hicache-mem-layout page_first"
            )

    def buffers(self, host_indices: torch.Tensor, count: int) -> list[Sequence[tuple[int, int]]]:
        """Return the memory of pages, each as ``(pointer, nbytes)`` of its pieces. It stays the host pool's.

        Parameters
        ----------
        host_indices : of the tokens of ``count`` pages, as SGLang gives them.

        Raises
        ------
        ValueError : they are not of so many pages.
        """
        if len(host_indices) != count * self._page_tokens:
            raise ValueError(f"{len(host_indices)} host indices for {count} pages of {self._page_tokens} tokens")
        pointers, sizes = self._pool.get_page_buffer_meta(host_indices)
        each = len(self.pieces)
        if tuple(sizes) != self.pieces * count or len(pointers) != each * count:
            raise ValueError(f"the host pool gives {len(pointers)} pieces for {count} pages of {each}")
        segments = list(zip(pointers, sizes, strict=True))
        return [segments[start : start + each] for start in range(0, each * count, each)]
