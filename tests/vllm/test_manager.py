# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: vLLM's own tiering manager, with the tier behind its CPU tier, ends every request, and ends itself.

Method: the manager that the engine's scheduler calls, its shared memory and its factory, stepped by hand.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.kv_offload.base import LookupResult, ScheduleEndContext
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager
from vllm_tier import ROW_BYTES, ROWS, key, offloading_config, offloading_spec, request

from kvstore.testing import SimDisk

KEYS = [key(number) for number in range(4)]
STEP = ScheduleEndContext((), ())


class Stepped:
    """The manager with one tier, and what an engine's scheduler does with it."""

    _numbers = itertools.count()

    def __init__(self, path: str, **settings: Any) -> None:
        engine_id = f"kvstore-test-{os.getpid()}-{next(self._numbers)}"
        self.region = SharedOffloadRegion(engine_id, ROWS, None, ROW_BYTES, ROW_BYTES)
        self.primary = CPUPrimaryTierOffloadingManager(ROWS, self.region)
        config = {"type": "KVStoreTier", "module_path": "kvstore.vllm", "path": path, "revision": "r1", **settings}
        spec = offloading_spec(offloading_config())
        self.view = self.primary.get_kv_memoryview()
        self.tier: Any = SecondaryTierFactory.create_secondary_tier(config, self.view, spec)
        self.manager = TieringOffloadingManager(self.primary, [self.tier])
        self._requests = itertools.count()

    def start(self) -> Any:
        context = request(KEYS, f"r{next(self._requests)}")
        self.manager.on_new_request(context)
        return context

    def step(self) -> None:
        """One step of the scheduler, by whose end the device has done all it was given."""
        self.manager.on_schedule_end(STEP)
        self.tier.drain_jobs()
        self.manager.on_schedule_end(STEP)

    def store(self, keys: list[Any]) -> None:
        context = self.start()
        rows = self.manager.prepare_store(keys, context).store_spec.chunk_ids
        for one, row in zip(keys, rows, strict=True):
            self.view[int(row), 0] = one[31] + 1
        self.manager.complete_store(keys, context)
        self.step()
        self.manager.on_request_finished(context)

    def forget(self) -> None:
        """Empty the CPU tier, so that only the pool has the blocks."""
        self.manager.reset_cache()
        self.manager.on_reset_flushed() if hasattr(self.manager, "on_reset_flushed") else None


@pytest.fixture
def stepped() -> Iterator[Callable[..., Stepped]]:
    made: list[Stepped] = []

    def make(path: str, **settings: Any) -> Stepped:
        made.append(Stepped(path, **settings))
        return made[-1]

    yield make
    for one in made:
        one.manager.shutdown()
        Path(one.region.mmap_path).unlink(missing_ok=True)


def test_the_blocks_of_a_request_come_back_as_one_job(stepped: Any, make_pool: Any) -> None:
    engine = stepped(make_pool())
    engine.store(KEYS)
    engine.forget()
    context = engine.start()
    assert {engine.manager.lookup(one, context) for one in KEYS} == {LookupResult.HIT_PENDING}
    engine.step()
    assert {engine.manager.lookup(one, context) for one in KEYS} == {LookupResult.HIT}
    rows = engine.manager.prepare_load(KEYS, context).chunk_ids
    assert [engine.view[int(row), 0] for row in rows] == [1, 2, 3, 4]
    status = engine.tier.report_status()
    assert (status["load_jobs"], status["blocks_loaded"], status["trouble"]) == (1, 4, {})


def test_a_block_that_cannot_be_read_is_not_asked_for_again(stepped: Any, disk: SimDisk) -> None:
    engine = stepped(disk.path)
    engine.store(KEYS)
    engine.forget()
    first = engine.tier._space.describe(KEYS[1:2])[0].offset_bytes
    disk.fault("error", op="read", first_byte=first, last_byte=first + ROW_BYTES - 1, times=1_000_000)
    context = engine.start()
    for _ in range(20):
        found = [engine.manager.lookup(one, context) for one in KEYS]
        engine.step()
    assert found == [LookupResult.HIT, LookupResult.MISS, LookupResult.HIT, LookupResult.HIT]
    assert engine.tier.report_status()["load_jobs"] == 1


def test_a_tier_that_is_behind_is_given_no_stores(stepped: Any, make_pool: Any) -> None:
    pressure = {"backpressure_cls": "EMABackpressureDetector", "policy_cls": "DropStorePolicy"}
    # Any latency at all is too much, from the first store on.
    always = {"high_water_s": 1e-9, "low_water_s": 0.0, "warmup_completions": 0}
    engine = stepped(make_pool(), backpressure={**pressure, **always})
    engine.store(KEYS[:1])
    engine.store(KEYS[1:2])
    status = engine.tier.report_status()
    assert (status["store_jobs"], status["blocks_stored"]) == (1, 1)


def test_the_shared_memory_is_unmapped_at_the_end(stepped: Any, make_pool: Any) -> None:
    engine = stepped(make_pool())
    engine.store(KEYS)
    engine.view = None
    engine.manager.shutdown()
    assert engine.region.mmap_obj is None
