# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Owner mode and shared mode refuse each other, and say why and what to do.

Method: one process has the pool open in one mode, or had it; another opens it in the other.
"""

from __future__ import annotations

import pytest

import kvstore
from kvstore import errors


def test_a_pool_that_others_share_cannot_be_owned(medium, start):
    path = medium()
    start("opener", path)
    with pytest.raises(errors.KvStoreError, match="is in use in shared mode: process") as refusal:
        kvstore.open(path)
    print(refusal.value)


def test_a_pool_that_is_shared_stays_so_when_nobody_has_it_open(medium, start):
    path = medium()
    opener = start("opener", path)
    assert opener.ask("put", ["a"]) == ["stored"]
    opener.end()
    with pytest.raises(errors.KvStoreError, match="kvstore unshare"):
        kvstore.open(path)


def test_a_pool_that_somebody_owns_cannot_be_shared_and_the_message_says_who_has_it(make_pool, start):
    path = make_pool()
    with kvstore.open(path):
        opener = start("opener", path, wait=False, wait_s=1)
        with pytest.raises(AssertionError, match=r"BusyError.*is in use: process"):
            opener.answer()
    opener = start("after", path)
    assert opener.ask("put", ["a"]) == ["stored"]


def test_one_process_does_not_have_a_pool_open_in_both_modes(make_pool):
    path = make_pool()
    with kvstore.open(path, mode="shared"), pytest.raises(errors.ConfigError, match="open already with mode='shared'"):
        kvstore.open(path, mode="owner")
