# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of HiCacheStorage, against SGLang's own base class and factory, on a pool in a file.

Every call is made as SGLang's threads make it; what is loaded is compared byte by byte with what was stored.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageExtraInfo
from sglang_engine import HostPool, class_of, create_backend, methods_of

import kvstore
from kvstore.sglang import KVStoreHiCache
from kvstore.sglang.keys import key_bytes

KEYS = [f"{number:064x}" for number in range(1, 9)]
COLLECTOR = "sglang.srt.observability.metrics_collector"
LAYOUTS = [("layer_first", False), ("page_first", False), ("page_first_direct", False), ("page_head", False),
           ("layer_first", True), ("page_first", True)]  # fmt: skip


def test_every_method_takes_the_arguments_that_sglang_declares() -> None:
    for name, declared in inspect.getmembers(HiCacheStorage, inspect.isfunction):
        if name.startswith("_"):
            continue
        expected = list(inspect.signature(declared).parameters)
        assert list(inspect.signature(getattr(KVStoreHiCache, name)).parameters) == expected, name


@pytest.mark.parametrize(("layout", "mla"), LAYOUTS)
def test_a_page_comes_back_as_it_was_in_every_layout(
    layout: str, mla: bool, make_backend: Callable[..., Any], pool_path: str
) -> None:
    host = HostPool(layout, mla=mla)
    backend = make_backend(pool_path, host, is_mla_model=mla)
    host.fill(seed=1)
    stored = [host.page(page) for page in range(3)]
    assert backend.batch_set_v1(KEYS[:3], host.indices(0, 1, 2)) == [True] * 3
    host.zero()
    assert backend.batch_get_v1(KEYS[:3], host.indices(5, 3, 4)) == [True] * 3
    assert [host.page(page) for page in (5, 3, 4)] == stored
    assert host.page(0) == bytes(len(stored[0])), "a page that nobody asked for was written"


def test_only_the_pages_that_are_there_are_loaded(make_backend: Callable[..., Any], pool_path: str) -> None:
    host = HostPool()
    backend = make_backend(pool_path, host)
    host.fill(seed=2)
    assert backend.batch_set_v1([KEYS[0], KEYS[2]], host.indices(0, 1)) == [True, True]
    assert backend.batch_exists(KEYS) == 1
    assert (backend.exists(KEYS[2]), backend.exists(KEYS[1])) == (True, False)
    assert backend.batch_get_v1(KEYS[:3], host.indices(3, 4, 5)) == [True, False, True]


def test_the_first_bytes_of_a_key_win(make_backend: Callable[..., Any], pool_path: str) -> None:
    host = HostPool()
    backend = make_backend(pool_path, host)
    host.fill(seed=3)
    first = host.page(0)
    assert backend.batch_set_v1(KEYS[:1], host.indices(0)) == [True]
    assert backend.batch_set_v1(KEYS[:1], host.indices(1)) == [True]
    assert backend.batch_get_v1(KEYS[:1], host.indices(2)) == [True]
    assert host.page(2) == first


