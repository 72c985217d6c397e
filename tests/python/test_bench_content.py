# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Content that is computed from the block's number: whatever an engine gets wrong must be noticed, at the least cost.

Method: buffers are stamped as the runner does it, and one thing is changed.
"""

from __future__ import annotations

import pytest
from bench_support import MemoryEngine

from kvstore.bench.content import Buffers, Content, Verify, whole_pages
from kvstore.bench.engines import ENGINES, make_engine
from kvstore.bench.engines.base import Work
from kvstore.bench.engines.lmcache_rows import RowObjects

NBYTES = 3 * 4096 + 100  # whole pages and a part of one


@pytest.fixture
def content() -> Content:
    return Content(NBYTES, seed=7, whole=True)


@pytest.fixture
def buffers(content: Content) -> Buffers:
    made = Buffers(2, content.row_bytes)
    content.fill(made)
    content.stamp(made, [5, 6])
    return made


@pytest.mark.parametrize("verify", ["stamp", "full"])
def test_a_block_is_right_under_its_own_number_only(content: Content, buffers: Buffers, verify: Verify) -> None:
    assert content.wrong(buffers, 0, 5, NBYTES, verify) is None
    assert content.wrong(buffers, 1, 6, NBYTES, verify) is None
    assert content.check(buffers, [5, 6], [NBYTES, NBYTES], verify) == [None, None]
    assert "block 6, page 0" in (content.wrong(buffers, 0, 6, NBYTES, verify) or "")


@pytest.mark.parametrize("verify", ["stamp", "full"])
def test_a_get_that_moved_nothing_is_noticed(content: Content, buffers: Buffers, verify: Verify) -> None:
    content.spoil(buffers, 1)
    assert content.wrong(buffers, 0, 5, NBYTES, verify)


@pytest.mark.parametrize("page", [0, 1, 2, 3])
def test_a_page_of_another_block_is_noticed(content: Content, buffers: Buffers, page: int) -> None:
    at = slice(page * 4096, min((page + 1) * 4096, NBYTES))
    buffers.rows[0, at] = buffers.rows[1, at]
    assert f"page {page}" in (content.wrong(buffers, 0, 5, NBYTES, "stamp") or "")


@pytest.mark.parametrize("at", [24, 4095, 3 * 4096 + 99])
def test_a_byte_between_stamps_is_noticed_by_full_only(content: Content, buffers: Buffers, at: int) -> None:
    buffers.rows[0, at] ^= 1
    assert content.wrong(buffers, 0, 5, NBYTES, "stamp") is None
    assert f"byte {at} " in (content.wrong(buffers, 0, 5, NBYTES, "full") or "")


@pytest.mark.parametrize("seed", [7, 8])
@pytest.mark.parametrize("verify", ["stamp", "full"])
def test_another_stores_block_is_noticed_whatever_its_seed(buffers: Buffers, seed: int, verify: Verify) -> None:
    assert Content(NBYTES, seed, whole=True).wrong(buffers, 0, 5, NBYTES, verify)


def test_processes_that_agree_on_a_nonce_check_each_others_blocks(content: Content, buffers: Buffers) -> None:
    assert Content(NBYTES, 7, whole=True, nonce=content.nonce).wrong(buffers, 0, 5, NBYTES, "full") is None


def test_a_block_with_nothing_right_but_its_stamps_is_noticed(content: Content, buffers: Buffers) -> None:
    pages = buffers.rows.reshape(2, -1, 4096)
    stamps = pages[0, :, :24].copy()
    pages[0] = pages[1]
    pages[0, :, :24] = stamps
    assert content.wrong(buffers, 0, 5, NBYTES, "stamp") is None
    assert "and 12" in (content.wrong(buffers, 0, 5, NBYTES, "full") or "")  # thousand more


def test_spoiling_leaves_nothing_of_a_whole_block(content: Content, buffers: Buffers) -> None:
    before = buffers.rows.copy()
    content.spoil(buffers, 1)
    assert (buffers.rows[0] == before[0]).mean() < 0.01
    assert (buffers.rows[1] == before[1]).all()


def test_spoiling_and_stamping_touch_stamps_only_where_blocks_are_not_whole() -> None:
    content, buffers = Content(NBYTES, seed=7), Buffers(2, whole_pages(NBYTES))
    content.fill(buffers)
    between = buffers.rows.reshape(2, -1, 4096)[:, :, 24:]
    between[:] = 1
    content.spoil(buffers, 2)
    content.stamp(buffers, [5, 6])
    assert (between == 1).all()
    assert content.check(buffers, [5, 6], [NBYTES, NBYTES], "stamp") == [None, None]
    with pytest.raises(ValueError, match="whole"):
        content.wrong(buffers, 0, 5, NBYTES, "full")


def test_bytes_beyond_the_block_do_not_matter(content: Content, buffers: Buffers) -> None:
    buffers.rows[0, NBYTES:] = 0
    assert content.wrong(buffers, 0, 5, NBYTES, "full") is None


def test_sizes_are_drawn_by_their_weights_and_stay_with_their_numbers() -> None:
    work = Work(("x",), (4096, 8192), population=1, size_bytes=1, weights=(1.0, 3.0))
    sizes = [work.bytes_of(number) for number in range(1000)]
    assert sizes.count(8192) == pytest.approx(750, abs=20)
    assert sizes == [work.bytes_of(number) for number in range(1000)]


def test_every_engine_can_be_made_and_says_whether_it_can_run() -> None:
    for name in ENGINES:
        engine = make_engine(name)
        assert engine.name == name
        why_not = engine.why_not()
        assert why_not is None or len(why_not) > 10
    assert MemoryEngine().why_not() is None


@pytest.mark.parametrize("verify", ["stamp", "full"])
def test_blocks_of_whole_pages_are_checked_together_and_told_apart(verify: Verify) -> None:
    content = Content(2 * 4096, seed=7, whole=True)
    buffers = Buffers(3, content.row_bytes)
    content.fill(buffers)
    content.stamp(buffers, [1, 2, 3])
    sizes = [content.row_bytes] * 3
    assert content.check(buffers, [1, 2, 3], sizes, verify) == [None] * 3
    wrong = content.check(buffers, [1, 9, 3], sizes, verify)
    assert [found is None for found in wrong] == [True, False, True]


def test_what_lmcache_is_handed_of_a_row_is_made_once_and_points_at_it() -> None:
    buffers, objects = Buffers(2, 8192), RowObjects()
    one = objects.of(buffers, 1, 5000)
    assert objects.of(buffers, 1, 5000) is one
    assert (one.data_ptr, one.get_size()) == (buffers.rows[1].ctypes.data, 5000)
    assert objects.of(buffers, 1, 8192).get_size() == 8192
    assert objects.of(buffers, 0, 5000).data_ptr == buffers.rows[0].ctypes.data
