# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""One file or device without any structure, which several engines keep blocks in: one after another, each at a multiple
of the largest; a block lies where the remainder of its number by the count of places says. Nothing is indexed, nothing
survives. Opened for direct I/O, which moves whole pages.
"""

from __future__ import annotations

import os
from pathlib import Path

from kvstore.bench.engines.base import Engine, Work
from kvstore.bench.places import grow, usable_bytes

__all__ = ["FlatEngine", "FlatFile"]


class FlatFile:
    """The first of ``work.paths``, open.

    Raises
    ------
    RuntimeError : there is no room for the population.
    """

    def __init__(self, work: Work) -> None:
        self.path = Path(work.paths[0])
        self.row_bytes = work.row_bytes
        grow(self.path, work.size_bytes)
        self.places = usable_bytes(self.path, work.size_bytes) // work.row_bytes
        if self.places < work.population:
            raise RuntimeError(f"{self.path} has room for {self.places} blocks, not for {work.population}")
        self.fd = os.open(self.path, os.O_RDWR | os.O_DIRECT)

    @property
    def span(self) -> int:
        """Bytes of all places."""
        return self.places * self.row_bytes

    def offset(self, number: int) -> int:
        """Where a block lies."""
        return number % self.places * self.row_bytes

    def flush(self) -> None:
        """Wait until the device has what was written."""
        os.fdatasync(self.fd)

    def close(self) -> None:
        """Once."""
        os.close(self.fd)


class FlatEngine(Engine):
    """Whose blocks are in such a file, which ``open`` makes."""

    file: FlatFile | None = None

    def flush(self) -> None:
        assert self.file is not None
        self.file.flush()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
