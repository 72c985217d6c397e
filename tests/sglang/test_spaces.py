# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""No cross hits: whatever tells two engines' bytes apart tells their blocks apart, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang_engine import HostPool, create_backend

from kvstore.errors import ConfigError

KEYS = [f"{number:064x}" for number in range(1, 4)]
SHARED = {"mode": "shared"}

OTHERS = {
    "model": ({"model_name": "other"}, {}),
    "rank": ({"tp_rank": 1, "tp_size": 2}, {}),
    "rank-count": ({"tp_size": 2}, {}),
    "stage": ({"pp_rank": 1, "pp_size": 2}, {}),
    "context-rank": ({"attn_cp_rank": 1, "attn_cp_size": 2}, {}),
    "replicated": ({"is_mla_model": True}, {}),
    "revision": ({"extra": {**SHARED, "identity": {"revision": "v2"}}}, {}),
    "dtype": ({}, {"dtype": torch.float16}),
    "layout": ({}, {"layout": "page_head"}),
    "page-tokens": ({}, {"page_size": 8, "layers": 8}),
    "heads": ({}, {"heads": 4, "head_dim": 32}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_engines_that_differ_do_not_meet(name: str, make_backend: Callable[..., Any], pool_path: str) -> None:
    rank, pool = OTHERS[name]
    host, other_host = HostPool(), HostPool(**pool)
    ours = make_backend(pool_path, host, extra=SHARED)
    other = make_backend(pool_path, other_host, **{"extra": SHARED, **rank})
    assert all(ours.batch_set_v1(KEYS, host.indices(0, 1, 2)))
    assert other.batch_exists(KEYS) == 0
    assert other.batch_get_v1(KEYS, other_host.indices(0, 1, 2)) == [False] * 3
    assert ours.batch_exists(KEYS) == 3


def test_both_kinds_of_8_bit_floats_are_told_apart(make_backend: Callable[..., Any], pool_path: str) -> None:
    host = HostPool(dtype=torch.uint8)
    with pytest.raises(ConfigError, match="kv_cache_dtype"):
        make_backend(pool_path, host)
    e4m3, e5m2 = (
        make_backend(pool_path, host, extra={"identity": {"kv_cache_dtype": kind}}) for kind in ("fp8_e4m3", "fp8_e5m2")
    )
    assert all(e4m3.batch_set_v1(KEYS, host.indices(0, 1, 2)))
    assert (e4m3.batch_exists(KEYS), e5m2.batch_exists(KEYS)) == (3, 0)


def test_ranks_that_hold_the_same_bytes_store_them_once(make_backend: Callable[..., Any], pool_path: str) -> None:
    host = HostPool(mla=True)
    first, second = (
        make_backend(pool_path, host, is_mla_model=True, tp_rank=rank, tp_size=2, extra=SHARED) for rank in (0, 1)
    )
    host.fill(seed=1)
    stored = host.page(0)
    assert second.batch_set_v1(KEYS[:1], host.indices(1)) == [True], "nothing is left to do"
    assert second.batch_exists(KEYS) == 0
    assert first.batch_set_v1(KEYS[:1], host.indices(0)) == [True]
    assert second.batch_get_v1(KEYS[:1], host.indices(2)) == [True]
    assert host.page(2) == stored


def test_ranks_of_another_group_size_find_replicated_bytes(make_backend: Callable[..., Any], pool_path: str) -> None:
    host = HostPool(mla=True)
    two = make_backend(pool_path, host, is_mla_model=True, tp_size=2, extra=SHARED)
    four = make_backend(pool_path, host, is_mla_model=True, tp_rank=3, tp_size=4, extra=SHARED)
    assert all(two.batch_set_v1(KEYS, host.indices(0, 1, 2)))
    assert four.batch_exists(KEYS) == 3


def test_dp_ranks_of_one_model_share(make_backend: Callable[..., Any], pool_path: str) -> None:
    host = HostPool()
    ours, other = (make_backend(pool_path, host, dp_rank=rank, extra=SHARED) for rank in (0, 1))
    assert all(ours.batch_set_v1(KEYS, host.indices(0, 1, 2)))
    assert other.batch_exists(KEYS) == 3


def test_a_layout_without_addresses_is_refused_with_the_mend(pool_path: str) -> None:
    host = HostPool()
    host.layout = "page_unified"
    backend = create_backend(pool_path)
    with pytest.raises(ConfigError, match="--hicache-mem-layout page_first"):
        backend.register_mem_pool_host(host)
    backend.close()


def test_a_bad_setting_ends_the_start_with_its_name(pool_path: str) -> None:
    with pytest.raises(ConfigError, match="load_timeout: no such setting"):
        create_backend(pool_path, extra={"load_timeout": 3})


def test_a_model_with_more_than_keys_and_values_is_refused_and_never_half_stored(
    make_backend: Callable[..., Any], pool_path: str
) -> None:
    host = HostPool()
    backend = make_backend(pool_path, host)
    backend.register_mem_host_pool_v2(host, PoolName.KV)
    backend.on_host_pools_registered()
    backend.register_mem_host_pool_v2(host, PoolName.MAMBA)
    with pytest.raises(ConfigError, match="keeps mamba beside its keys and values"):
        backend.on_host_pools_registered()
    transfer = PoolTransfer(PoolName.MAMBA, host_indices=host.indices(0), keys=KEYS[:1])
    assert backend.batch_set_v2([transfer]) == backend.batch_get_v2([transfer]) == {PoolName.MAMBA: [False]}
    assert backend.batch_exists_v2(KEYS, [transfer]).kv_hit_pages == 0
