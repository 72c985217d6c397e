# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What kvbench measures: an engine keeps blocks of bytes, which are told by number, and moves them in batches.

The runner owns time, content and counting; an engine only moves bytes. So all are measured and verified alike:

    engine.why_not()                        # None, or why it cannot run here
    engine.open(work)                       # an empty store at work.paths
    buffers = engine.buffers()              # for each worker its own
    engine.batch("put", [0, 1], buffers)    # from the rows of buffers; timed
    engine.batch("get", [1, 0], buffers)    # into them; timed, and verified by the runner outside of the time
    engine.close()

An engine that is a program with a clock of its own, such as fio, is a :class:`SelfTimedEngine`.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from kvstore.bench.content import Buffers, Content, Verify, whole_pages

__all__ = ["Engine", "Measured", "Moved", "Op", "SelfTimedEngine", "Work", "key_of"]

#: What is done to a batch of blocks. Every engine knows the first two.
Op: TypeAlias = Literal["get", "put", "prefetch", "lookup"]
#: What a batch comes to: None when all was moved, else for each block whether it was. False is a miss.
Moved: TypeAlias = "Sequence[bool] | None"


@dataclass(frozen=True)
class Work:
    """What an engine has to be ready for.

    Blocks are numbered from 0. The newest ``population`` numbers that were put must be there; what is older may be
    overwritten or evicted. A number is never put twice. The size of a block follows from its number.
    """

    paths: tuple[str, ...]
    block_sizes: tuple[int, ...]  # that occur, in bytes
    population: int
    size_bytes: int  # of each of the paths that may be used; a file that is not there is to be made so large
    iodepth: int = 1  # blocks of a batch, at most
    calls: int = 1  # batches of a thread in flight at once: more than one for those that overlap
    numjobs: int = 1  # threads that call at once
    weights: tuple[float, ...] = (1.0,)  # of the sizes
    verify: Verify = "stamp"
    seed: int = 1
    options: Mapping[str, str] = field(default_factory=dict)  # the engine's own, as the user wrote them

    @property
    def block_bytes(self) -> int:
        """Of the largest block."""
        return max(self.block_sizes)

    @property
    def row_bytes(self) -> int:
        """Of the largest block, rounded up to pages: the stride of those that place blocks by number."""
        return whole_pages(self.block_bytes)

    @property
    def kept(self) -> int:
        """Blocks that engines keep which must remove the oldest themselves: as many as there is room for."""
        return max(self.size_bytes // self.row_bytes, self.population)

    def bytes_of(self, number: int) -> int:
        """Size of block ``number``: drawn by the weights, always the same for a number."""
        if len(self.block_sizes) == 1:
            return self.block_sizes[0]
        # Fibonacci hashing: successive numbers fall evenly between 0 and 1.
        draw = ((number * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF) / 2**64 * sum(self.weights)
        for size, weight in zip(self.block_sizes, self.weights, strict=True):
            draw -= weight
            if draw < 0:
                return size
        return self.block_sizes[-1]

    def content(self) -> Content:
        """What its blocks hold: with each call other bytes, those of another store."""
        return Content(self.block_bytes, self.seed, whole=self.verify == "full")


def key_of(number: int) -> bytes:
    """Of a block, where keys are bytes: eight, which sort as numbers do."""
    return number.to_bytes(8, "big")


class Engine(ABC):
    """One rival. Made without arguments and without touching anything.

    ``batch`` and ``begin`` are called by ``numjobs`` threads at once, each with buffers of its own; all else by one.
    Whatever goes wrong is an exception with a message for people; a batch that moved only a part is one too, unless
    those blocks are misses.
    """

    name: ClassVar[str] = "?"
    operations: ClassVar[frozenset[Op]] = frozenset({"get", "put"})
    #: Whether it can spread blocks over several devices; others get one path.
    many_paths: ClassVar[bool] = False
    #: Whether its blocks are in files of its own: with ``filename=ram`` it gets a file system there, not a device.
    in_folder: ClassVar[bool] = False
    #: Its own options, name to what it does; the user writes ``<engine>.<option>``.
    option_help: ClassVar[Mapping[str, str]] = {}
    #: Whether a thread can have several batches in flight: it has ``begin``.
    overlaps: ClassVar[bool] = False
    work: Work

    def why_not(self) -> str | None:
        """Why it cannot run here, with the mend (``"fio is missing: apt-get install fio"``); None: it can."""
        return None

    @abstractmethod
    def open(self, work: Work) -> None:
        """Make an empty store at ``work.paths`` and keep ``work``. The paths are this engine's to overwrite."""

    @abstractmethod
    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Moved:
        """Move block ``numbers[i]``, ``work.bytes_of(numbers[i])`` bytes, between the store and row i of ``buffers``.

        Parameters
        ----------
        op : one of ``operations``.
        numbers : 1 to ``work.iodepth`` of them; in flight all at once, in the way a caller of this engine does that. Of
            a get the same one may come twice, and goes to both rows.
        buffers : the calling thread's own. The engine may read (put) or write (get) its rows until this returns or
            raises, and never after: what an exception leaves in flight is waited for first. After an exception, and of
            a miss, what a get left in its rows is undefined.

        """

    def begin(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Callable[[], Moved]:
        """Start what ``batch`` does, where the engine overlaps; what is returned waits for its end. Each batch of a
        thread that is in flight has buffers of its own.
        """
        raise TypeError(f"{self.name} has no calls that return before they are done")

    @abstractmethod
    def close(self) -> None:
        """Give everything back. Also called after an ``open`` that failed half-way."""

    def buffers(self) -> Buffers:
        """Rows for one worker, in the memory that this engine likes best."""
        return Buffers(self.work.iodepth, self.work.row_bytes)

    def flush(self) -> None:  # noqa: B027 - nothing to do is right for an engine that keeps nothing back
        """Wait until what was put is on the device, and do nothing else: with a turn of puts its time counts. Called
        after the store was filled and when a turn of puts ends, by one thread, while no batch runs.
        """

    def forget(self) -> None:  # noqa: B027 - nothing to do is right for an engine that keeps nothing in memory
        """Keep nothing in memory of what was put and flushed, so that a get brings it from the device. Not timed;
        called before gets are measured and before puts are read back, by one thread, while no batch runs.
        """

    def processes(self) -> list[int]:
        """Whose CPU time counts, with that of their children: this process and any server that does the work."""
        return [os.getpid()]

    def staged(self) -> int | None:
        """How many gets so far brought what a prefetch had staged; None: that is not known."""
        return None

    def facts(self) -> dict[str, Any]:
        """What a reader of the result wants to know: version, path taken, write amplification. JSON values."""
        return {}


@dataclass
class Measured:
    """What a program with a clock of its own says it did."""

    blocks: int
    bytes: int
    seconds: float
    latency_ns: dict[int, int]  # latency of a block to how many had it
    usr_s: float
    sys_s: float


class SelfTimedEngine(Engine):
    """A program that makes, times and verifies its own requests."""

    @abstractmethod
    def lay_out(self) -> None:
        """Write the blocks that gets will read, where they are not there. Called before them, not timed."""

    @abstractmethod
    def measure(
        self,
        op: Op,
        seconds: float | None,
        blocks: int | None,
        zipf: float | None = None,
        stopped: threading.Event | None = None,
    ) -> Measured:
        """Do ``op`` for so long or for so many blocks, whichever ends first; ``work.numjobs`` at once.

        Parameters
        ----------
        zipf : of gets: theta of the law they choose by; None: all alike.
        stopped : set when it has to end at once, by an exception.
        """

    @abstractmethod
    def check(self) -> int:
        """Verify on the device what its gets have read, as ``work.verify`` says. Not timed; ``facts`` tell it, too.

        Returns
        -------
        how many blocks are right; an exception when one is wrong.
        """

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Moved:
        raise TypeError(f"{self.name} makes its own requests")
