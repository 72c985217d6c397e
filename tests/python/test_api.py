# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the calls of Pool and Space promise, on every medium: one behaviour per test."""

from __future__ import annotations

import inspect
import mmap
import time

import numpy as np
import pytest
from python_support import IDENTITY, POOL, random_bytes, wait_until

import kvstore
from kvstore import errors
from kvstore.testing import SimDisk


def keys_of(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}-{i}".encode() for i in range(count)]


# ---- blocks ----


def test_what_is_put_is_got_and_the_first_value_wins(space):
    assert space.put(b"key", b"first").status == "stored"
    again = space.put(b"key", b"second")
    assert (again.status, again.nbytes, bool(again)) == ("present", 5, True)
    out = bytearray(10)
    assert space.get(b"key", out) == 5
    assert out[:5] == b"first"


def test_a_miss_is_a_value(space):
    assert space.get(b"never", bytearray(1)) is None
    result = space.get_many([b"never"], [bytearray(1)]).wait()[0]
    assert (result.status, result.nbytes, result.error, result.code, bool(result)) == ("miss", 0, None, "ok", False)


def test_keys_are_bytes_of_any_length_up_to_1024(space):
    for length in (1, 47, 48, 49, 1024):
        for key in (b"\x00" * length, b"\xff" * length):
            assert space.put(key, key).status == "stored"
            out = bytearray(length)
            assert space.get(key, out) == length
            assert out == key


def test_keys_may_be_bytearray_or_memoryview(space):
    space.put(bytearray(b"mutable"), b"abc", salt=bytearray(b"salt"))
    assert space.contains([memoryview(b"mutable")], salts=memoryview(b"salt")) == [True]
    assert space.contains(bytearray(b"mutable"), salts=bytearray(b"salt")) is True
    assert space.contains(memoryview(b"mutable")) is False


def test_salts_keep_blocks_apart(space):
    for salt in (b"", b"a", b"b"):
        assert space.put(b"key", b"of " + salt, salt=salt).status == "stored"
    out = bytearray(4)
    assert space.get(b"key", out, salt=b"a") == 4
    assert out == b"of a"
    assert space.get(b"key", out, salt=b"c") is None
    assert space.contains([b"key", b"key"], salts=[b"b", b"c"]) == [True, False]
    assert space.delete([b"key"], salts=b"a")[0].status == "deleted"
    assert space.lookup([b"key"] * 3, salts=[b"", b"a", b"b"]) == [3, -1, 4]


@pytest.mark.parametrize(
    "changed",
    [
        {"tp_size": 2},
        {"tp_size": "1"},
        {"tp_size": True},
        {"tp_size": None},
        {"tp_size": [1]},
        {"extra": 0},
        {"model": ""},
    ],
)
def test_a_space_is_an_identity_change_one_field_and_nothing_hits(file_pool, request, changed):
    identity = {"test": request.node.nodeid, **IDENTITY}
    file_pool.space(**identity).put(b"key", b"abc")
    other = file_pool.space(**{**identity, **changed})
    assert other.get(b"key", bytearray(3)) is None
    assert other.contains(b"key") is False
    assert list(other.keys()) == []
    same = file_pool.space(**dict(reversed(identity.items())))
    assert same.get(b"key", bytearray(3)) == 3


def test_parts_are_read_and_verified_alone(space):
    value = random_bytes(3_000_000, 3)
    space.put(b"pages", value, page_hashes=True)
    space.put(b"plain", value)
    for key in (b"pages", b"plain"):
        for offset, nbytes in (
            (0, 1),
            (4095, 2),
            (1_048_575, 2),
            (1_234_567, 1_234_567),
            (2_999_999, 1),
            (0, 3_000_000),
        ):
            out = bytearray(nbytes)
            assert space.get(key, out, offset=offset, nbytes=nbytes) == nbytes
            assert out == value[offset : offset + nbytes]
        out = bytearray(3_000_000)
        assert space.get(key, out, offset=2_000_000) == 1_000_000
        assert out[:1_000_000] == value[2_000_000:]
    a, b = bytearray(10), bytearray(20)
    assert all(space.get_many([b"pages", b"plain"], [a, b], offsets=[5, 7], nbytes=[10, 20]).wait())
    assert (a, b) == (value[5:15], value[7:27])


