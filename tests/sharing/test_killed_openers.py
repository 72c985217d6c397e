# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Openers that are killed at any moment break no promise that they or others made, and do not keep others from work.

Method: eight processes put and get by themselves and say each block that is durable; the parent kills one after a
random number of promises, and starts another in its place. In the end everything that was ever promised is read by all.
KVS_SEED=n chooses other moments, KVS_ROUNDS=n the number of kills; a failure prints the seed.
"""

from __future__ import annotations

import os
import random
import select
import time
from collections import Counter

import pytest
from sharing_support import ANSWER_S, LEASES_MAX_S, MIB, SEED, Opener, ask_all

OPENERS = 8
ROUNDS = int(os.environ.get("KVS_ROUNDS", "6"))
PROMISES_MAX = 60  # between two kills


class Crew:
    """Eight openers at work, of whom one is killed now and then."""

    def __init__(self, start, path: str, seed: int) -> None:
        self._start = start
        self._path = path
        self._moment = random.Random(seed)
        self.promised: dict[str, None] = {}  # in order
        self._new: set[str] = set()
        self._names = [f"worker{i}.0" for i in range(OPENERS)]
        self.openers: list[Opener] = [start(name, path, wait=False) for name in self._names]
        for opener in self.openers:
            opener.answer()
            self._set_to_work(opener)

    def _set_to_work(self, opener: Opener) -> None:
        others = [name for name in self._names if name != opener.name]
        opener.tell("work", opener.name, self._moment.randrange(1 << 30), others)

    def _keep(self) -> int:
        fresh = sorted(self._new)
        self._new.clear()
        self.promised.update(dict.fromkeys(fresh))
        return len(fresh)

    def await_promises(self, count: int, of: list[Opener] | None = None) -> None:
        deadline = time.monotonic() + ANSWER_S
        while count > 0:
            ready = select.select(of or self.openers, [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"{count} promises are missing after {ANSWER_S} s"
            for opener in ready:
                opener.take_promises(self._new)
            count -= self._keep()

    def kill_one(self, number: int) -> None:
        """After a random number of promises; another one takes its place, under another name."""
        self.await_promises(self._moment.randrange(1, PROMISES_MAX))
        place = self._moment.randrange(OPENERS)
        self.openers[place].kill(self._new)
        self._keep()
        # The others go on meanwhile, each of them.
        for other in self.openers[:place] + self.openers[place + 1 :]:
            self.await_promises(1, of=[other])
        self._names[place] = f"worker{place}.{number}"
        self.openers[place] = self._start(self._names[place], self._path)
        self._set_to_work(self.openers[place])

    def stop_working(self) -> Counter:
        """Let all finish what they do; how their puts and gets came out."""
        outcomes: Counter = Counter()
        for opener in self.openers:
            opener.tell("refresh")
        for opener in self.openers:
            outcomes.update(opener.answer(self._new))  # of work
            opener.answer()  # of refresh
        self._keep()
        return outcomes


@pytest.fixture
def crew(start):
    def make(path: str, seed: int) -> Crew:
        print(f"KVS_SEED={SEED} KVS_ROUNDS={ROUNDS}")
        return Crew(start, path, seed)

    return make


def test_what_any_opener_made_durable_is_a_hit_for_all_after_kills(medium, crew, start):
    path = medium(4096 * MIB)  # more than twice what they can put
    made = crew(path, SEED)
    for number in range(1, ROUNDS + 1):
        made.kill_one(number)
    outcomes = made.stop_working()
    ask_all(made.openers, "refresh")
    assert sum(one["regions_retired"] for one in ask_all(made.openers, "stats")) == 0, "the pool is too small"
    promised = list(made.promised)
    for opener, found in zip(made.openers, ask_all(made.openers, "get", promised), strict=True):
        missing = [key for key, status in zip(promised, found, strict=True) if status != "hit"]
        assert not missing, f"KVS_SEED={SEED} {opener.name}: {len(missing)} of {len(promised)}, {missing[:3]} ..."
    late = start("late", path)
    assert set(late.ask("get", promised)) == {"hit"}, f"KVS_SEED={SEED}"
    assert sum(one["checksum_misses"] for one in ask_all([*made.openers, late], "stats")) == 0
    assert outcomes["of_others"] > 0
    print(f"{len(promised)} promises, {outcomes}")


def test_while_regions_are_reused_all_the_time_kills_bring_no_wrong_bytes_and_no_standstill(make_pool, crew):
    made = crew(make_pool(64 * MIB), SEED + 1)
    for number in range(1, ROUNDS + 1):
        made.kill_one(number)
    deadline = time.monotonic() + LEASES_MAX_S
    while len(made.promised) < 1000:  # several times what the pool holds
        made.await_promises(50)
        assert time.monotonic() < deadline + ANSWER_S
    outcomes = made.stop_working()
    promised = list(made.promised)
    found = Counter(status for statuses in ask_all(made.openers, "get", promised) for status in statuses)
    assert set(found) == {"hit", "miss"}, f"KVS_SEED={SEED} {found}"
    stats = ask_all(made.openers, "stats")
    assert sum(one["regions_retired"] for one in stats) > 0
    print(f"{len(promised)} promises, {outcomes}, in the end {found}")
