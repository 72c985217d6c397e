# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Seeded runs of SGLang's calls on a disk that lies: whatever it does, a page that counts as loaded has its bytes.

Each seed picks its faults and how often they come. A key's bytes follow from the key, so the oracle is a function.
``KVS_SEEDS`` runs more seeds, from ``KVS_FIRST_SEED``; a failure names its seed.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest
from sglang_engine import HostPool, create_backend

import kvstore
from kvstore.testing import SimDisk

KEYS = [f"{number:064x}" for number in range(1, 49)]
PAGES, CALLS, DISK_BYTES = 16, 60, 128 << 20
FAULTS = [("error", "read"), ("short", "read"), ("again", "read"), ("bit_rot", "read"), ("stuck", "read"),
          ("error", "write"), ("error_after_write", "write"), ("short", "write"), ("again", "write"),
          ("lost", "write"), ("misdirected", "write"), ("flush_fails", "flush")]  # fmt: skip

seen: Counter[str] = Counter()


def content(key: str, page_bytes: int) -> bytes:
    return random.Random(key).randbytes(page_bytes)


class Run:
    """One engine on one disk; it is started again now and then."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.faults = self.random.sample(FAULTS, self.random.randint(1, 5))
        self.fault_every = self.random.choice([2, 4, 8])
        self.disk = SimDisk(DISK_BYTES, seed=seed)
        superblock = kvstore.format(self.disk.path, region_bytes="4MiB", min_block_bytes=4096)[0]
        self.payload_start = int(superblock["geometry"]["data_offset"])
        self.host = HostPool(pages=PAGES, layers=16)
        self.start()

    def start(self) -> None:
        extra: dict[str, Any] = {"staged_loads": True, "load_timeout_s": 0.05, "close_timeout_s": 5}
        self.backend = create_backend(self.disk.path, extra=extra)
        self.backend.register_mem_pool_host(self.host)

    def step(self) -> None:
        if self.random.randrange(self.fault_every) == 0:
            self.spoil()
        keys = self.random.sample(KEYS, self.random.randint(1, PAGES))
        pages = self.random.sample(range(PAGES), len(keys))
        call = self.random.choice([self.store, self.load, self.load, self.look_up])
        call(keys, pages)
        seen["calls"] += 1
        if self.random.randrange(30) == 0:
            self.heal()
            self.backend.close()
            self.start()
            seen["restarts"] += 1

    def spoil(self) -> None:
        fault, op = self.random.choice(self.faults)
        value = self.random.randrange(1 << 16)
        if fault != "bit_rot":
            value -= value % 4096
        self.disk.fault(
            fault,
            op=op,
            first_byte=self.payload_start,
            last_byte=DISK_BYTES - 4097,  # the last page is a superblock
            skip=self.random.randrange(4),
            times=self.random.randint(1, 3),
            value=value + (self.payload_start if fault == "misdirected" else 0),
        )
        seen[f"{op}: {fault}"] += 1

    def heal(self) -> None:
        self.disk.clear_faults()
        self.disk.release_stuck()

    def store(self, keys: list[str], pages: list[int]) -> None:
        for key, page in zip(keys, pages, strict=True):
            self.host.write(page, content(key, len(self.host.page(page))))
        done = self.backend.batch_set_v1(keys, self.host.indices(*pages))
        assert len(done) == len(keys)
        seen["pages stored"] += sum(done)
        for page in pages:  # SGLang gives them to somebody else
            self.host.write(page, bytes(len(self.host.page(page))))

    def load(self, keys: list[str], pages: list[int]) -> None:
        found = self.backend.batch_get_v1(keys, self.host.indices(*pages))
        self.disk.release_stuck()  # what the device answers late must change nothing
        assert len(found) == len(keys)
        for key, page, hit in zip(keys, pages, found, strict=True):
            if hit:
                assert self.host.page(page) == content(key, len(self.host.page(page))), f"wrong bytes under {key}"
        seen["pages loaded"] += sum(found)
        seen["pages missed"] += len(found) - sum(found)

    def look_up(self, keys: list[str], pages: list[int]) -> None:
        assert 0 <= self.backend.batch_exists(keys) <= len(keys)

    def end(self) -> None:
        self.heal()
        self.backend.close()
        self.disk.remove()


FIRST, COUNT = int(os.environ.get("KVS_FIRST_SEED", "1")), int(os.environ.get("KVS_SEEDS", "8"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_a_page_that_counts_as_loaded_has_its_bytes(seed: int) -> None:
    run = Run(seed)
    for _ in range(CALLS):
        run.step()
    run.end()


def test_the_runs_before_stored_loaded_and_missed() -> None:
    """Of the seeds above, so that they are no runs of misses only."""
    if COUNT >= 8:
        print(dict(sorted(seen.items())))
    assert min(seen["pages stored"], seen["pages loaded"], seen["pages missed"]) > 0
