# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs and completion queues: waits end, jobs go on, buffers are held until no device touches them (I11).

Method: a simulated disk whose reads are stuck until told to complete, so that "in flight" is a fact, not a guess.
"""

from __future__ import annotations

import gc
import select
import signal
import threading
import time
import weakref

import numpy as np
import pytest
from python_support import IDENTITY, random_bytes, wait_until

import kvstore
from kvstore import errors

VALUE = random_bytes(5000, 1)


@pytest.fixture
def stuck(disk, sim_pool):
    """A space with block b"key", and a function that makes the next n reads of it stuck."""
    space = sim_pool.space(**IDENTITY)
    space.put(b"key", VALUE, durable=True)
    block = space.describe([b"key"])[0]

    def stick(times: int = 1) -> None:
        disk.fault("stuck", op="read", first_byte=block.offset_bytes, last_byte=block.offset_bytes + 1, times=times)

    space_and_stick = (space, stick)
    yield space_and_stick
    disk.clear_faults()
    disk.release_stuck()


def wait_stuck(disk, count: int = 1) -> None:
    wait_until(lambda: disk.stuck_count == count, f"{count} reads are stuck")


def test_a_wait_that_ends_leaves_the_job_going(disk, stuck):
    space, stick = stuck
    stick()
    out = bytearray(5000)
    job = space.get_many([b"key"], [out], tag=3)
    with pytest.raises(errors.WaitTimeout, match=r"job \d+ of 1 items is not done after 0.01 s; it goes on"):
        job.wait(timeout_s=0.01)
    with pytest.raises(TimeoutError):
        job.wait(0)
    with pytest.raises(errors.WaitTimeout):
        _ = job.results
    assert not job.done
    assert job.elapsed_s == 0
    wait_stuck(disk)
    disk.release_stuck()
    assert [r.status for r in job.wait(10)] == ["hit"]
    assert out == VALUE
    assert [r.nbytes for r in job.results] == [5000]


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), "1"])
def test_absurd_timeouts(disk, stuck, timeout_s):
    space, stick = stuck
    stick()
    job = space.get_many([b"key"], [bytearray(5000)])
    with pytest.raises((errors.ConfigError, TypeError), match="timeout_s"):
        job.wait(timeout_s)
    wait_stuck(disk)
    disk.release_stuck()
    job.wait(1e30)


class Memory:
    """Memory whose end can be seen: a numpy array that takes weak references."""

    def __init__(self, nbytes: int) -> None:
        class Array(np.ndarray):
            pass

        self.array = np.zeros(nbytes, dtype=np.uint8).view(Array)
        self.alive = weakref.ref(self.array)


def test_buffers_of_a_dropped_job_are_held_until_it_is_done(disk, sim_pool, stuck):
    space, stick = stuck
    stick()
    memory = Memory(5000)
    job = space.get_many([b"key"], [memory.array])
    del memory.array, job
    wait_stuck(disk)
    gc.collect()
    assert memory.alive() is not None, "the device may still write to this memory"
    assert sim_pool._core.jobs_held == 1
    disk.release_stuck()
    # Later calls sweep the table of jobs in flight; no thread of ours runs Python code to do it.
    wait_until(
        lambda: space.get_many([b"key"], [bytearray(5000)]).wait() and memory.alive() is None, "it is given back"
    )
    assert sim_pool._core.jobs_held <= 1


def test_buffers_are_given_back_as_soon_as_a_wait_sees_the_job_done(stuck):
    space, _ = stuck
    memory = Memory(5000)
    job = space.get_many([b"key"], [memory.array])
    del memory.array
    job.wait()
    gc.collect()
    assert memory.alive() is None
    assert job.results[0].nbytes == 5000


def test_the_table_of_jobs_in_flight_stays_small(stuck, sim_pool):
    space, _ = stuck
    for _ in range(500):
        job = space.get_many([b"key"], [bytearray(5000)])
        while not job._core.done:
            time.sleep(0)
    assert sim_pool._core.jobs_held < 10


def test_close_with_a_read_outstanding_raises_names_it_and_keeps_its_buffer(disk):
    with kvstore.open(disk.path) as pool:
        space = pool.space(**IDENTITY)
        space.put(b"key", VALUE, durable=True)
        block = space.describe([b"key"])[0]
        disk.fault("stuck", op="read", first_byte=block.offset_bytes, last_byte=block.offset_bytes + 1)
        memory = Memory(5000)
        job = space.get_many([b"key"], [memory.array])
        wait_stuck(disk)
        started = time.monotonic()
        with pytest.raises(errors.WaitTimeout, match=f"offset {block.offset_bytes} of {disk.path}"):
            pool.close(timeout_s=0.2)
        assert time.monotonic() - started < 5
        assert pool.closed
        del memory.array
        gc.collect()
        assert memory.alive() is not None
        disk.release_stuck()
        wait_until(lambda: not disk.stuck_count, "the read lands")
        memory.alive()[:] = 0  # still mapped
        del job
        gc.collect()
        assert memory.alive() is not None


def test_cancel_ends_what_has_not_begun_and_waits_for_what_has(disk, stuck):
    space, stick = stuck
    stick()
    outs = [bytearray(5000) for _ in range(2)]
    job = space.get_many([b"key", b"missing"], outs)
    wait_stuck(disk)
    job.cancel()
    job.cancel(1)
    for item in (2, 999, -1):
        with pytest.raises(errors.ConfigError, match=f"item is {item}, allowed are 0 to 1"):
            job.cancel(item)
    assert not job.done
    with pytest.raises(BufferError):
        outs[0].append(0)
    disk.release_stuck()
    first, _ = job.wait(10)
    assert first.status == "hit" or first.code == "canceled"
    job.cancel()
    job.cancel(1)
    with pytest.raises(errors.ConfigError, match="item is 7, allowed are 0 to 1"):
        job.cancel(7)


# ---- completion queues ----


def test_a_queue_is_readable_until_it_is_drained(pool, space):
    queue = pool.queue()
    assert select.select([queue], [], [], 0)[0] == []
    space.put(b"key", VALUE)
    jobs = [space.get_many([b"key"], [bytearray(5000)], queue=queue, tag=i) for i in range(5)]
    finished = []
    while len(finished) < 5:
        assert select.select([queue], [], [], 10)[0] == [queue]
        finished += queue.drain(limit=2)
    assert sorted(job.tag for job in finished) == [0, 1, 2, 3, 4]
    assert {*finished} == {*jobs}
    assert all(job.results[0].status == "hit" for job in finished)
    assert select.select([queue], [], [], 0)[0] == []
    assert queue.drain() == []


def test_two_queues_of_one_pool_get_their_own_jobs(pool, space):
    one, two = pool.queue(), pool.queue()
    assert one.fileno() != two.fileno()
    first = space.put_many([b"one"], [b"1"], queue=one)
    second = space.put_many([b"two"], [b"2"], queue=two)
    assert select.select([one], [], [], 10)[0]
    assert select.select([two], [], [], 10)[0]
    assert (one.drain(), two.drain()) == ([first], [second])


def test_a_queue_holds_finished_jobs_whose_objects_were_dropped(pool, space):
    queue = pool.queue()
    space.put_many([b"dropped"], [b"abc"], queue=queue, tag=42)
    gc.collect()
    assert select.select([queue], [], [], 10)[0]
    (job,) = queue.drain()
    assert (job.tag, job.results[0].status) == (42, "stored")


def test_a_dropped_queue_does_not_disturb_its_jobs(pool, space):
    queue = pool.queue()
    job = space.put_many([b"orphan"], [b"abc"], queue=queue)
    del queue
    gc.collect()
    assert job.wait(10)[0].status == "stored"


# ---- threads and signals ----


def test_many_threads_put_and_get_at_once(pool, space):
    wrong = []

    def work(number: int) -> None:
        for i in range(20):
            key, value = b"%d-%d" % (number, i), random_bytes(3000 + i, number * 100 + i)
            out = bytearray(4000)
            if (
                space.put(key, value).status != "stored"
                or space.get(key, out) != len(value)
                or out[: 3000 + i] != value
            ):
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_waiting_gives_up_the_gil(disk, stuck):
    space, stick = stuck
    stick()
    job = space.get_many([b"key"], [bytearray(5000)])
    waiter = threading.Thread(target=job.wait)
    waiter.start()
    wait_stuck(disk)  # this thread runs Python code while the other waits
    disk.release_stuck()
    waiter.join(10)
    assert not waiter.is_alive()


def test_a_signal_handler_ends_the_wait_of_the_main_thread_not_the_job(disk, stuck):
    class Interrupted(Exception):
        pass

    def interrupt(number, frame):
        raise Interrupted

    space, stick = stuck
    stick()
    job = space.get_many([b"key"], [bytearray(5000)])
    wait_stuck(disk)
    previous = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGUSR1])
    timer.start()
    try:
        with pytest.raises(Interrupted):
            job.wait()
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, previous)
    assert not job.done
    disk.release_stuck()
    assert job.wait(10)[0].status == "hit"


def test_close_in_one_thread_ends_the_waits_of_others(disk):
    pool = kvstore.open(disk.path)
    space = pool.space(**IDENTITY)
    jobs = [space.put_many([b"%d" % i], [VALUE]) for i in range(50)]
    results = []
    threads = [threading.Thread(target=lambda job=job: results.append(job.wait()[0].status)) for job in jobs]
    for thread in threads:
        thread.start()
    pool.close()
    for thread in threads:
        thread.join(10)
    assert results == ["stored"] * 50
