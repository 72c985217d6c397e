# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Awaiting jobs: one eventfd per loop, no thread, cancellation of the wait only."""

from __future__ import annotations

import asyncio
import threading

import pytest
from python_support import IDENTITY, random_bytes, wait_until

import kvstore
from kvstore import errors

VALUE = random_bytes(5000, 1)


async def test_await_gives_the_results(pool, space):
    assert [r.status for r in await space.put_many([b"key"], [VALUE])] == ["stored"]
    out = bytearray(5000)
    results = await space.get_many([b"key", b"missing"], [out, bytearray(1)])
    assert [r.status for r in results] == ["hit", "miss"]
    assert out == VALUE


async def test_many_awaits_at_once_make_no_thread(space):
    space.put(b"key", VALUE)
    threads = threading.active_count()
    jobs = [space.get_many([b"key"], [bytearray(5000)]) for _ in range(200)]
    done = await asyncio.gather(*(wait(job) for job in jobs))
    assert all(results[0] for results in done)
    assert threading.active_count() == threads


async def wait(job):
    return await job


async def test_a_job_that_is_done_can_be_awaited(space):
    job = space.put_many([b"key"], [VALUE])
    job.wait()
    assert (await job)[0].status == "stored"
    assert (await job)[0].status == "stored"


async def test_a_job_given_to_a_queue_can_be_awaited_too(pool, space):
    queue = pool.queue()
    job = space.put_many([b"key"], [VALUE], queue=queue)
    assert (await job)[0].status == "stored"
    await asyncio.sleep(0)
    wait_until(lambda: queue.drain() == [job], "the queue has it")


async def stuck_job(disk, space):
    space.put(b"key", VALUE, durable=True)
    block = space.describe([b"key"])[0]
    disk.fault("stuck", op="read", first_byte=block.offset_bytes, last_byte=block.offset_bytes + 1)
    job = space.get_many([b"key"], [bytearray(5000)])
    while not disk.stuck_count:
        await asyncio.sleep(0.001)
    return job


async def test_canceling_the_task_ends_the_wait_not_the_job(disk, sim_space):
    job = await stuck_job(disk, sim_space)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(wait(job), 0.01)
    assert not job.done
    tasks = [asyncio.ensure_future(wait(job)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    disk.release_stuck()
    first, *rest = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError)
    assert [results[0].status for results in rest] == ["hit", "hit"]


async def test_a_wait_for_a_job_whose_pool_was_closed_meanwhile_ends_with_an_error(disk):
    pool = kvstore.open(disk.path)
    job = await stuck_job(disk, pool.space(**IDENTITY))
    tasks = [asyncio.ensure_future(wait(job)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(errors.WaitTimeout):
        await asyncio.to_thread(pool.close, 0.1)
    for ended in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10):
        assert isinstance(ended, errors.ClosedError)
    for late in (wait(job), asyncio.to_thread(job.wait, 10)):
        with pytest.raises(errors.ClosedError):
            await asyncio.wait_for(late, 10)
    with pytest.raises(errors.ClosedError):
        _ = job.results
    assert not job.done


async def test_the_loop_goes_on_while_a_job_is_awaited(disk, sim_space):
    job = await stuck_job(disk, sim_space)
    task = asyncio.ensure_future(wait(job))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    disk.release_stuck()
    assert (await task)[0].status == "hit"


async def test_one_job_is_awaited_by_one_loop_only(disk, sim_space):
    job = await stuck_job(disk, sim_space)
    task = asyncio.ensure_future(wait(job))
    await asyncio.sleep(0)
    refused = []

    def other_loop() -> None:
        try:
            asyncio.run(wait(job))
        except errors.ConfigError as error:
            refused.append(str(error))

    thread = threading.Thread(target=other_loop)
    thread.start()
    thread.join(10)
    assert "another event loop" in refused[0]
    disk.release_stuck()
    assert (await task)[0].status == "hit"


def test_loops_that_end_leave_nothing_behind(file_pool):
    space = file_pool.space(**IDENTITY)
    for number in range(20):

        async def main(number=number):
            return await space.put_many([b"loop-%d" % number], [VALUE])

        assert asyncio.run(main())[0].status == "stored"
