# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Real faults of this machine, and what the tests of this folder share."""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from oracle import content, read

import kvstore
from kvstore import errors

MIB = 1 << 20
POOL = {"region_bytes": MIB, "min_block_bytes": 4096}

# The kernel holds the device until the last request of a killed process is done.
PATIENCE_S = 60

# Within this close() returns, whatever the device does: its timeout, its grace, and a machine that is busy.
CLOSE_TIMEOUT_S = 2
CLOSE_BOUND_S = 15


def run(*command: str) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout.strip()


def need_root(what: str) -> None:
    if os.geteuid() != 0:
        pytest.skip(f"{what} needs root")


def need_uring(kind: str) -> None:
    problem = kvstore._core.uring_problem() if kind == "uring" else ""
    if problem:
        pytest.skip(f"io_uring cannot be used here: {problem}")


def close_in_time(pool: kvstore.Pool) -> errors.KvStoreError | None:
    """Close, and return what it raised; the time it took is bounded and the pool is closed."""
    started = time.monotonic()
    raised = None
    try:
        pool.close(timeout_s=CLOSE_TIMEOUT_S)
    except errors.KvStoreError as error:
        raised = error
    assert time.monotonic() - started < CLOSE_BOUND_S
    assert pool.closed
    return raised


def put_durably(space: kvstore.Space, count: int, name: str = "before") -> list[bytes]:
    """Keys of that many blocks that are on the device now."""
    keys = [b"%s-%d" % (name.encode(), i) for i in range(count)]
    assert all(space.put_many(keys, [content(key) for key in keys], durable=True).wait(PATIENCE_S))
    return keys


def put_until_refused(space: kvstore.Space, name: str, count: int = 2000) -> tuple[list[bytes], errors.KvStoreError]:
    """Durable puts until one fails; the keys that were stored, and why the next one was not."""
    stored = []
    for i in range(count):
        key = b"%s-%d" % (name.encode(), i)
        (result,) = space.put_many([key], [content(key)], durable=True).wait(PATIENCE_S)
        if result.error is not None:
            assert read(space, key) in ("miss", "io")  # I8
            return stored, result.error
        stored.append(key)
    raise AssertionError(f"{count} puts were all stored")
