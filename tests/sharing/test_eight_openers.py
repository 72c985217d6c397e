# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Eight processes of one host put and get in one pool: each finds what the others put, and nobody finds wrong bytes.

Method: real processes on a real file or loop device, with a SQLite file as metadata engine; the key tells the content.
"""

from __future__ import annotations

import time

from sharing_support import LEASES_MAX_S, ask_all, percentile

OPENERS = 8
BLOCKS = 24

# Time for a durable put to be a hit elsewhere: two flushes and a read of the device, on a machine that does much else.
VISIBLE_P50_MAX_S = 1.0
VISIBLE_P99_MAX_S = 10.0


def milliseconds(seconds: list[float]) -> str:
    return f"p50 {percentile(seconds, 50) * 1e3:.1f} ms, p99 {percentile(seconds, 99) * 1e3:.1f} ms"


def test_what_any_of_eight_puts_all_of_them_get(medium, start_all):
    openers = start_all(OPENERS, medium())
    keys = [[f"{opener.name}-{i}" for i in range(BLOCKS)] for opener in openers]
    for opener, mine in zip(openers, keys, strict=True):
        opener.tell("put", mine)
    for opener in openers:
        assert opener.answer() == ["stored"] * BLOCKS
    ask_all(openers, "refresh")
    everything = [key for mine in keys for key in mine]
    assert ask_all(openers, "get", everything) == [["hit"] * len(everything)] * OPENERS
    stats = ask_all(openers, "stats")
    assert [one["openers"] for one in stats] == [OPENERS] * OPENERS
    assert sum(one["checksum_misses"] for one in stats) == 0
    for opener in openers:
        opener.end()


def test_a_later_opener_finds_all_after_everybody_has_closed(make_pool, start, start_all):
    path = make_pool()
    openers = start_all(OPENERS, path)
    for opener in openers:
        opener.tell("put", [f"{opener.name}-{i}" for i in range(4)], False)
    for opener in openers:
        assert opener.answer() == ["stored"] * 4
        opener.end()
    late = start("late", path)
    assert late.ask("get", [f"opener{n}-{i}" for n in range(OPENERS) for i in range(4)]) == ["hit"] * 4 * OPENERS
    assert late.ask("stats")["openers"] == 1


def test_a_block_put_by_a_prefill_process_is_soon_a_hit_in_a_decode_process(medium, start_all):
    # Looks on a timer would come too late: only a miss brings one in time.
    prefill, decode = start_all(2, medium(), refresh_interval_ms=3_000)
    after_begin: dict[bool, list[float]] = {True: [], False: []}
    after_done: dict[bool, list[float]] = {True: [], False: []}
    for i in range(40):
        durable = i % 2 == 0  # the others are committed within the commit interval
        decode.tell("await_hit", f"block-{i}")
        begun, done = prefill.ask("timed_put", f"block-{i}", durable)
        hit = decode.answer()
        assert hit > begun
        after_begin[durable].append(hit - begun)
        after_done[durable].append(hit - done)
    for durable, seconds in after_begin.items():
        print(
            f"{'durable' if durable else 'ordinary'} put: a hit elsewhere {milliseconds(seconds)} after it began, "
            f"{milliseconds(after_done[durable])} after it was done"
        )
        assert percentile(seconds, 50) < VISIBLE_P50_MAX_S
        assert percentile(seconds, 99) < VISIBLE_P99_MAX_S


def test_a_deleted_block_is_a_miss_for_all_once_the_delete_is_flushed(make_pool, start, start_all):
    path = make_pool()
    first, second, third = start_all(3, path)
    assert first.ask("put", ["a", "b"]) == ["stored"] * 2
    ask_all([second, third], "refresh")
    assert second.ask("get", ["a", "b"]) == ["hit"] * 2
    assert second.ask("delete", ["a"]) == ["deleted"]
    second.ask("flush")
    deadline = time.monotonic() + LEASES_MAX_S
    while third.ask("get", ["a", "b"]) != ["miss", "hit"]:
        assert time.monotonic() < deadline, "a deleted block stays a hit"
    late = start("late", path)
    assert late.ask("get", ["a", "b"]) == ["miss", "hit"]
