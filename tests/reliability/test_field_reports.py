# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Faults that users of other stores reported, as tests. README.md of this folder says which report is tested where.

Method: each test brings about the circumstances of the report and asserts the right outcome. LM is LMCache, VL vLLM,
SG SGLang, MC Mooncake; the numbers are those of their public trackers.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from oracle import IDENTITY
from python_support import random_bytes, wait_until
from reliability_support import MIB, PATIENCE_S, POOL, close_in_time

import kvstore
from kvstore import errors
from kvstore.testing import SimDisk

PACKAGE_ROOT = str(Path(kvstore.__file__).parent.parent)


def keys_of(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def statuses(job: kvstore.Job) -> list[str]:
    return [result.status for result in job.wait(PATIENCE_S)]


def regions_by_state(pool: kvstore.Pool) -> tuple[int, int]:
    """How many regions there are in all states together, and how many there should be."""
    stats = pool.stats()
    states = ("free", "open", "sealed", "retiring", "quarantined")
    return sum(stats[f"regions_{state}"] for state in states), stats["regions"]


def test_buffers_overwritten_as_soon_as_their_put_is_done_do_not_reach_other_blocks(tmp_path):
    """LM#4385: sessions got the blocks of others, through staging buffers that were reused too early."""
    path = str(tmp_path / "pool.img")
    kvstore.format(path, size=160 * MIB, region_bytes=4 * MIB, min_block_bytes=4096)
    nbytes = MIB + 13  # unaligned: through staging
    with kvstore.open(path, staging_bytes="4MiB") as pool:
        space, queue = pool.space(**IDENTITY), pool.queue()
        buffers = {key: bytearray(random_bytes(nbytes, int(key))) for key in keys_of(64)}
        jobs = {space.put_many([key], [buffer], queue=queue): key for key, buffer in buffers.items()}
        while jobs:
            assert select.select([queue], [], [], PATIENCE_S)[0]
            for job in queue.drain():
                assert statuses(job) == ["stored"]
                buffers[jobs.pop(job)][:] = b"\xff" * nbytes
        outs = [bytearray(nbytes) for _ in buffers]
        assert statuses(space.get_many(list(buffers), outs)) == ["hit"] * 64
        assert outs == [random_bytes(nbytes, i) for i in range(64)]


def test_the_block_of_a_batch_that_failed_is_a_miss_until_it_is_put_again(disk, sim_space):
    """LM#4991: a store that failed stayed visible, and every hit on it was noise."""
    keys, values = keys_of(8), [random_bytes(20_000, i) for i in range(8)]
    disk.fault("error", op="write", skip=3)
    results = sim_space.put_many(keys, values).wait(PATIENCE_S)
    (failed,) = [i for i, result in enumerate(results) if not result]
    assert sim_space.contains(keys) == [i != failed for i in range(8)]
    assert sim_space.get(keys[failed], bytearray(20_000)) is None
    again = sim_space.put_many(keys, values).wait(PATIENCE_S)
    assert [result.status for result in again] == ["stored" if i == failed else "present" for i in range(8)]
    outs = [bytearray(20_000) for _ in keys]
    assert statuses(sim_space.get_many(keys, outs)) == ["hit"] * 8
    assert outs == values


def test_a_thousand_blocks_are_a_thousand_hits_after_a_restart_and_no_region_is_lost(tmp_path):
    """LM#562, LM#1788, LM#2734, LM#2273: after a restart the disk was full of what could never hit."""
    path = str(tmp_path / "pool.img")
    kvstore.format(path, size=96 * MIB, **POOL)
    keys = keys_of(1000)
    with kvstore.open(path) as pool:
        assert all(pool.space(**IDENTITY).put_many(keys, [random_bytes(5000, i) for i in range(1000)]).wait(PATIENCE_S))
    with kvstore.open(path) as pool:
        outs = [bytearray(5000) for _ in keys]
        assert statuses(pool.space(**IDENTITY).get_many(keys, outs)) == ["hit"] * 1000
        assert outs == [random_bytes(5000, i) for i in range(1000)]
        there, all_of_them = regions_by_state(pool)
        assert there == all_of_them


def test_a_crash_at_any_step_of_a_put_loses_no_space(disk):
    """LM#4078: a crash between reserving a slot and committing it lost the slot for ever."""
    outcomes = set()
    for step in range(10):
        pool = kvstore.open(disk.path, heartbeat_s=0.05)
        disk.stop(after=step)
        job = pool.space(**IDENTITY).put_many([b"step %d" % step], [random_bytes(50_000, step)], durable=True)
        outcomes.update(statuses(job))
        assert isinstance(close_in_time(pool), errors.KvStoreError)
        disk.power_cut(cache_survives=True)
    assert outcomes == {"error", "stored"}  # the steps reached past the end of a put
    with kvstore.open(disk.path) as pool:
        space = pool.space(**IDENTITY)
        there, all_of_them = regions_by_state(pool)
        assert there == all_of_them
        assert pool.stats()["regions_quarantined"] == 0
        for i in range(3 * all_of_them):  # every region can still be filled, and reused
            assert space.put(b"fill %d" % i, bytes(2 * MIB)).status == "stored"


def test_a_batch_keeps_many_requests_in_flight_instead_of_one(tmp_path):
    """LM#4697, LM#3961, LM#81, LM#1640, MC#2806: a batch took as long as its blocks one after the other."""
    latency_s, count = 0.02, 64
    disk = SimDisk(192 * MIB, latency_ms=latency_s * 1000)
    kvstore.format(disk.path, region_bytes=4 * MIB, min_block_bytes=4096)
    with kvstore.open(disk.path) as pool:
        space, keys = pool.space(**IDENTITY), keys_of(count)
        values = [random_bytes(100_000, i) for i in range(count)]
        assert all(space.put_many(keys, values).wait(PATIENCE_S))
        outs = [bytearray(100_000) for _ in keys]
        started = time.monotonic()
        assert statuses(space.get_many(keys, outs)) == ["hit"] * count
        assert time.monotonic() - started < count * latency_s / 4
        assert outs == values
    disk.remove()


def test_cancelling_twice_what_also_completes_leaves_no_count_negative(disk, sim_pool):
    """LM#3381: a second unpin made the pin count -1."""
    space, keys = sim_pool.space(**IDENTITY), keys_of(8)
    assert all(space.put_many(keys, [random_bytes(50_000, i) for i in range(8)], durable=True).wait(PATIENCE_S))
    space.match_prefix(keys, pin=True)
    disk.fault("stuck", op="read", times=4)
    job = space.prefetch(keys)
    for _ in range(2):
        job.cancel()
        space.unpin(keys)

    def is_done() -> bool:
        disk.release_stuck()
        return job.done

    wait_until(is_done, "the prefetch ends")
    job.cancel()
    space.unpin(keys)
    stats = sim_pool.stats()
    assert {name: value for name, value in stats.items() if isinstance(value, (int, float)) and value < 0} == {}
    assert stats["pins"] == stats["regions_pinned"] == stats["pieces_in_flight"] == stats["staging_buffers_out"] == 0
    assert space.delete(keys)[0].status == "deleted"
    assert set(statuses(space.prefetch(keys))) == {"miss"}


def test_processes_with_other_hash_seeds_find_each_others_blocks(tmp_path):
    """LM#1139, LM#2136, LM#1739, LM#2979: keys that depended on PYTHONHASHSEED were put and never found."""
    path = str(tmp_path / "pool.img")
    kvstore.format(path, size=64 * MIB, **POOL)
    source = """
import sys, kvstore
with kvstore.open(sys.argv[1]) as pool:
    space = pool.space(model="m", dtype="bf16", layers=[0, 1], tp_size=4, engine="e")
    print(space.put(b"key", b"abc").status, hash("m"))
"""
    told = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": PACKAGE_ROOT}
        command = [sys.executable, "-c", source, path]
        told.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split())
    assert [status for status, _ in told] == ["stored", "present"]
    assert told[0][1] != told[1][1]  # the seeds did differ


