# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""An opener that was stopped for longer than its lease comes back as another one (S6), and nothing is wrong.

Method: SIGSTOP stops all threads of a process at whatever they do; others see its lease end; SIGCONT.
"""

from __future__ import annotations

import time

from sharing_support import LEASES_MAX_S, MIB, POOL, ask_all, wait_until

POOL_BYTES = 64 * MIB


def put_more_than_fits(opener):
    """Until more regions were retired than there are: what was put before, and could go all the time, is gone."""
    before = opener.ask("stats")["regions_retired"]
    enough = before + POOL_BYTES // POOL["region_bytes"]
    for batch in range(100):
        assert opener.ask("put", [f"{opener.name}-{before}-{batch}-{i}" for i in range(16)]) == ["stored"] * 16
        if opener.ask("stats")["regions_retired"] > enough:
            return
    raise AssertionError("regions are not reused")


def reclaimed(opener, key):
    """Whether the block went when all that can be reclaimed was."""
    put_more_than_fits(opener)
    return opener.ask("get", [key]) == ["miss"]


def test_an_opener_that_was_stopped_for_longer_than_its_lease_joins_anew_and_keeps_what_it_had(make_pool, start_all):
    paused, other = start_all(2, make_pool())
    keys = [f"before-{i}" for i in range(10)]
    assert paused.ask("put", keys) == ["stored"] * 10
    paused.pause()
    wait_until(other, lambda stats: stats["openers"] == 1, "alone")
    assert other.ask("put", ["meanwhile"]) == ["stored"]
    assert other.ask("get", keys) == ["hit"] * 10  # S5: they stay readable
    paused.resume()
    wait_until(paused, lambda stats: stats["rejoins"] > 0 and stats["openers"] == 2, "back")
    assert paused.ask("put_until_stored", "after", LEASES_MAX_S) < LEASES_MAX_S
    ask_all([paused, other], "refresh")
    assert ask_all([paused, other], "get", [*keys, "meanwhile", "after"]) == [["hit"] * 12] * 2
    paused.end()
    other.end()


def test_whoever_was_stopped_while_all_was_reused_answers_with_misses_and_never_with_other_blocks(make_pool, start_all):
    paused, other = start_all(2, make_pool(POOL_BYTES))
    mine = [f"before-{i}" for i in range(20)]
    theirs = [f"theirs-{i}" for i in range(20)]
    assert paused.ask("put", mine) == ["stored"] * 20
    assert other.ask("put", theirs) == ["stored"] * 20
    paused.ask("refresh")
    assert paused.ask("get", [*mine, *theirs]) == ["hit"] * 40
    paused.pause()
    retired = wait_until(other, lambda stats: stats["openers"] == 1, "alone")["regions_retired"]
    put_more_than_fits(other)
    assert other.ask("stats")["regions_retired"] > retired
    assert set(other.ask("get", theirs)) == {"miss"}
    paused.resume()
    found = paused.ask("get", [*mine, *theirs])  # with an index from before
    assert set(found) <= {"hit", "miss"}
    wait_until(paused, lambda stats: stats["rejoins"] > 0, "back")
    paused.ask("put_until_stored", "after", LEASES_MAX_S)
    ask_all([paused, other], "refresh")
    assert ask_all([paused, other], "get", ["after"]) == [["hit"], ["hit"]]
    assert paused.ask("get", theirs) == ["miss"] * 20


def test_a_stopped_opener_that_is_killed_frees_what_it_held(make_pool, start, start_all):
    path = make_pool(POOL_BYTES)
    paused, other = start_all(2, path)
    assert paused.ask("put", ["before"]) == ["stored"]
    paused.pause()
    wait_until(other, lambda stats: stats["openers"] == 1, "alone")
    paused.kill()
    # That nobody is waited for any more is noticed on a timer, and until then its region is no victim (S5).
    deadline = time.monotonic() + LEASES_MAX_S
    while not reclaimed(other, "before"):
        assert time.monotonic() < deadline, f"a killed opener's region is kept: {other.ask('stats')}"
