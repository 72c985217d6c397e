# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""In one of three guests: a target, or one of two hosts on its network."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import fabrics
from fabrics import FILE, LINKS, TRANSPORTS, do, host_name
from oracle import IDENTITY
from support import direct_bytes, keys, open_pool, put, read, run, wait_for

import kvstore
from kvstore import _core

COUNT = 12
BENCH = "--num-keys 8 --in-flight 2 --data-size-kb 512 --no-skip-verify --l1-align-bytes 4096"


def write_file(links: Sequence[int]) -> str:
    """A host's file has the ports that it can reach, the target's all of them."""
    # An outage of 12 s is to be noticed, so who is silent for 5 s is lost.
    connection = fabrics.CONNECTION | {"keep_alive_s": 5}
    return str(fabrics.write_file(FILE, tuple(LINKS), links, connection=connection))


def serve() -> None:
    """The target."""
    for number in LINKS.values():
        fabrics.network(f"10.77.{number}.1", number)
    for transport in TRANSPORTS:
        fabrics.mapped(f"under-{transport}", f"UNDER-{transport.upper()}")
    do("target", "apply", write_file(tuple(LINKS.values())))


def join() -> None:
    """A host, by both transports. Frames of the full size must reach the target: else RDMA would hang."""
    number = LINKS[os.uname().nodename]
    fabrics.network(f"10.77.{number}.2", number)
    run("ping", "-c", "1", "-w", "60", "-M", "do", "-s", "4172", f"10.77.{number}.1")
    file = write_file([number])
    for transport in TRANSPORTS:
        do("host", "connect", file, "--host", host_name(transport))


def pool(transport: str, *words: str) -> dict[str, Any]:
    """What `nvmf-setup pool` reports."""
    return do("pool", str(FILE), "--host", host_name(transport), *words)


def pool_line(transport: str) -> str:
    """What it prints for people."""
    status, out, errors = fabrics.setup("pool", str(FILE), "--host", host_name(transport))
    assert status == 0, errors
    return next(line for line in out.splitlines() if "--l2-adapter" in line)


def superblock(transport: str) -> dict[str, Any]:
    read = _core.read_superblock(fabrics.device(transport))
    return {name: str(read[name]) for name in ("store_uuid", "pool_uuid")}


_held: dict[str, kvstore.Pool] = {}


def hold(transport: str, prefix: str) -> None:
    """Open the pool, put blocks durably, and stay."""
    _held[transport] = open_pool(fabrics.device(transport), wait_s=60)
    put(_held[transport], keys(prefix, COUNT))


def reads(transport: str, prefix: str) -> list[str]:
    """Of who holds it."""
    return read(_held[transport], keys(prefix, COUNT))


def release(transport: str) -> None:
    _held.pop(transport).close()


def refusal(transport: str) -> str:
    """What puts of who holds it are told, once another host has taken the pool over."""

    def said() -> str:
        (result,) = _held[transport].space(**IDENTITY).put_many([b"too late"], [b"anything"]).wait(60)
        return str(result.error) if result.status == "error" else ""

    return wait_for("puts are refused", said)


def owner(transport: str) -> str:
    """Who has not closed the pool, as `nvmf-setup pool` tells it."""
    return str((pool(transport)["owner"] or {"host": ""})["host"])


def put_again(transport: str, prefix: str) -> list[str]:
    """What puts of who holds it end in."""
    wanted = keys(prefix, COUNT)
    results = _held[transport].space(**IDENTITY).put_many(wanted, [b"later"] * COUNT).wait(60)
    return sorted({result.code if result.status == "error" else result.status for result in results})


def bench(line: str) -> str:
    """What `lmcache bench l2` prints, given the line as it was printed, which a shell takes apart.

    For a worker: LMCache and torch are imported once there, which takes a minute and more on an emulated processor.
    """
    words = run("sh", "-c", f"printf '%s\\n' {line} {BENCH}").splitlines()
    os.environ |= {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"}
    from lmcache.cli.main import main

    status: object = 0
    with tempfile.TemporaryFile() as file:
        with _output_to(file.fileno()):
            try:
                main(["bench", "l2", *words])
            except SystemExit as error:
                status = error.code
        file.seek(0)
        said = file.read().decode(errors="replace")
    assert not status, f"lmcache bench l2 {line}: exit code {status}: {said}"
    return said


@contextlib.contextmanager
def _output_to(descriptor: int) -> Iterator[None]:
    """Of this process, whoever in it writes."""
    saved = {stream: os.dup(stream) for stream in (1, 2)}
    try:
        for stream in saved:
            os.dup2(descriptor, stream)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, copy in saved.items():
            os.dup2(copy, stream)
            os.close(copy)


def outage(transport: str) -> None:
    """The network loses everything for 12 s, which reads notice."""
    import faults

    device = fabrics.device(transport)
    with faults.no_network(transport) as is_over:
        while not is_over():
            with contextlib.suppress(OSError):  # EIO, once the kernel has given up on the path
                direct_bytes(device, 1 << 20)