def test_a_block_that_went_after_the_lookup_is_told_and_the_run_before_it_is_usable(file_pool_path):
    """LM#1690, MC#3331, MC#3465: exists said yes, and get gave fewer bytes and called it success."""
    with kvstore.open(file_pool_path) as pool:
        space, keys = pool.space(**IDENTITY), keys_of(16)
        values = [random_bytes(30_000, i) for i in range(16)]
        assert all(space.put_many(keys, values, chain=True).wait(PATIENCE_S))
        assert space.match_prefix(keys) == 16
        assert space.delete([keys[8]])[0].status == "deleted"
        outs = [bytearray(30_000) for _ in keys]
        results = space.get_many(keys, outs).wait(PATIENCE_S)
        assert [(r.status, r.nbytes) for r in results] == [("hit", 30_000)] * 8 + [("miss", 0)] + [("hit", 30_000)] * 7
        assert outs[:8] == values[:8]
        assert space.match_prefix(keys) == 8


@pytest.mark.parametrize("aligned", [True, False])
def test_a_buffer_changed_while_its_put_runs_is_never_a_hit_of_neither(disk, sim_pool, aligned):
    """VL#46951: memory was given to another request while a store of it was in flight."""
    space = sim_pool.space(**IDENTITY)
    whole = memoryview(sim_pool.alloc(3 * MIB))
    buffer = whole if aligned else whole[1:-1]
    before, after = random_bytes(len(buffer), 1), random_bytes(len(buffer), 2)
    buffer[:] = before
    disk.fault("stuck", op="write", times=1)
    job = space.put_many([b"key"], [buffer])
    wait_until(lambda: disk.stuck_count or job.done, "the write is stuck")
    assert not job.done
    buffer[:] = after  # which the caller must not do before the job is done
    disk.release_stuck()
    assert statuses(job) == ["stored"]
    out = bytearray(len(buffer))
    if space.get(b"key", out) is not None:
        assert bytes(out) in (before, after)
    space.put(b"other", before)
    buffer[:] = bytes(len(buffer))  # which it may now
    assert space.get(b"other", out) == len(out)
    assert out == before