def test_a_batch_answers_per_item_in_order(space):
    keys = keys_of("batch", 50)
    values = [random_bytes(1000 + i, i) for i in range(50)]
    job = space.put_many(keys, values, tag=99)
    assert (len(job), job.tag) == (50, 99)
    assert [(r.status, r.nbytes) for r in job.wait()] == [("stored", 1000 + i) for i in range(50)]
    assert job.done
    assert job.elapsed_s > 0
    outs = [bytearray(2000) for _ in keys]
    results = space.get_many([*keys[:49], b"missing"], outs).wait()
    assert [r.status for r in results] == ["hit"] * 49 + ["miss"]
    assert all(out.startswith(value) for out, value in zip(outs[:49], values[:49], strict=True))


def test_the_same_key_twice_in_one_batch_is_stored_once(space):
    results = space.put_many([b"twin", b"twin"], [b"abc", b"abc"]).wait()
    assert sorted(r.status for r in results) == ["present", "stored"]


# ---- index ----


def test_match_prefix_counts_the_leading_run(space):
    keys = keys_of("chain", 6)
    space.put_many(keys[:3] + keys[4:], [b"x"] * 5, chain=True).wait()
    assert space.match_prefix(keys) == 3
    assert space.match_prefix(keys[4:]) == 2
    assert space.match_prefix([b"other", *keys]) == 0
    assert space.match_prefix([]) == 0


def test_lookup_tells_sizes_and_contains_takes_one_key_or_many(space):
    space.put(b"five", b"12345")
    assert space.lookup([b"five", b"none"]) == [5, -1]
    assert space.contains([b"five", b"none"]) == [True, False]
    assert space.contains(b"five") is True
    assert space.contains([]) == []


def test_pins_keep_a_block_from_being_deleted(space):
    space.put(b"pinned", b"abc")
    assert space.match_prefix([b"pinned"], pin=True) == 1
    assert space.contains([b"pinned"], pin=True) == [True]
    for _ in range(2):
        result = space.delete([b"pinned"])[0]
        assert isinstance(result.error, errors.BusyError)
        space.unpin([b"pinned"])
    assert [r.status for r in space.delete([b"pinned", b"never"])] == ["deleted", "miss"]
    space.unpin([b"pinned", b"never"])


def test_a_pin_ends_with_its_lease(disk):
    with kvstore.open(disk.path, pin_lease_s=0.05) as pool:
        space = pool.space(**IDENTITY)
        space.put(b"key", b"abc")
        space.contains([b"key"], pin=True)
        wait_until(lambda: space.delete([b"key"])[0].status == "deleted", "the lease ends")


def test_a_deleted_block_can_be_put_again(space):
    space.put(b"key", b"old value")
    assert space.delete([b"key"])[0].nbytes == 9
    assert space.put(b"key", b"new").status == "stored"
    out = bytearray(9)
    assert space.get(b"key", out) == 3
    assert out[:3] == b"new"


def test_touch_counts_as_use_and_takes_unknown_keys(space):
    space.put(b"key", b"abc")
    space.touch([b"key", b"never"])
    assert space.contains(b"key")


def test_match_prefix_of_1000_keys_takes_at_most_300_microseconds(file_space):
    keys = [random_bytes(32, i) for i in range(1000)]
    file_space.put_many(keys, [b"x"] * 1000).wait()
    taken = []
    for _ in range(50):
        started = time.perf_counter()
        assert file_space.match_prefix(keys) == 1000
        taken.append(time.perf_counter() - started)
    assert min(taken) <= 0.3e-3, f"best of 50: {min(taken) * 1e3:.3f} ms"


# ---- listing ----


