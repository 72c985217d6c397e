# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Which blocks are put and got: a get must never be sent for a block that is not there, or is just being overwritten.

Method: the steps of several threads are taken by one, in every order that matters; where one must wait, a thread does.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from kvstore.bench.numbers import Choices, Numbers


def test_gets_choose_among_the_newest_that_are_there() -> None:
    numbers = Numbers(live=4, slack=2)
    with numbers.getting() as there:
        assert list(there) == []
    with numbers.putting(6):
        pass
    with numbers.getting() as there:
        assert list(there) == [2, 3, 4, 5]


def test_a_block_that_is_being_put_is_not_there_and_none_behind_it_is() -> None:
    numbers = Numbers(live=4, slack=4)
    with numbers.putting(4):
        pass
    with numbers.putting(2) as first:
        with numbers.putting(1):
            pass
        with numbers.getting() as there:
            assert there == range(first.start)
    with numbers.getting() as there:
        assert list(there) == [3, 4, 5, 6]


def test_a_put_waits_where_it_would_overtake_a_get() -> None:
    numbers = Numbers(live=4, slack=2)
    with numbers.putting(4):
        pass
    done = threading.Event()

    def put() -> None:
        with numbers.putting(1):
            done.set()

    with numbers.getting() as there:
        assert there.start == 0
        with numbers.putting(2):  # within the slack
            pass
        thread = threading.Thread(target=put)  # an engine that keeps 6 blocks would overwrite block 0
        thread.start()
        assert not done.wait(0.05)
    thread.join(10)
    assert done.is_set()


def test_puts_that_overtake_a_slow_one_overwrite_nothing_that_may_be_got() -> None:
    numbers = Numbers(live=4, slack=4)
    with numbers.putting(4):
        pass
    done = threading.Event()

    def put() -> None:
        with numbers.putting(1):
            done.set()

    with numbers.putting(1):
        for _ in range(6):  # an engine that keeps 8 blocks overwrites 0, 1 and 2
            with numbers.putting(1):
                pass
        with numbers.getting() as there:
            assert list(there) == [3]
        thread = threading.Thread(target=put)  # would overwrite that one too
        thread.start()
        assert not done.wait(0.05)
    thread.join(10)
    assert done.is_set()


def test_a_put_that_would_wait_for_its_own_get_gives_that_back() -> None:
    numbers = Numbers(live=4, slack=2)
    with numbers.putting(6):
        pass
    mine, put = ExitStack(), threading.Event()
    there = mine.enter_context(numbers.getting())

    def give_back() -> bool:
        mine.close()
        return True

    def put_over() -> None:
        with numbers.putting(3, give_back) as fresh:
            assert fresh.stop - numbers.kept > there.start
            put.set()

    thread = threading.Thread(target=put_over, daemon=True)
    thread.start()
    thread.join(10)
    assert put.is_set()


def test_numbers_of_a_put_that_failed_are_not_given_again() -> None:
    numbers = Numbers(live=4, slack=2)
    with pytest.raises(OSError, match="no"), numbers.putting(2):
        raise OSError("no")
    with numbers.putting(1) as fresh:
        assert fresh.start == 2


@pytest.mark.parametrize("kind", ["random", "zipf"])
def test_choices_stay_among_what_is_there(kind: str) -> None:
    choices = Choices(100, (kind, 1.0), seed=1, worker=0)
    assert set(choices.among(range(50, 150), 5000)) <= set(range(50, 150))
    assert set(choices.among(range(7, 10), 100)) == {7, 8, 9}  # the store is not filled yet


def test_threads_choose_differently_but_like_the_same_blocks() -> None:
    def drawn(worker: int) -> list[int]:
        return Choices(1000, ("zipf", 1.2), seed=1, worker=worker).among(range(1000), 5000)

    first, second = drawn(0), drawn(1)
    assert first != second
    assert max(set(first), key=first.count) == max(set(second), key=second.count)
    assert drawn(0) == first


def test_a_popular_block_stays_popular_under_puts_while_it_lives() -> None:
    choices = Choices(100, ("zipf", 1.2), seed=1, worker=0)

    def favourite(first: int, live: int = 100) -> int:
        drawn = choices.among(range(first, first + live), 2000)
        assert set(drawn) <= set(range(first, first + live))
        return max(set(drawn), key=drawn.count)

    most = favourite(0)
    assert [favourite(first) for first in range(1, most + 1, 5)] == [most] * len(range(1, most + 1, 5))
    assert favourite(most + 1) == most + 100  # it is gone: the one in its place is hot
    assert favourite(most + 5, live=97) == most + 100  # some are just being put
    assert favourite(most + 101) == most + 200


def test_evenly_drawn_blocks_stay_even_under_puts() -> None:
    choices = Choices(10, ("random", 0.0), seed=1, worker=0)
    drawn = [number - first for first in range(0, 50, 7) for number in choices.among(range(first, first + 10), 1000)]
    assert {drawn.count(age) for age in range(10)} <= set(range(680, 920))
