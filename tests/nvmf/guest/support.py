# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""In the guest: drives by serial, programs with a deadline, waits by condition, blocks whose bytes are known."""

from __future__ import annotations

import mmap
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from oracle import IDENTITY, content

import kvstore

PROGRAM_S = 100.0
POOL = {"region_bytes": 4 << 20, "min_block_bytes": 4096}


def run(*words: str, timeout_s: float = PROGRAM_S, check: bool = True, text: str | None = None) -> str:
    """What a program printed. AssertionError: it failed; with what it said."""
    done = subprocess.run(
        words, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False
    )
    assert not check or done.returncode == 0, f"{' '.join(words)}: exit code {done.returncode}: {done.stdout}"
    return done.stdout


def wait_for(what: str, condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """The condition's first answer that is true. AssertionError: none came."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"after {timeout_s:g} s still not: {what}"
        time.sleep(0.05)


def fio_verifies(device: str, *words: str) -> str:
    """fio writes 8 MiB at random through io_uring, and reads it back."""
    fixed = "--name=verify --ioengine=io_uring --direct=1 --rw=randwrite --bs=16k --size=8m --iodepth=8"
    check = "--verify=crc32c --do_verify=1 --verify_fatal=1"
    return run("fio", f"--filename={device}", *fixed.split(), *check.split(), *words)


def direct_bytes(device: str, count: int, offset: int = 0) -> bytes:
    """Past the page cache, of which each device has its own."""
    step = 1 << 20
    with mmap.mmap(-1, step) as buffer:
        descriptor = os.open(device, os.O_RDONLY | os.O_DIRECT)
        try:
            parts = []
            for at in range(offset, offset + count, step):
                assert os.preadv(descriptor, [buffer], at) == step
                parts.append(buffer[:])
        finally:
            os.close(descriptor)
    return b"".join(parts)


def read_text(path: str | Path) -> str:
    return Path(path).read_text().strip()


def drive(serial: str) -> str:
    """The name in /dev of an emulated drive, another one at each boot."""
    for path in Path("/sys/block").glob("nvme*"):
        serial_file = path / "device" / "serial"
        if serial_file.exists() and read_text(serial_file) == serial:
            return f"/dev/{path.name}"
    raise AssertionError(f"no drive {serial}")


def queue(device: str, attribute: str) -> Path:
    return Path("/sys/block", Path(os.path.realpath(device)).name, "queue", attribute)


def statistics(device: str) -> dict[str, int]:
    """The kernel's own counts of a device (Documentation/block/stat.rst)."""
    words = list(map(int, read_text(queue(device, "..") / "stat").split()))
    return {"reads": words[0], "writes": words[4], "sectors_written": words[6], "flushes": words[15]}


def open_pool(device: str, **options: Any) -> kvstore.Pool:
    """Through io_uring or not at all."""
    return kvstore.open(device, device_kind="uring", **options)


def keys(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}-{number}".encode() for number in range(count)]


def put(pool: kvstore.Pool, wanted: Sequence[bytes], timeout_s: float = 60.0) -> None:
    """Put and flush; each of them must be stored."""
    results = pool.space(**IDENTITY).put_many(wanted, [content(key) for key in wanted], durable=True).wait(timeout_s)
    assert {result.status for result in results} <= {"stored", "present"}, results


def read(pool: kvstore.Pool, wanted: Iterable[bytes], timeout_s: float = 60.0) -> list[str]:
    """Of each key "hit", "miss" or the code of an error. Wrong bytes are none of these: they fail here."""
    space, told = pool.space(**IDENTITY), []
    for key in wanted:
        right = content(key)
        out = bytearray(len(right))
        (result,) = space.get_many([key], [out]).wait(timeout_s)
        if result.status == "hit":
            assert out == right, f"wrong bytes under {key!r}"
        told.append(result.code if result.status == "error" else result.status)
    return told