def test_describe_and_keys_and_blocks_show_what_was_put(pool, space):
    long_key = b"k" * 49
    space.put(b"parent", b"a")
    space.put(
        b"child", b"bc", parent=b"parent", depth=1, salt=b"salt", meta=b"meta" * 7, durable=True, page_hashes=True
    )
    space.put(long_key, b"long", durable=True)
    child, missing = space.describe([b"child", b"nothing"], salts=[b"salt", b""])
    assert missing is None
    assert (child.key, child.salt, child.nbytes, child.depth, child.meta) == (b"child", b"salt", 2, 1, b"meta" * 7)
    assert (child.page_hashes, child.key_is_digest, len(child.checksum)) == (True, False, 32)
    assert child.parent == space.describe([b"child"], salts=b"salt")[0].parent != 0
    assert child.extent_bytes % 4096 == 0
    assert child.offset_bytes % 4096 == 0
    assert child.space == space.identity
    assert child.space_json == space.json
    pool.flush()
    mine = [block for block in pool.blocks() if block.space_json == space.json]
    assert sorted(block.nbytes for block in mine) == [1, 2, 4]
    assert [len(block.key) for block in mine if block.key_is_digest] == [48]
    assert {key for key in space.keys() if len(key) < 48} == {b"parent", b"child"}
    assert set(space.keys(salt=b"salt")) == {b"child"}
    assert space.identity in pool.spaces()


def test_blocks_may_be_deleted_while_they_are_listed(space):
    keys = keys_of("listed", 20)
    space.put_many(keys, [b"x" * 5000] * 20, durable=True).wait()
    for key in space.keys():
        assert space.delete([key])[0].status == "deleted"
    assert space.contains(keys) == [False] * 20


def test_verify_and_drop_of_listed_blocks(disk, sim_pool):
    space = sim_pool.space(**IDENTITY)
    space.put_many([b"good", b"bad"], [b"x" * 100, b"y" * 100], durable=True).wait()
    good, bad = space.describe([b"good", b"bad"])
    disk.poke(bad.offset_bytes + 50, b"Y")
    assert [sim_pool.verify_block(block) for block in (good, bad)] == ["ok", "corrupt"]
    sim_pool.drop_block(good)
    assert space.contains([b"good", b"bad"]) == [False, True]
    assert sim_pool.verify_block(good) == "stale"


# ---- prefetch, memory, evictions ----


def test_prefetched_blocks_are_served_from_memory(pool, space):
    keys = keys_of("prefetch", 4)
    space.put_many(keys, [random_bytes(300_000, i) for i in range(4)]).wait()
    results = space.prefetch([*keys, b"never"], deadline_ms=10_000).wait(10)
    assert [r.status for r in results] == ["hit"] * 4 + ["miss"]
    wait_until(lambda: pool.stats()["pieces_in_flight"] == 0, "the blocks are staged")
    before = pool.stats()
    outs = [bytearray(300_000) for _ in keys]
    assert all(space.get_many(keys, outs).wait())
    assert outs == [random_bytes(300_000, i) for i in range(4)]
    after = pool.stats()
    assert after["bytes_read_payload"] == before["bytes_read_payload"]
    assert after["prefetch_hits"] - before["prefetch_hits"] == 4


def test_allocated_memory_outlives_the_pool(disk):
    pool = kvstore.open(disk.path)
    view = np.frombuffer(pool.alloc(8192), dtype=np.uint8)
    view[:] = 7
    pool.close()
    assert int(view.sum()) == 7 * 8192


def test_memory_that_is_not_there_is_not_registered_however_long_it_is(pool):
    with mmap.mmap(-1, 1 << 16) as memory:
        address = np.frombuffer(memory, np.uint8).ctypes.data
        started = time.monotonic()
        for nbytes in (1 << 62, 1 << 46):
            with pytest.raises(errors.ConfigError, match=f"{nbytes} bytes from 0x[0-9a-f]+ on, not all of it mapped"):
                pool.register((address, nbytes))
        assert time.monotonic() - started < 1  # not by going through all of it


def test_registered_memory_is_held_until_it_is_unregistered(pool, space):
    arena = pool.alloc("1MiB")  # page-aligned memory to stand for an engine's own
    memory = np.frombuffer(arena, dtype=np.uint8)
    registration = pool.register(memory)
    assert bool(registration) == registration.registered
    assert registration or registration.reason
    memory[:] = 5
    space.put(b"registered", memory[:65536])
    with pytest.raises(errors.ConfigError, match="registered already"):
        pool.register(memory)
    pool.unregister(memory)
    with pytest.raises(errors.ConfigError, match="not registered"):
        pool.unregister(memory)


