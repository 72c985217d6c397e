# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: kvstore on NVMe as the kernel's driver gives it: LBA formats, write caches, discard, queues that are polled.

Method: emulated drives in a guest, whose own counters say what they were asked.
"""

from __future__ import annotations

import pytest
from laboratory import Machine

BLOCK_BYTES = {"LBA512": 512, "LBA4K": 4096, "NOCACHE": 4096}


@pytest.mark.parametrize("serial", BLOCK_BYTES)
def test_blocks_are_kept_on_every_lba_format(alone: Machine, serial: str) -> None:
    facts = alone.call("drives.facts", serial)
    assert int(facts["logical_block_size"]) == BLOCK_BYTES[serial]
    alone.call("drives.keeps_blocks", serial)


def test_a_volatile_write_cache_is_flushed_and_one_that_is_off_is_not(alone: Machine) -> None:
    assert alone.call("drives.flushes_of_durable_puts", "NOCACHE", "write back") > 0
    assert alone.call("drives.flushes_of_durable_puts", "NOCACHE", "write through") == 0


def test_discarded_extents_are_misses(alone: Machine) -> None:
    assert int(alone.call("drives.facts", "LBA4K")["discard_max_bytes"]) > 0
    assert set(alone.call("drives.discarded_blocks", "LBA4K")) == {"miss"}


def test_a_drive_that_was_discarded_holds_no_store(alone: Machine) -> None:
    assert alone.call("drives.open_after_discard", "LBA512") == "not_found"


def test_drives_with_polled_queues_serve_io_uring(alone: Machine) -> None:
    assert alone.call("drives.facts", "LBA4K")["io_poll"] == "1"
    alone.call("drives.fio_polls", "LBA4K")
    alone.call("drives.keeps_blocks", "LBA4K")
