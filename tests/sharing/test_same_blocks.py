# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Several openers put the same blocks: that costs an extent or a few, never a wrong answer.

Method: the same batch is sent to several processes before any of them has answered.
"""

from __future__ import annotations

from collections import Counter

from sharing_support import ask_all

RANKS = 8
BLOCKS = 20


def test_a_block_that_two_openers_put_at_once_costs_one_or_two_extents(make_pool, start_all):
    openers = start_all(2, make_pool())
    for batch in range(5):
        keys = [f"batch{batch}-{i}" for i in range(BLOCKS)]
        answers = ask_all(openers, "put", keys)
        for statuses in zip(*answers, strict=True):
            assert sorted(statuses) in (["present", "stored"], ["stored", "stored"])
        ask_all(openers, "refresh")
        assert ask_all(openers, "get", keys) == [["hit"] * BLOCKS] * 2
        assert ask_all(openers, "put", keys) == [["present"] * BLOCKS] * 2


def test_after_a_duplicate_is_deleted_no_copy_of_it_comes_back(make_pool, start, start_all):
    path = make_pool()
    openers = start_all(2, path)
    keys = [f"block-{i}" for i in range(BLOCKS)]
    ask_all(openers, "put", keys)
    ask_all(openers, "refresh")
    assert openers[0].ask("delete", keys) == ["deleted"] * BLOCKS
    openers[0].ask("flush")
    assert openers[0].ask("get", keys) == ["miss"] * BLOCKS
    openers[0].ask("refresh")
    assert openers[0].ask("get", keys) == ["miss"] * BLOCKS
    late = start("late", path)
    assert late.ask("get", keys) == ["miss"] * BLOCKS


def test_blocks_that_are_the_same_for_all_ranks_are_stored_once(make_pool, start_all):
    """As MLA's are: every rank puts what another one may have put already."""
    ranks = start_all(RANKS, make_pool())
    counts: Counter = Counter()
    for layer in range(4):
        keys = [f"layer{layer}-{i}" for i in range(BLOCKS)]
        first = ranks[layer % RANKS]
        counts.update(first.ask("put", keys))
        others = [rank for rank in ranks if rank is not first]
        ask_all(others, "refresh")
        for statuses in ask_all(others, "put", keys):
            counts.update(statuses)
        assert ask_all(ranks, "get", keys) == [["hit"] * BLOCKS] * RANKS
    assert counts == {"stored": 4 * BLOCKS, "present": 4 * BLOCKS * (RANKS - 1)}
    assert sum(one["puts_stored"] for one in ask_all(ranks, "stats")) == 4 * BLOCKS


def test_eight_ranks_that_put_the_same_at_the_same_moment_all_get_it(make_pool, start_all):
    ranks = start_all(RANKS, make_pool())
    keys = [f"block-{i}" for i in range(BLOCKS)]
    counts = Counter(status for statuses in ask_all(ranks, "put", keys) for status in statuses)
    print(f"{RANKS} ranks put {BLOCKS} blocks at once: {dict(counts)}")
    assert counts["stored"] + counts["present"] == RANKS * BLOCKS
    assert counts["stored"] >= BLOCKS
    ask_all(ranks, "refresh")
    assert ask_all(ranks, "get", keys) == [["hit"] * BLOCKS] * RANKS
    assert ask_all(ranks, "put", keys) == [["present"] * BLOCKS] * RANKS
