# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""In the guest: kvstore on emulated NVMe drives."""

from __future__ import annotations

import support
from support import POOL, drive, fio_verifies, keys, open_pool, put, queue, read, run, statistics

import kvstore

COUNT = 24


def facts(serial: str) -> dict[str, str]:
    device = drive(serial)
    names = ("logical_block_size", "write_cache", "io_poll", "discard_max_bytes")
    return {name: support.read_text(queue(device, name)) for name in names}


def keeps_blocks(serial: str) -> None:
    device, wanted = drive(serial), keys(serial, COUNT)
    kvstore.format(device, force=True, **POOL)
    with open_pool(device) as pool:
        put(pool, wanted)
        assert read(pool, wanted) == ["hit"] * COUNT
    with open_pool(device) as pool:
        assert read(pool, wanted) == ["hit"] * COUNT
        assert read(pool, keys("never put", 3)) == ["miss"] * 3


def flushes_of_durable_puts(serial: str, cache: str) -> int:
    """How many flushes the drive saw; ``cache`` as an administrator tells the kernel after switching it off."""
    device = drive(serial)
    queue(device, "write_cache").write_text(cache)
    kvstore.format(device, force=True, **POOL)
    with open_pool(device) as pool:
        before = statistics(device)
        put(pool, keys(cache, COUNT))
        after = statistics(device)
    with open_pool(device) as pool:
        assert read(pool, keys(cache, COUNT)) == ["hit"] * COUNT
    assert after["writes"] > before["writes"]
    return after["flushes"] - before["flushes"]


def discarded_blocks(serial: str) -> list[str]:
    """What reads of blocks say whose extents the drive has forgotten, metadata intact."""
    device, wanted = drive(serial), keys("discarded", COUNT)
    payload_at = kvstore.format(device, force=True, **POOL)[0]["geometry"]["data_offset"]
    with open_pool(device) as pool:
        put(pool, wanted)
    run("blkdiscard", "--offset", str(payload_at), "--length", str(256 << 20), device)
    with open_pool(device) as pool:
        told = read(pool, wanted)
        put(pool, keys("after", COUNT))
        assert read(pool, keys("after", COUNT)) == ["hit"] * COUNT
    return told


def open_after_discard(serial: str) -> str:
    device = drive(serial)
    kvstore.format(device, force=True, **POOL)
    run("blkdiscard", device)
    try:
        open_pool(device).close()
    except kvstore.errors.KvStoreError as error:
        return error.code
    return "opened"


def fio_polls(serial: str) -> str:
    """fio writes and verifies with polled completions, which need queues without interrupts."""
    return fio_verifies(drive(serial), "--hipri=1")