def test_a_batch_is_one_job_of_whole_pages_without_a_copy(
    make_backend: Callable[..., Any], pool_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = []
    for name in ("put_many", "get_many"):
        submit = getattr(kvstore.Space, name)
        monkeypatch.setattr(
            kvstore.Space, name, lambda *a, submit=submit, **k: (jobs.append(submit(*a, **k)), jobs[-1])[1]
        )
    host = HostPool(pages=128)
    backend = make_backend(pool_path, host)
    host.fill(seed=4)
    keys = [f"{number:064x}" for number in range(128)]
    before = backend._pool.stats()
    assert all(backend.batch_set_v1(keys, host.indices(*range(128))))
    assert all(backend.batch_get_v1(keys, host.indices(*range(128))))
    after = backend._pool.stats()
    assert [len(job) for job in jobs] == [128, 128]
    assert after["bytes_staged"] == before["bytes_staged"]
    assert backend.numbers()["pages_loaded"] == backend.numbers()["pages_stored"] == 128


def test_parents_and_depths_follow_the_prefix_that_sglang_gives(
    make_backend: Callable[..., Any], pool_path: str
) -> None:
    host = HostPool()
    backend = make_backend(pool_path, host)
    prefix = HiCacheStorageExtraInfo(prefix_keys=[f"{number:064x}" for number in (900, 901)])
    assert all(backend.batch_set_v1(KEYS[:2], host.indices(0, 1), prefix))
    blocks = {block.key: block for block in backend._pool.blocks()}
    assert [blocks[key_bytes(key)].depth for key in KEYS[:2]] == [2, 3]
    assert len({blocks[key_bytes(key)].parent for key in KEYS[:2]} - {0}) == 2


def test_generic_calls_store_and_load_tensors(make_backend: Callable[..., Any], pool_path: str) -> None:
    host = HostPool()
    backend = make_backend(pool_path, host, extra={"interface_v1": 0})
    values = [torch.randn(2048).to(torch.bfloat16) for _ in range(2)]
    assert backend.batch_set(KEYS[:2], values)
    assert backend.set(KEYS[2], values[0])
    assert backend.batch_exists(KEYS) == 3
    found = backend.batch_get(KEYS[:4], [torch.zeros(2048, dtype=torch.bfloat16) for _ in range(4)])
    assert [page is not None for page in found] == [True, True, True, False]
    assert torch.equal(found[1], values[1])
    assert torch.equal(backend.get(KEYS[0]).view(torch.bfloat16), values[0])
    assert backend.get(KEYS[0], torch.zeros(2047, dtype=torch.bfloat16)) is None, "a place that is too small"


def test_calls_that_sglang_should_not_make_are_misses(make_backend: Callable[..., Any], pool_path: str) -> None:
    host = HostPool()
    backend = make_backend(pool_path, host)
    assert backend.batch_get_v1(KEYS[:2], host.indices(0)) == [False, False]
    assert backend.batch_set_v1(KEYS[:1], host.indices(0)[:-1]) == [False]
    assert backend.batch_set(KEYS[:1], [None]) is False
    assert backend.batch_exists([]) == 0
    assert backend.batch_get_v1([], host.indices(0)[:0]) == []


def test_after_close_everything_is_a_miss(make_backend: Callable[..., Any], pool_path: str) -> None:
    host = HostPool()
    backend = make_backend(pool_path, host)
    assert backend.batch_set_v1(KEYS[:1], host.indices(0)) == [True]
    backend.close()
    backend.close()
    assert backend.batch_exists(KEYS) == 0
    assert backend.batch_get_v1(KEYS[:1], host.indices(0)) == [False]
    assert backend.batch_set_v1(KEYS[:1], host.indices(0)) == [False]


def test_clear_deletes_the_pages_of_this_model_only(make_backend: Callable[..., Any], pool_path: str) -> None:
    host = HostPool()
    ours, other = make_backend(pool_path, host), make_backend(pool_path, host, model_name="another")
    odd = "no digest, and longer than the store keeps a key as it is"
    for backend in (ours, other):
        assert all(backend.batch_set_v1([*KEYS[:2], odd], host.indices(0, 1, 2)))
    ours.clear()
    assert ours.batch_get_v1([*KEYS[:2], odd], host.indices(0, 1, 2)) == [False] * 3
    assert other.batch_exists([*KEYS[:2], odd]) == 3


def test_sglangs_collector_takes_the_stats(
    make_backend: Callable[..., Any], pool_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = class_of("observability/metrics_collector.py", "StorageMetrics")
    log = methods_of("observability/metrics_collector.py", "StorageMetricsCollector", ["log_storage_metrics"],
                     StorageMetrics=collector)["log_storage_metrics"]  # fmt: skip
    host = HostPool()
    backend = make_backend(pool_path, host)
    assert all(backend.batch_set_v1(KEYS[:3], host.indices(0, 1, 2)))
    assert all(backend.batch_get_v1(KEYS[:2], host.indices(0, 1)))
    monkeypatch.setitem(sys.modules, COLLECTOR, SimpleNamespace(StorageMetrics=collector))
    logged = _Collector()
    log(logged, backend.get_stats())
    assert (logged.seen["histogram_prefetch_pgs"], logged.seen["histogram_backup_pgs"]) == ([2], [3])
    assert all(speed > 0 for speed in logged.seen["histogram_prefetch_bandwidth"])
    assert backend.get_stats() == collector(), "samples are taken once"


def test_stats_are_none_where_nobody_collects_them(make_backend: Callable[..., Any], pool_path: str) -> None:
    assert COLLECTOR not in sys.modules
    assert make_backend(pool_path).get_stats() is None


class _Collector:
    """Keeps what SGLang's collector would put into its histograms."""

    def __init__(self) -> None:
        self.seen: dict[str, list[float]] = {}

    def _log_histogram(self, histogram: str, value: float) -> None:
        self.seen.setdefault(histogram, []).append(value)

    def __getattr__(self, name: str) -> str:
        return name


def test_two_backends_of_one_process_share_a_pool_and_one_outlives_the_other(pool_path: str) -> None:
    host = HostPool()
    first, second = create_backend(pool_path), create_backend(pool_path)
    for backend in (first, second):
        backend.register_mem_pool_host(host)
    assert first.batch_set_v1(KEYS[:1], host.indices(0)) == [True]
    first.close()
    assert second.batch_get_v1(KEYS[:1], host.indices(1)) == [True]
    second.close()
    with kvstore.open(pool_path) as pool:
        assert [block.key for block in pool.blocks()] == [key_bytes(KEYS[0])]