def test_evictions_are_told_in_order_behind_an_eventfd(disk):
    import select

    with kvstore.open(disk.path) as pool:
        feed = pool.evictions()
        space = pool.space(**IDENTITY)
        keys = keys_of("evicted", 3)
        space.put_many(keys, [b"abc"] * 3, salts=b"salt").wait()
        assert select.select([feed], [], [], 0)[0] == []
        for key in keys:
            space.delete([key], salts=b"salt")
        assert select.select([feed], [], [], 10)[0] == [feed]
        first = feed.drain(limit=1)
        rest = feed.drain()
        assert [e.key for e in first + rest] == keys
        assert {(e.salt, e.nbytes, e.reason, e.space_json) for e in first + rest} == {
            (b"salt", 3, "deleted", space.json)
        }
        assert first[0].space == IDENTITY
        assert not feed.overflowed


def test_a_full_feed_says_once_that_it_overflowed(disk):
    with kvstore.open(disk.path) as pool:
        feed = pool.evictions(limit=2)
        space = pool.space(**IDENTITY)
        keys = keys_of("evicted", 5)
        space.put_many(keys, [b"abc"] * 5).wait()
        space.delete(keys)
        wait_until(lambda: feed.overflowed, "the feed overflows")
        assert len(feed.drain()) == 2
        assert not feed.overflowed


def test_a_full_pool_evicts_and_puts_go_on(disk):
    with kvstore.open(disk.path) as pool:
        space = pool.space(**IDENTITY)
        feed = pool.evictions(limit=1_000_000)
        value = random_bytes(1 << 20, 1)
        count = 2 * POOL["size"] >> 20
        for first in range(0, count, 16):
            keys = keys_of("fill", count)[first : first + 16]
            assert {r.status for r in space.put_many(keys, [value] * 16).wait()} == {"stored"}
        evicted = {e.key for e in feed.drain()}
        kept = [key for key in keys_of("fill", count) if key not in evicted]
        assert 0 < len(kept) < count
        assert space.contains(kept) == [True] * len(kept)
        assert space.contains(sorted(evicted)) == [False] * len(evicted)
        out = bytearray(1 << 20)
        assert space.get(kept[0], out) == len(out)
        assert out == value


# ---- life ----


def test_opening_again_gives_the_same_pool_until_both_are_closed(pool_path):
    first = kvstore.open(pool_path)
    second = kvstore.open([pool_path])
    assert first == second
    assert len({first, second}) == 1
    first.close()
    first.close()  # its own again, not the other one
    assert (first.closed, second.closed) == (True, False)
    second.space(a=1).put(b"key", b"abc")
    second.close()
    assert second.closed
    second.close()
    with kvstore.open(pool_path) as third:
        assert third != first
        first.close()
        assert not third.closed


def test_none_is_the_default_of_every_option(pool_path):
    options = [name for name, argument in inspect.signature(kvstore.open).parameters.items() if name != "paths"]
    with kvstore.open(pool_path, **dict.fromkeys(options)) as pool, kvstore.open(pool_path) as second:
        assert pool == second
        assert second.stats()["verify"] == "always"
        pool.space(a=1).put(b"key", b"abc")


def test_opening_with_other_options_is_refused(pool_path):
    with kvstore.open(pool_path, window_bytes="8MiB") as pool:
        with kvstore.open(pool_path) as second:
            assert second == pool
        with pytest.raises(errors.ConfigError, match="open already with window_bytes=8388608"):
            kvstore.open(pool_path, window_bytes="16MiB")


def test_everything_stored_is_there_after_close_and_open(pool_path):
    keys = keys_of("kept", 30)
    values = [random_bytes(10_000 * i + 1, i) for i in range(30)]
    with kvstore.open(pool_path) as pool:
        pool.space(**IDENTITY).put_many(keys, values, salts=b"s").wait()
    with kvstore.open(pool_path) as pool:
        outs = [bytearray(len(value)) for value in values]
        assert all(pool.space(**IDENTITY).get_many(keys, outs, salts=b"s").wait())
        assert outs == values


def test_a_read_only_pool_reads_and_writes_nothing(pool_path):
    with kvstore.open(pool_path) as pool:
        pool.space(**IDENTITY).put(b"key", b"abc", durable=True)
    with open(pool_path, "rb") as file:
        before = file.read()
    with kvstore.open(pool_path, read_only=True) as pool:
        space = pool.space(**IDENTITY)
        assert space.get(b"key", bytearray(3)) == 3
        with pytest.raises(errors.KvStoreError, match=r"read.only"):
            space.put(b"other", b"abc")
    with open(pool_path, "rb") as file:
        assert file.read() == before


