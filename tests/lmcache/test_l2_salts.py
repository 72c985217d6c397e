# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: 100,000 users' salts are kept apart, listed and counted after a restart, without a space for each."""

from __future__ import annotations

from lmcache_helpers import fill_of, load, memory_obj, object_key, present, store

SALTS = 100_000
FLOATS_EACH = 1024  # 4 KiB: the pool for all of them stays small
BATCH = 2_000


def test_a_hundred_thousand_salts(make_adapter, make_pool):
    path = make_pool(size=1 << 30, region_bytes=8 << 20)
    adapter = make_adapter(path)
    keys = [object_key(i % 7, salt=f"user-{i:06d}") for i in range(SALTS)]
    for first in range(0, SALTS, BATCH):
        batch = keys[first : first + BATCH]
        values = [memory_obj(float(first + i), FLOATS_EACH) for i in range(len(batch))]
        assert store(adapter, batch, values).is_successful()
    assert adapter.get_usage().total_bytes_used == SALTS * 4 * FLOATS_EACH
    adapter.close()

    adapter = make_adapter(path)
    usage = adapter.get_usage()
    assert usage.total_bytes_used == SALTS * 4 * FLOATS_EACH
    assert len(usage.bytes_by_cache_salt) == SALTS
    assert len(adapter._spaces._spaces) <= 1
    listed, cursor = set(), None
    while True:
        page = adapter.list_l2_keys(page_size=10_000, cursor=cursor)
        listed |= {entry.key.to_object_key() for entry in page.entries}
        cursor = page.next_page_token
        if cursor is None:
            break
    assert listed == set(keys)
    for number in (0, 1, 49_999, SALTS - 1):
        buffer = memory_obj(-1.0, FLOATS_EACH)
        assert load(adapter, [keys[number]], [buffer]) == [0]
        assert fill_of(buffer) == float(number)
    assert present(adapter, [object_key(0, salt="user-100000"), object_key(0)]) == []
    adapter.delete(keys[:BATCH])
    assert len(adapter.get_usage().bytes_by_cache_salt) == SALTS - BATCH