def test_a_hit_larger_than_the_staging_memory_is_delivered_whole(file_pool_path):
    """SG#40193: a full hit was cut, without a word, to what the staging memory could hold."""
    with kvstore.open(file_pool_path, staging_bytes="4MiB") as pool:
        space, keys = pool.space(**IDENTITY), keys_of(10)
        values = [random_bytes(3 * MIB + 1, i) for i in range(10)]
        assert all(space.put_many(keys, values).wait(PATIENCE_S))
        outs = [memoryview(bytearray(3 * MIB + 2))[1:] for _ in keys]  # unaligned: all of it through staging
        results = space.get_many(keys, outs).wait(PATIENCE_S)
        assert [(r.status, r.nbytes) for r in results] == [("hit", 3 * MIB + 1)] * 10
        assert [bytes(out) for out in outs] == values


def test_a_hole_that_a_failed_put_left_is_filled_by_the_next_put_of_the_chain_and_nothing_else_is_written(
    disk, sim_pool
):
    """SG#17018: one failed store made every later block of its prefix useless, and nothing tried again."""
    space, keys = sim_pool.space(**IDENTITY), keys_of(20)
    values = [random_bytes(40_000, i) for i in range(20)]
    disk.fault("error", op="write", skip=7)
    first = space.put_many(keys, values, chain=True).wait(PATIENCE_S)
    (hole,) = [i for i, result in enumerate(first) if not result]
    assert space.match_prefix(keys) == hole
    written = sim_pool.stats()["bytes_put"]
    assert statuses(space.put_many(keys, values, chain=True)).count("stored") == 1
    assert sim_pool.stats()["bytes_put"] - written == 40_000
    assert space.match_prefix(keys) == 20


def test_a_key_that_is_there_does_not_fail_its_batch(file_pool_path):
    """MC#2827, SG#8651: one duplicate failed the whole batch, and left keys without data."""
    with kvstore.open(file_pool_path) as pool:
        space, keys = pool.space(**IDENTITY), keys_of(10)
        space.put(keys[4], b"first")
        found = statuses(space.put_many(keys, [b"second"] * 10))
        assert found == ["stored"] * 4 + ["present"] + ["stored"] * 5
        out = bytearray(6)
        assert [space.get(key, out) for key in keys] == [6] * 4 + [5] + [6] * 5


REGISTERS_AND_WAITS = """
import mmap, sys, kvstore
pool = kvstore.open(sys.argv[1], wait_s=60)
memory = mmap.mmap(-1, 4 << 20)
assert pool.register(memory), "not registered"
space = pool.space(engine="killed")
job = space.put_many([b"%d" % i for i in range(8)], [memoryview(memory)[: 1 << 19]] * 8)
print("registered", flush=True)
sys.stdin.read()
"""


def test_killed_processes_leave_no_memory_registered(file_pool_path, python):
    """MC#1765: clients that crashed leaked registrations, until none was left."""
    with kvstore.open(file_pool_path) as pool:
        registration = pool.register(pool.alloc(4 * MIB))
        if not registration:
            pytest.skip(f"io_uring registers no memory here: {registration.reason}")
    for _ in range(6):
        child = python(REGISTERS_AND_WAITS, file_pool_path)
        line = child.stdout.readline()
        child.kill()
        assert line == "registered\n", child.stderr.read()
        child.communicate()
    with kvstore.open(file_pool_path, wait_s=PATIENCE_S) as pool:
        assert pool.register(pool.alloc(4 * MIB))
