# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Random use of a metadata engine by many clients at once, and the proof that there is one order that explains it.

Every value is written once, so a watch's changes, revision by revision, are the whole truth: which transaction did
what, in which order. ``check`` holds what each client was told against it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from kvstore.cluster import Change, Compare, Erase, MetadataEngine, Put
from kvstore.errors import EngineError

State = dict[str, bytes]
KEYS = ("a", "b", "c")


@dataclass(frozen=True)
class Call:
    """One call, and what its client was told; ``answer`` None: that the outcome is unknown."""

    began: float
    ended: float
    compares: tuple[Compare, ...]
    operations: tuple[Put | Erase, ...]  # none: a range
    answer: Any

    @property
    def stamp(self) -> bytes:
        return next(op.value for op in self.operations if isinstance(op, Put))


class Client(threading.Thread):
    """Makes ``turns`` calls of its own choice, from a seed."""

    def __init__(self, engine: MetadataEngine, prefix: str, seed: int, turns: int) -> None:
        super().__init__()
        self._engine, self._prefix, self._seed, self._turns = engine, prefix, seed, turns
        self.calls: list[Call] = []

    def run(self) -> None:
        chance = random.Random(self._seed)
        known: State = {}
        for turn in range(self._turns):
            if chance.random() < 0.2:
                found = self._call((), (), lambda: self._engine.range(self._prefix))
                known = {item.key: item.value for item in found.items} if found else known
                continue
            keys = [self._prefix + name for name in chance.sample(KEYS, chance.randint(1, len(KEYS)))]
            # What it saw last, so that it holds now and then, and nothing at all at times.
            compares = tuple(Compare(key, known.get(key)) for key in keys if chance.random() < 0.7)
            stamp = b"%d-%d" % (self._seed, turn)
            written = tuple(Erase(key) if chance.random() < 0.2 else Put(key, stamp) for key in keys[1:])
            operations = (Put(keys[0], stamp), *written)
            self._txn(compares, operations, known)

    def _txn(self, compares: tuple[Compare, ...], operations: tuple[Put | Erase, ...], known: State) -> None:
        done = self._call(compares, operations, lambda: self._engine.txn(compares, operations))
        if done and done.applied:
            apply(known, operations)

    def _call(self, compares: tuple[Compare, ...], operations: tuple[Put | Erase, ...], call: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            answer = call()
        except EngineError:
            answer = None
        self.calls.append(Call(began, time.monotonic(), compares, operations, answer))
        return answer


def apply(state: State, operations: tuple[Put | Erase, ...]) -> None:
    for operation in operations:
        if isinstance(operation, Put):
            state[operation.key] = operation.value
        else:
            state.pop(operation.key, None)


def check(calls: list[Call], first: int, changes: list[Change]) -> dict[str, int]:
    """Assert that the changes after revision ``first`` explain the calls; return how many there were of each kind."""
    states: dict[int, State] = {first: {}}
    before: dict[int, State] = {}
    by_stamp: dict[bytes, int] = {}
    state: State = {}
    for revision, group in groupby(changes, key=lambda change: change.item.modified):
        assert revision > max(states), "a revision came back"
        before[revision], state = state, dict(state)
        for change in group:
            state.pop(change.item.key, None)
            if not change.erased:
                state[change.item.key] = change.item.value
                assert by_stamp.setdefault(change.item.value, revision) == revision, "a transaction was done twice"
        states[revision] = state

    def state_at(revision: int) -> State:
        return states[max(known for known in states if known <= revision)]

    counts = {"applied": 0, "refused": 0, "ranges": 0, "unknown": 0, "unknown but done": 0}
    told: list[tuple[float, float, int]] = []
    for call in calls:
        revision = None if call.answer is None else call.answer.revision
        done_at = by_stamp.get(call.stamp) if call.operations else None
        if revision is not None:
            told.append((call.began, call.ended, revision))
        if call.answer is None:
            counts["unknown but done" if done_at else "unknown"] += 1
        elif not call.operations:
            assert {item.key: item.value for item in call.answer.items} == state_at(call.answer.revision)
            counts["ranges"] += 1
        elif call.answer.applied:
            assert done_at == revision, "what was told as done was not, or at another revision"
            counts["applied"] += 1
        else:
            assert done_at is None, "what was told as refused was done"
            there = state_at(call.answer.revision)
            assert any(there.get(compare.key) != compare.value for compare in call.compares), "refused for nothing"
            counts["refused"] += 1
        if done_at is not None:
            assert all(before[done_at].get(compare.key) == compare.value for compare in call.compares)
            wanted = dict(before[done_at])
            apply(wanted, call.operations)
            assert states[done_at] == wanted, "a transaction was done in part"
    told.sort(key=lambda one: one[0])
    ended = sorted(told, key=lambda one: one[1])
    highest = at = 0
    for began, _, revision in told:
        while at < len(ended) and ended[at][1] < began:
            highest = max(highest, ended[at][2])
            at += 1
        assert revision >= highest, "a call did not see what had been told before it began"
    return counts
