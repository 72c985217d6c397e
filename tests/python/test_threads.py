# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Threads and event loops that share one pool, while it reclaims, is canceled under, and closes.

Method: a simulated disk of few regions; what a key holds follows from the key, so that any hit can be judged by
whoever got it. How far everybody gets is counted in operations.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from python_support import IDENTITY, MIB, random_bytes

import kvstore
from kvstore import errors
from kvstore.testing import SimDisk

KEYS = [b"key %d" % number for number in range(24)]
VALUES = [random_bytes(1000 + 130_000 * (number % 12), number) for number in range(24)]
LARGEST = max(len(value) for value in VALUES)
HANG_S = 60


@pytest.fixture
def small_disk():
    """A formatted disk that holds less than all values."""
    made = SimDisk(48 * MIB, seed=1)
    kvstore.format(made.path, region_bytes=2 * MIB, min_block_bytes=64 << 10)
    yield made
    made.remove()


@pytest.fixture
def executor():
    with ThreadPoolExecutor(8) as made:
        yield made


def judge(number: int, nbytes: int | None, out: bytearray) -> bool:
    if nbytes is None:
        return False
    assert bytes(out[:nbytes]) == VALUES[number], f"wrong bytes of {KEYS[number]!r}"
    return True


def nbytes_of(result: kvstore.Result) -> int | None:
    return result.nbytes if result.status == "hit" else None


def use_in_a_thread(space: kvstore.Space, thread: int, operations: int) -> int:
    out = bytearray(LARGEST)
    hits = 0
    for i in range(operations):
        number = (i * (thread + 1) + thread) % len(KEYS)
        other = (number + i) % len(KEYS)
        with contextlib.suppress(errors.BusyError):  # for a moment readers may pin every region of so small a pool
            space.put(KEYS[number], VALUES[number])
        hits += judge(other, space.get(KEYS[other], out), out)
        [result] = space.get_many([KEYS[number]], [out]).wait()
        hits += judge(number, nbytes_of(result), out)
        if i % 5 == thread:
            space.delete([KEYS[other]])
    return hits


async def use_in_a_loop(space: kvstore.Space, task: int, operations: int) -> int:
    out = bytearray(LARGEST)
    hits = 0
    for i in range(operations):
        number = (i * (task + 2) + task) % len(KEYS)
        await space.put_many([KEYS[number]], [VALUES[number]])
        job = space.get_many([KEYS[number]], [out])
        if i % 7 == task:
            job.cancel()
        [result] = await job
        hits += judge(number, nbytes_of(result), out)
    return hits


async def four_tasks(space: kvstore.Space, operations: int) -> int:
    return sum(await asyncio.gather(*(use_in_a_loop(space, task, operations) for task in range(4))))


def test_threads_and_two_event_loops_share_a_pool_that_reclaims(small_disk, executor):
    pool = kvstore.open(small_disk.path)
    space = pool.space(**IDENTITY)
    futures = [executor.submit(use_in_a_thread, space, thread, 40) for thread in range(3)]
    futures += [executor.submit(lambda: asyncio.run(four_tasks(space, 30))) for _ in range(2)]
    assert sum(future.result(HANG_S) for future in futures) > 100
    assert pool.stats()["regions_reclaimed"] > 0
    pool.close()


def test_close_under_threads_and_a_loop_answers_everybody(small_disk, executor):
    pool = kvstore.open(small_disk.path)
    space = pool.space(**IDENTITY)
    everybody_is_busy = threading.Barrier(4)

    def until_closed(use: Callable[[], object]) -> None:
        use()
        everybody_is_busy.wait(HANG_S)
        while True:
            use()

    futures = [
        executor.submit(until_closed, lambda thread=thread: use_in_a_thread(space, thread, 3)) for thread in (0, 1)
    ]
    futures.append(executor.submit(until_closed, lambda: asyncio.run(four_tasks(space, 3))))
    everybody_is_busy.wait(HANG_S)
    pool.close()
    for future in futures:
        with pytest.raises(errors.ClosedError):
            future.result(HANG_S)
    out = bytearray(LARGEST)
    with kvstore.open(small_disk.path) as again:
        space = again.space(**IDENTITY)
        assert any(judge(number, space.get(key, out), out) for number, key in enumerate(KEYS))
