# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""SGLang's own controller on the backend: what it backs up it prefetches, byte by byte.

The loops over batches are SGLang's; only its threads and its queues between ranks are left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageFailureInjector
from sglang_engine import Controller, HostPool, create_backend

from kvstore.testing import SimDisk

PAGE = 16


def prompt(pages: int, seed: int = 0) -> list[int]:
    return [seed * 100_000 + token for token in range(pages * PAGE)]


def test_a_prompt_of_many_batches_comes_back_whole(make_backend: Callable[..., Any], disk: SimDisk) -> None:
    host = HostPool(pages=300)
    controller = Controller(make_backend(disk.path, host), host)
    host.fill(seed=1)
    stored = [host.page(page) for page in range(300)]
    assert controller.backup(prompt(300), range(300)) == 300 * PAGE
    host.zero()
    assert controller.prefetch(prompt(300), range(300)) == 300
    assert [host.page(page) for page in range(300)] == stored


def test_every_block_has_its_place_in_the_prompt(make_backend: Callable[..., Any], disk: SimDisk) -> None:
    host = HostPool(pages=300)
    backend = make_backend(disk.path, host)
    Controller(backend, host).backup(prompt(300), range(300))
    blocks = list(backend._pool.blocks())
    assert sorted(block.depth for block in blocks) == list(range(300))
    assert [block.depth for block in blocks if block.parent == 0] == [0], "only the first page has none before it"


def test_a_prompt_is_loaded_up_to_where_it_differs(make_backend: Callable[..., Any], disk: SimDisk) -> None:
    host = HostPool()
    controller = Controller(make_backend(disk.path, host), host)
    host.fill(seed=2)
    assert controller.backup(prompt(4), range(4)) == 4 * PAGE
    assert controller.prefetch([*prompt(4)[: 2 * PAGE], *prompt(4, seed=9)], range(4, 8)) == 2


def test_the_generic_calls_do_the_same(make_backend: Callable[..., Any], disk: SimDisk) -> None:
    host = HostPool("layer_first")
    controller = Controller(make_backend(disk.path, host, extra={"interface_v1": 0}), host)
    controller.use_generic_calls()
    host.fill(seed=3)
    stored = [host.page(page) for page in range(4)]
    assert controller.backup(prompt(4), range(4)) == 4 * PAGE
    host.zero()
    assert controller.prefetch(prompt(4), range(4, 8)) == 4
    assert [host.page(page) for page in range(4, 8)] == stored


def test_what_sglang_counts_as_loaded_is_right_under_its_fault_injection(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY", "0.001")
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE", "0.3")
    monkeypatch.setattr(HiCacheStorageFailureInjector._thread_local, "random", random.Random(7), raising=False)
    host = HostPool()
    backend = create_backend(disk.path)
    assert isinstance(backend, HiCacheStorageFailureInjector)
    backend.register_mem_pool_host(host)
    controller = Controller(backend, host)
    loaded = []
    for seed in range(40):
        host.fill(seed)
        stored = [host.page(page) for page in range(4)]
        controller.backup(prompt(4, seed), range(4))
        pages = controller.prefetch(prompt(4, seed), range(4, 8))
        assert [host.page(4 + page) for page in range(pages)] == stored[:pages]
        loaded.append(pages)
    backend.close()
    assert 0 in loaded
    assert 4 in loaded
