# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Reading listed blocks back and comparing their checksums, several at a time: the work of ``kvstore check``."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import kvstore
from kvstore.errors import DeviceError, StaleError, WaitTimeout

__all__ = ["Tally", "Verdict", "drop", "sample", "still_there", "verify"]

# Each reads up to 16 MiB at a time; enough of them to keep a drive busy with small blocks.
_THREADS = 8
_AHEAD = 4 * _THREADS


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What one block was found to be: ``"ok"``, ``"corrupt"``, ``"stale"`` or ``"unreadable"``, and the error then."""

    block: kvstore.BlockInfo
    outcome: str
    error: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether the block is there and cannot be read back as it was put."""
        return self.outcome in ("corrupt", "unreadable")


@dataclasses.dataclass
class Tally:
    """What a check has found so far."""

    blocks: int = 0
    bytes: int = 0
    stale: int = 0
    dropped: int = 0
    bad: list[Verdict] = dataclasses.field(default_factory=list)


def verify(pool: kvstore.Pool, blocks: Iterator[kvstore.BlockInfo]) -> Iterator[Verdict]:
    """Verify blocks on several threads, a bounded number ahead; verdicts come in the order of the blocks."""
    with ThreadPoolExecutor(_THREADS, "kvstore-check") as executor:
        ahead: deque[Future[Verdict]] = deque()
        for block in blocks:
            ahead.append(executor.submit(_verify_one, pool, block))
            if len(ahead) == _AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _verify_one(pool: kvstore.Pool, block: kvstore.BlockInfo) -> Verdict:
    try:
        return Verdict(block, pool.verify_block(block))
    except (DeviceError, WaitTimeout) as error:
        return Verdict(block, "unreadable", str(error))


def sample(blocks: Iterator[kvstore.BlockInfo], total: int, wanted: int) -> Iterator[kvstore.BlockInfo]:
    """Choose ``wanted`` of ``total`` blocks at random; fewer where some are not listed any more."""
    position = 0
    for ordinal in sorted(random.sample(range(total), wanted)):
        block = next(itertools.islice(blocks, ordinal - position, None), None)
        if block is None:
            return
        position = ordinal + 1
        yield block


def drop(pool: kvstore.Pool, block: kvstore.BlockInfo) -> bool:
    """Make a block a miss; False when it is not there any more."""
    try:
        pool.drop_block(block)
    except StaleError:
        return False
    return True


def _place(block: kvstore.BlockInfo) -> tuple[int, int, int, int]:
    return block.device, block.region, block.slot, block.generation


def still_there(paths: list[str], bad: list[Verdict]) -> list[Verdict]:
    """Those that a later look at the devices still lists.

    An owner may have reclaimed a region while its payload was being read here. It makes the next generation durable
    before it writes any payload (I2), so what a later listing shows of the same generation was not overwritten.
    """
    suspects = {_place(verdict.block) for verdict in bad}
    with kvstore.open(paths, read_only=True) as pool:
        there = {_place(block) for block in pool.blocks() if _place(block) in suspects}
    return [verdict for verdict in bad if _place(verdict.block) in there]