def test_the_owner_may_also_look_at_its_pool_read_only(pool_path):
    with kvstore.open(pool_path) as owner:
        owner.space(**IDENTITY).put(b"key", b"abc", durable=True)
        with kvstore.open(pool_path, read_only=True) as pool:
            assert pool is not owner
            assert pool.space(**IDENTITY).get(b"key", bytearray(3)) == 3
        assert not owner.closed


def test_a_pool_of_two_devices_needs_both(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.img", "b.img")]
    kvstore.format(paths, **POOL)
    with kvstore.open(list(reversed(paths))) as pool:
        space = pool.space(**IDENTITY)
        space.put_many(keys_of("two", 40), [random_bytes(500_000, i) for i in range(40)], durable=True).wait()
        assert len(pool.devices()) == len(pool.superblocks()) == 2
        assert {block.device for block in space.describe(keys_of("two", 40))} == {0, 1}
    with pytest.raises(errors.ConfigError, match="pool of 2 devices, 1 were given"):
        kvstore.open(paths[0])


def test_flush_makes_stored_blocks_survive_a_power_cut(disk):
    pool = kvstore.open(disk.path, commit_interval_ms=3_600_000)
    space = pool.space(**IDENTITY)
    space.put_many(keys_of("flushed", 5), [b"abc"] * 5).wait()
    pool.flush(timeout_s=10)
    space.put(b"after the flush", b"abc")
    disk.stop()
    with pytest.raises(errors.KvStoreError):
        pool.close(timeout_s=1)
    disk.power_cut()
    with kvstore.open(disk.path) as pool:
        assert pool.space(**IDENTITY).contains(keys_of("flushed", 5)) == [True] * 5


def test_stats_devices_and_superblocks_tell_what_is_open(pool):
    stats = pool.stats()
    assert {"hits", "misses", "live_bytes", "capacity_bytes", "verify", "device_kind"} <= stats.keys()
    assert isinstance(stats["hits"], int)
    device = pool.devices()[0]
    assert device["path"] == pool.paths[0]
    assert device["kind"] == stats["device_kind"]
    superblock = pool.superblocks()[0]
    assert superblock["store_uuid"] in superblock["members"]
    assert superblock["geometry"]["region_bytes"] == POOL["region_bytes"]


def test_verify_off_is_said_in_stats(disk):
    with kvstore.open(disk.path, verify="off") as pool:
        assert pool.stats()["verify"] == "off"


def test_reprs_are_short_and_tell_what_it_is(disk):
    with kvstore.open(disk.path) as pool:
        space = pool.space(a=1)
        job = space.put_many([b"k"], [b"v"])
        results = job.wait()
        assert repr(pool) == f"<Pool {disk.path}>"
        assert repr(space) == '<Space {"a":1}>'
        assert repr(job) == f"<Job {job.id}: 1 items, done>"
        assert repr(results) == "[Result(status='stored', nbytes=1)]"
    assert repr(pool).endswith("(closed)>")


def test_sizes_are_read_as_people_write_them():
    assert kvstore.parse_size("4GiB") == 4 << 30
    assert kvstore.parse_size("1.5 mib") == 3 << 19
    assert kvstore.parse_size("10 MB") == 10_000_000
    assert kvstore.parse_size("2k") == 2048
    assert kvstore.parse_size(np.int64(7)) == 7
    for wrong in ("", "GiB", "-1", "1.5", "1 XB", "1e9", "9EiB", -1, 1 << 63):
        with pytest.raises(errors.ConfigError):
            kvstore.parse_size(wrong)
    for wrong in (1.5, None, True, b"1"):
        with pytest.raises(TypeError):
            kvstore.parse_size(wrong)


def test_simulated_disks_are_unknown_to_others():
    with pytest.raises(errors.ConfigError, match="no simulated disk"):
        kvstore.open("sim:none")
    disk = SimDisk("64MiB")
    disk.remove()
    with pytest.raises(errors.ConfigError, match="no simulated disk"):
        kvstore.format(disk.path)
