# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Who is measured. Each engine moves ``count`` blocks of ``block_bytes`` with ``depth`` in flight, from and to the
same few reused buffers, and says how long it took, how long each request took, and what CPU time it burnt.

Requests are put in flight the way a caller of that engine does it: one batch call of ``depth`` blocks where the engine
has one, else ``depth`` threads.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import os
import random
import resource
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass
class Measured:
    """One cell of one repetition."""

    gb_per_s: float
    p50_us: float
    p99_us: float
    cpu_s_per_gb: float


@dataclass
class Work:
    """What to move."""

    path: str
    rw: str  # "get" or "put"
    block_bytes: int
    depth: int
    count: int  # blocks a repetition moves
    population: int  # distinct blocks on the device
    seed: int = 1
    extra: dict[str, Any] = field(default_factory=dict)


def cpu_seconds() -> float:
    """User and system time of this process with all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(work: Work, seconds: float, cpu_s: float, latencies_s: list[float]) -> Measured:
    """Figures of one repetition."""
    gigabytes = work.count * work.block_bytes / 1e9
    p50, p99 = np.percentile(np.array(latencies_s) * 1e6, [50, 99])
    return Measured(gigabytes / seconds, float(p50), float(p99), cpu_s / gigabytes)


class PageBuffers:
    """``depth`` page-aligned buffers, stamped so that a block that was not read is noticed."""

    def __init__(self, count: int, block_bytes: int) -> None:
        self.maps = [mmap.mmap(-1, block_bytes) for _ in range(count)]
        self.views = [memoryview(one) for one in self.maps]
        self.addresses = [ctypes.addressof(ctypes.c_char.from_buffer(one)) for one in self.maps]
        for view in self.views:
            view[:] = os.urandom(4096) * (block_bytes // 4096)


class Engine:
    """One competitor. ``open`` may format; ``batch`` moves blocks ``numbers[i]`` between the device and buffer i."""

    name = "?"

    def open(self, work: Work) -> None:
        raise NotImplementedError

    def batch(self, work: Work, numbers: list[int]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def repetition(self, work: Work, number: int) -> Measured:
        """Moves ``work.count`` blocks in random order, ``work.depth`` at a time."""
        order = random.Random(work.seed + number)
        if work.rw == "get":
            numbers = [order.randrange(work.population) for _ in range(work.count)]
        else:
            numbers = [number * work.count + i for i in range(work.count)]
        latencies: list[float] = []
        cpu_before, start = cpu_seconds(), time.perf_counter()
        for first in range(0, work.count, work.depth):
            begun = time.perf_counter()
            self.batch(work, numbers[first : first + work.depth])
            latencies.append(time.perf_counter() - begun)
        seconds = time.perf_counter() - start
        return measured(work, seconds, cpu_seconds() - cpu_before, latencies)


class Fio(Engine):
    """fio with io_uring, fixed buffers and registered files: the limit."""

    name = "fio io_uring"

    def open(self, work: Work) -> None:
        pass

    def repetition(self, work: Work, number: int) -> Measured:
        command = [
            "fio",
            "--name=j",
            f"--filename={work.path}",
            f"--bs={work.block_bytes}",
            f"--iodepth={work.depth}",
            "--rw=" + ("randread" if work.rw == "get" else "randwrite"),
            "--ioengine=io_uring",
            "--direct=1",
            "--fixedbufs=1",
            "--registerfiles=1",
            "--thread=1",
            "--invalidate=1",
            "--norandommap=1",
            f"--size={work.population * work.block_bytes}",
            f"--io_size={work.count * work.block_bytes}",
            f"--randseed={work.seed + number}",
            "--refill_buffers=0",
            "--output-format=json",
        ]
        job = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["jobs"][0]
        side = job["read" if work.rw == "get" else "write"]
        gigabytes = side["io_bytes"] / 1e9
        percentile = side["clat_ns"]["percentile"]
        seconds = side["runtime"] / 1000
        cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
        return Measured(
            side["bw_bytes"] / 1e9 if seconds else 0.0,
            percentile["50.000000"] / 1e3,
            percentile["99.000000"] / 1e3,
            cpu_s / gigabytes,
        )


class Preadv(Engine):
    """``os.preadv`` with O_DIRECT from Python; threads for more than one in flight."""

    name = "preadv O_DIRECT"

    def open(self, work: Work) -> None:
        self.fd = os.open(work.path, os.O_RDWR | os.O_DIRECT)
        self.buffers = PageBuffers(work.depth, work.block_bytes)
        self.threads = ThreadPoolExecutor(work.depth) if work.depth > 1 else None

    def one(self, work: Work, place: int, number: int) -> None:
        offset = number % work.population * work.block_bytes
        call = os.preadv if work.rw == "get" else os.pwritev
        assert call(self.fd, [self.buffers.maps[place]], offset) == work.block_bytes

    def batch(self, work: Work, numbers: list[int]) -> None:
        if self.threads is None:
            self.one(work, 0, numbers[0])
        else:
            list(self.threads.map(self.one, itertools.repeat(work), range(len(numbers)), numbers))

    def close(self) -> None:
        if self.threads:
            self.threads.shutdown()
        os.close(self.fd)


class KvStore(Engine):
    """This store. ``verify`` is "always" or "off"; one call per batch."""

    def __init__(self, verify: str, device_kind: str = "auto") -> None:
        self.verify = verify
        self.device_kind = device_kind
        kind = "" if device_kind == "auto" else f" {device_kind}"
        self.name = f"kvstore{kind} verify={verify}"

    def open(self, work: Work) -> None:
        import kvstore

        kvstore.format(
            work.path,
            block_bytes=work.block_bytes,
            min_block_bytes=min(work.block_bytes, 256 * 1024),
            region_bytes=work.extra["region_bytes"],
            force=True,
        )
        self.pool = kvstore.open(work.path, verify=self.verify, device_kind=self.device_kind)
        self.space = self.pool.space(engine="bench", block_bytes=work.block_bytes)
        self.arena = self.pool.alloc(work.depth * work.block_bytes)
        whole = memoryview(self.arena).cast("B")
        self.views = [whole[i * work.block_bytes : (i + 1) * work.block_bytes] for i in range(work.depth)]
        for view in self.views:
            view[:] = os.urandom(4096) * (work.block_bytes // 4096)
        self.keys = [b"block %12d" % i for i in range(max(work.population, 16 * work.count + work.count))]
        if work.rw == "get":
            for first in range(0, work.population, work.depth):
                keys = self.keys[first : min(first + work.depth, work.population)]
                assert all(self.space.put_many(keys, self.views[: len(keys)]).wait())
            self.pool.flush()

    def batch(self, work: Work, numbers: list[int]) -> None:
        if work.depth == 1:
            if work.rw == "get":
                assert self.space.get(self.keys[numbers[0]], self.views[0]) == work.block_bytes
            else:
                assert self.space.put(self.keys[numbers[0]], self.views[0])
            return
        keys = [self.keys[number] for number in numbers]
        views = self.views[: len(keys)]
        job = self.space.get_many(keys, views) if work.rw == "get" else self.space.put_many(keys, views)
        assert all(job.wait())

    def close(self) -> None:
        self.statistics = self.pool.stats()
        self.views.clear()
        self.pool.close()


class RawBlock(Engine):
    """LMCache's own raw-block core: slots, header and index on its Rust device."""

    def __init__(self, io_engine: str) -> None:
        self.io_engine = io_engine
        self.name = f"LMCache raw_block {io_engine}"

    def open(self, work: Work) -> None:
        import logging

        logging.disable(logging.WARNING)
        from lmcache.v1.storage_backend.raw_block.core import RawBlockCore, RawBlockCoreConfig
        from lmcache.v1.storage_backend.raw_block.key_codec import RawBlockKeySpec

        self.key_spec = RawBlockKeySpec
        slot_bytes = work.block_bytes + 4096
        meta_bytes = 64 << 20
        capacity = Path(work.path).stat().st_size or work.extra["device_bytes"]
        self.core = RawBlockCore(
            RawBlockCoreConfig(
                device_path=work.path,
                capacity_bytes=capacity,
                block_align=4096,
                header_bytes=4096,
                slot_bytes=slot_bytes,
                use_odirect=True,
                enable_zero_copy=True,
                meta_total_bytes=meta_bytes,
                meta_magic=b"LMCIDX01",
                meta_version=1,
                meta_checkpoint_interval_sec=3600,
                meta_idle_quiet_ms=100,
                meta_enable_periodic=False,
                meta_verify_on_load=True,
                load_checkpoint_on_init=False,
                io_engine=self.io_engine,
                iouring_queue_depth=256,
            ),
            key_namespace="object",
        )
        buffers = PageBuffers(work.depth, work.block_bytes)
        self.buffers = buffers
        self.objects = [
            _MemoryObject(view, address) for view, address in zip(buffers.views, buffers.addresses, strict=True)
        ]
        self.slots = (capacity - meta_bytes) // slot_bytes - work.depth
        if work.rw == "get":
            work_put = list(range(work.population))
            for first in range(0, work.population, work.depth):
                self.put(work_put[first : first + work.depth])

    def put(self, numbers: list[int]) -> None:
        if self.core.indexed_key_count() + len(numbers) > self.slots:
            self.core.delete_many(self.core.snapshot_indexed_keys())
        result = self.core.put_many([self.key_spec(f"k{n}", n + 1) for n in numbers], self.objects[: len(numbers)])
        assert all(result.results)

    def batch(self, work: Work, numbers: list[int]) -> None:
        if work.rw == "put":
            self.put(numbers)
        else:
            assert all(self.core.load_many_into([f"k{n}" for n in numbers], self.objects[: len(numbers)]))

    def close(self) -> None:
        self.core.close()


class _Metadata:
    shape = dtype = cached_positions = fmt = None


class _MemoryObject:
    """The little that RawBlockCore asks of LMCache's MemoryObj."""

    def __init__(self, view: memoryview, address: int) -> None:
        self.byte_array, self.data_ptr, self.metadata = view, address, _Metadata()


def all_engines() -> list[Engine]:
    """fio first: the limit is measured before anybody else."""
    return [Fio(), KvStore("always"), KvStore("off"), Preadv(), RawBlock("posix"), RawBlock("io_uring")]
