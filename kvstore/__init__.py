# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""KV caches of LLM engines on raw NVMe.

>>> kvstore.format(new_file, size="256MiB")[0]["clean"]
True
>>> with kvstore.open(new_file) as pool:
...     space = pool.space(engine="vllm", model="Qwen/Qwen2.5-32B", dtype="bfloat16", block_tokens=256)
...     space.put(b"key", b"a KV block").status
...     out = bytearray(10)
...     space.get(b"key", out), bytes(out)
'stored'
(10, b'a KV block')

Misses are values, errors are exceptions (:mod:`kvstore.errors`). Sizes are ints or text such as ``"4GiB"``.
"""

from __future__ import annotations

from kvstore import _shadow  # first: says what is wrong when this is not our package, or not a built one

# isort: split
from kvstore import errors
from kvstore._core import BlockInfo, Buffer, Eviction, Result, __version__
from kvstore.errors import (
    BusyError,
    CanceledError,
    ClosedError,
    ConfigError,
    CorruptionError,
    DeviceError,
    DurabilityLost,
    EngineError,
    FencedError,
    ForeignDataError,
    FormatError,
    KvStoreError,
    LeaseEnded,
    OtherStoreError,
    StaleError,
    StoreFailed,
    UnsupportedError,
    WaitTimeout,
)
from kvstore.job import CompletionQueue, Job
from kvstore.pool import EvictionFeed, Pool, Registration, format, open, plan_format, unshare
from kvstore.sizes import format_size, parse_size
from kvstore.space import Space

__all__ = [
    "BlockInfo",
    "Buffer",
    "BusyError",
    "CanceledError",
    "ClosedError",
    "CompletionQueue",
    "ConfigError",
    "CorruptionError",
    "DeviceError",
    "DurabilityLost",
    "EngineError",
    "Eviction",
    "EvictionFeed",
    "FencedError",
    "ForeignDataError",
    "FormatError",
    "Job",
    "KvStoreError",
    "LeaseEnded",
    "OtherStoreError",
    "Pool",
    "Registration",
    "Result",
    "Space",
    "StaleError",
    "StoreFailed",
    "UnsupportedError",
    "WaitTimeout",
    "__version__",
    "errors",
    "format",
    "format_size",
    "open",
    "parse_size",
    "plan_format",
    "unshare",
]

del _shadow
