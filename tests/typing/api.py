# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Checked by mypy, never run: how the API is used, and the types that come out. See tests/python/test_typing.py."""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from typing_extensions import assert_type

import kvstore
from kvstore import errors
from kvstore.gpu import DeviceExtents, OwnStream, PagedCache, StreamMark
from kvstore.testing import SimDisk


def opening() -> None:
    assert_type(kvstore.format("pool.img", size="4GiB", region_bytes=1 << 30), list[dict[str, Any]])
    with kvstore.open(["/dev/a", "/dev/b"], verify="always", device_kind="uring", window_bytes="64MiB") as pool:
        assert_type(pool, kvstore.Pool)
    kvstore.open("/dev/a", verify="sometimes")  # type: ignore[arg-type]
    kvstore.open(b"/dev/a")  # type: ignore[arg-type]
    kvstore.open("/dev/a", unknown=1)  # type: ignore[call-arg]
    assert_type(SimDisk("1GiB").path, str)


def spaces(pool: kvstore.Pool) -> None:
    space = pool.space(engine="vllm", tp_size=4, layers=[0, 1], quantized=None, mla=True)
    assert_type(space, kvstore.Space)
    pool.space(scale=1.5)  # type: ignore[arg-type]


def one_block(space: kvstore.Space, array: np.ndarray[Any, Any]) -> None:
    assert_type(space.put(b"key", b"value"), kvstore.Result)
    space.put(b"key", array, parent=b"parent", depth=3, salt=b"salt", meta=b"meta", durable=True, page_hashes=True)
    space.put(b"key", [array, memoryview(b"x"), (0x1000, 4096), bytearray(3)])
    space.put("key", b"value")  # type: ignore[arg-type]
    space.put(b"key", 5)  # type: ignore[arg-type]
    assert_type(space.get(b"key", array, offset=4096, nbytes=8192), int | None)
    space.get(b"key", (0x1000, 4096))


def batches(pool: kvstore.Pool, space: kvstore.Space, keys: list[bytes], outs: list[bytearray]) -> None:
    queue = pool.queue()
    job = space.put_many(keys, outs, chain=True, salts=b"salt", queue=queue, tag=7, deadline_ms=2.5, priority=1)
    assert_type(job, kvstore.Job)
    assert_type(job.wait(timeout_s=1), list[kvstore.Result])
    assert_type(job.results[0].status, Literal["hit", "miss", "stored", "present", "deleted", "error"])
    assert_type(job.results[0].error, errors.KvStoreError | None)
    assert_type(space.get_many(keys, outs, offsets=0, nbytes=[1, None]), kvstore.Job)
    assert_type(space.prefetch(keys, deadline_ms=50, queue=queue), kvstore.Job)
    assert_type(queue.fileno(), int)
    assert_type(queue.drain(), list[kvstore.Job])


async def awaiting(space: kvstore.Space) -> None:
    assert_type(await space.get_many([b"key"], [bytearray(4)]), list[kvstore.Result])


def index(space: kvstore.Space, keys: list[bytes]) -> None:
    assert_type(space.contains(b"key"), bool)
    assert_type(space.contains(keys, pin=True), list[bool])
    assert_type(space.lookup(keys), list[int])
    assert_type(space.match_prefix(keys, pin=True, salts=[b"a", None]), int)
    assert_type(space.delete(keys), list[kvstore.Result])
    assert_type(space.keys(), Iterator[bytes])
    assert_type(space.describe(keys), list[kvstore.BlockInfo | None])
    space.unpin(keys)
    space.touch(keys)


def memory(pool: kvstore.Pool, array: np.ndarray[Any, Any]) -> None:
    buffer = pool.alloc("64MiB")
    assert_type(buffer, kvstore.Buffer)
    assert_type(memoryview(buffer), memoryview)
    np.frombuffer(memoryview(buffer), dtype=np.uint8)
    registration = pool.register(array)
    assert_type(registration.reason, str)
    pool.unregister(array)


def listing(pool: kvstore.Pool) -> None:
    for block in pool.blocks():
        assert_type(block, kvstore.BlockInfo)
        assert_type(pool.verify_block(block), Literal["ok", "corrupt", "stale"])
    feed = pool.evictions(limit=100)
    assert_type(feed.drain(), list[kvstore.Eviction])
    assert_type(feed.drain()[0].reason, Literal["reclaimed", "deleted", "corrupt", "lost"])
    assert_type(pool.stats(), dict[str, int | float | str])


def trouble() -> None:
    try:
        kvstore.open("/dev/a")
    except kvstore.BusyError as error:
        assert_type(error.code, str)
    except OSError as error:
        assert_type(error.errno, int | None)
    caught: ValueError = errors.ConfigError("what is wrong")
    assert_type(str(caught), str)


def paged_cache(space: kvstore.Space) -> None:
    stream = OwnStream(0)
    cache = PagedCache([1 << 20], cache_blocks=8, head_bytes=4096, block_stride=4096, kv_count=1)
    assert_type(cache.way(stream), str)
    extents = DeviceExtents(cache.device, cache.extent_bytes(2), 1 << 20)
    address = extents.take()
    assert_type(address, int | None)
    if address is not None:
        cache.gather([(address, 8192)], [[3, None]], stream=stream, layers=(0, 1))
        space.put(b"key", (address, 8192), stream=stream)
    assert_type(StreamMark(0, stream).has_happened(), bool)
    cache.scatter([(1 << 20, 4096)], [[1]], stream="stream")  # type: ignore[arg-type]
