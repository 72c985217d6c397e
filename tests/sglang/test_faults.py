# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What a device, a full pool or a killed process may do: a page is right or a miss, and the engine's threads go on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sglang_engine import Controller, HostPool

from kvstore.sglang.keys import key_bytes
from kvstore.testing import SimDisk

KEYS = [f"{number:064x}" for number in range(1, 9)]
MIB = 1 << 20


def block_of(backend: Any, key: str) -> Any:
    backend._pool.flush()
    return next(block for block in backend._pool.blocks() if block.key == key_bytes(key))


@pytest.mark.parametrize("piece", [0, 1], ids=["K", "V"])
def test_wrong_bytes_in_either_piece_make_the_page_a_miss(
    piece: int, make_backend: Callable[..., Any], disk: SimDisk
) -> None:
    host = HostPool()
    backend = make_backend(disk.path, host)
    host.fill(seed=1)
    stored = [host.page(page) for page in range(3)]
    assert all(backend.batch_set_v1(KEYS[:3], host.indices(0, 1, 2)))
    block = block_of(backend, KEYS[1])
    place = block.offset_bytes + piece * block.nbytes // 2 + 5
    disk.poke(place, bytes([disk.peek(place, 1)[0] ^ 1]))
    assert backend.batch_get_v1(KEYS[:3], host.indices(3, 4, 5)) == [True, False, True]
    assert backend.batch_exists(KEYS[:3]) == 1
    assert backend.batch_set_v1(KEYS[1:2], host.indices(1)) == [True]
    assert backend.batch_get_v1(KEYS[:3], host.indices(3, 4, 5)) == [True] * 3
    assert [host.page(page) for page in (3, 4, 5)] == stored


def test_a_page_that_cannot_be_read_is_stored_anew(make_backend: Callable[..., Any], disk: SimDisk) -> None:
    host = HostPool()
    backend = make_backend(disk.path, host)
    host.fill(seed=2)
    assert all(backend.batch_set_v1(KEYS[:2], host.indices(0, 1)))
    block = block_of(backend, KEYS[0])
    last_byte = block.offset_bytes + block.nbytes - 1
    disk.fault("error", op="read", first_byte=block.offset_bytes, last_byte=last_byte, times=1000)
    assert backend.batch_get_v1(KEYS[:2], host.indices(2, 3)) == [False, True]
    assert backend.batch_exists(KEYS[:2]) == 0
    assert backend.batch_set_v1(KEYS[:1], host.indices(0)) == [True]
    assert backend.batch_get_v1(KEYS[:1], host.indices(2)) == [True]
    assert host.page(2) == host.page(0)


def test_a_full_pool_evicts_and_every_hit_is_right(make_backend: Callable[..., Any], disk: SimDisk) -> None:
    host = HostPool(layers=32, pages=32)  # pages of 256 KiB, 8 MiB together
    backend = make_backend(disk.path, host)
    controller = Controller(backend, host)
    rounds = 30
    for seed in range(rounds):
        host.fill(seed)
        assert controller.backup([seed * 1000 + token for token in range(32 * 16)], range(32)) == 32 * 16
    assert backend._pool.stats()["blocks_evicted"] > 0
    expected = HostPool(layers=32, pages=32)
    hits = []
    for seed in range(rounds):
        expected.fill(seed)
        host.zero()
        hits.append(controller.prefetch([seed * 1000 + token for token in range(32 * 16)], range(32)))
        assert [host.page(page) for page in range(hits[-1])] == [expected.page(page) for page in range(hits[-1])]
    assert hits[-1] == 32, "the last prompt is there"
    assert 0 in hits, "and an older one is not"


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from sglang_engine import HostPool, create_backend
host = HostPool(mla=True)
host.fill(seed=5)
backend = create_backend(
    sys.argv[2], is_mla_model=True, tp_size=2, extra={"mode": sys.argv[3], "durable": True, "register_host_pool": False}
)
backend.register_mem_pool_host(host)
stored = backend.batch_set_v1([f"{number:064x}" for number in range(1, 9)], host.indices(*range(8)))
print(sum(stored), flush=True)
sys.stdin.read()
"""


def store_and_be_killed(path: str, mode: str) -> None:
    """In a process of its own: eight pages, durable, then SIGKILL."""
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(Path(__file__).parent), path, mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
    ) as child:
        assert child.stdout is not None
        stored = child.stdout.readline()
        child.kill()
    assert stored.strip() == "8"


def test_what_a_killed_engine_stored_is_there_when_it_starts_again(
    make_backend: Callable[..., Any], make_pool: Callable[..., str]
) -> None:
    path = make_pool()
    own_device = f"{path}{{tp_rank}}"
    Path(path).rename(f"{path}0")
    store_and_be_killed(own_device, "owner")
    host, expected = HostPool(mla=True), HostPool(mla=True)
    expected.fill(seed=5)
    backend = make_backend(own_device, host, is_mla_model=True, tp_size=2)
    assert backend.batch_get_v1(KEYS, host.indices(*range(8))) == [True] * 8
    assert [host.page(page) for page in range(8)] == [expected.page(page) for page in range(8)]


def test_what_a_killed_rank_stored_is_there_for_the_others(make_backend: Callable[..., Any], pool_path: str) -> None:
    host, expected = HostPool(mla=True), HostPool(mla=True)
    expected.fill(seed=5)
    backend = make_backend(pool_path, host, is_mla_model=True, tp_rank=1, tp_size=2)
    assert backend.batch_exists(KEYS) == 0
    store_and_be_killed(pool_path, "shared")
    backend._pool.refresh(timeout_s=30)
    assert backend.batch_get_v1(KEYS, host.indices(*range(8))) == [True] * 8
    assert [host.page(page) for page in range(8)] == [expected.page(page) for page in range(8)]
