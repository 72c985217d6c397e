# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Mooncake Store with its SSD offload, on one machine: a client in this process, a ``mooncake_master`` of its own, TCP.

A put ends in the client's memory; its heartbeat writes to files later. So the time of puts is that of memory until that
is full, and ``flush`` waits for a replica of every block on the disk. Before gets another client is opened, whose
memory is empty: they come from the disk. Blocks are bucket files of their own, since Mooncake keeps what does not fill
a bucket in memory only. Its log goes to standard error.
"""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from kvstore.bench.content import Buffers
from kvstore.bench.engines.base import Engine, Op, Work
from kvstore.bench.engines.folder import Folder
from kvstore.bench.engines.processes import end, start
from kvstore.sizes import parse_size

__all__ = ["MooncakeEngine"]

MIB = 1 << 20
_NOT_FOUND = -704
_PATIENCE_S = 60.0
_PAUSE_S = 0.01
_PACKAGE = "mooncake-transfer-engine-non-cuda"


class MooncakeEngine(Engine):
    """One client, which all threads share."""

    name = "mooncake"
    in_folder = True
    operations = frozenset({"get", "put", "lookup"})
    option_help: ClassVar[Mapping[str, str]] = {"memory": "of the client, where puts end; 512M"}

    def __init__(self) -> None:
        self.folder: Folder | None = None
        self.master: subprocess.Popen[bytes] | None = None
        self.client: Any = None
        self.memory: list[Buffers] = []
        self.retries = 0

    def why_not(self) -> str | None:
        if find_spec("mooncake") is None:
            return f"Mooncake is missing: pip install --no-deps {_PACKAGE}"
        try:
            import_module("mooncake.store")
        except ImportError as error:
            return f"mooncake.store cannot be imported: {error}"
        return None

    def open(self, work: Work) -> None:
        self.work = work
        self.newest: deque[int] = deque(maxlen=work.population)
        self.memory_bytes = max(parse_size(work.options.get("memory", "512M")), 4 * self._in_flight_bytes())
        self.folder = Folder(work)
        # Mooncake's only way to be told.
        os.environ.update(
            MC_STORE_MEMCPY="1",
            MOONCAKE_OFFLOAD_USE_URING="0",  # with it, a second client in a process reads zeros
            MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS="1",
            MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES=str(max(1024 * MIB, 8 * self._in_flight_bytes())),
            MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR="bucket_storage_backend",
            MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT="1",
            MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES=str(work.row_bytes),
            MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=str(2 * work.size_bytes),
            MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE=str(2 * work.size_bytes),
        )
        self._start()

    def _in_flight_bytes(self) -> int:
        return self.work.iodepth * self.work.numjobs * self.work.row_bytes

    def _start(self) -> None:
        assert self.folder is not None
        port = _free_port()
        program = Path(import_module("mooncake").__file__ or "").parent / "mooncake_master"
        self.master = start(
            [
                str(program),
                f"--rpc_port={port}",
                "--rpc_address=127.0.0.1",
                f"--metrics_port={_free_port()}",
                "--enable_offload=true",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _until(lambda: self._answers(port), lambda: "mooncake_master does not answer")
        self.client = import_module("mooncake.store").MooncakeDistributedStore()
        code = self.client.setup(
            "127.0.0.1",
            "P2PHANDSHAKE",
            self.memory_bytes,
            64 * MIB,
            "tcp",
            "",
            f"127.0.0.1:{port}",
            None,
            True,
            str(self.folder.path),
        )
        if code:
            raise RuntimeError(f"Mooncake's setup ended as {code}; its log is on standard error")
        for buffers in self.memory:
            self._register(buffers)

    def _answers(self, port: int) -> bool:
        assert self.master is not None
        code = self.master.poll()
        if code is not None:
            raise RuntimeError(f"mooncake_master ended with {code}: run it by hand to see why")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return False
        return True

    def _stop(self) -> None:
        """The client first: without a master it waits for it."""
        if self.client is not None:
            self.client.close()
            self.client = None
            gc.collect()
        if self.master is not None:
            end(self.master)
            self.master = None

    def _register(self, buffers: Buffers) -> None:
        code = self.client.register_buffer(buffers.address(0), len(buffers) * self.work.row_bytes)
        if code:
            raise RuntimeError(f"register_buffer ended as {code}")

    def buffers(self) -> Buffers:
        buffers = super().buffers()
        self._register(buffers)
        self.memory.append(buffers)
        return buffers

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        keys = [_key(number) for number in numbers]
        if op == "lookup":
            return [found == 1 for found in self.client.batch_is_exist(keys)]
        addresses = [buffers.address(row) for row in range(len(numbers))]
        sizes = [self.work.bytes_of(number) for number in numbers]
        if op == "put":
            self._put(keys, addresses, sizes)
            self.newest.extend(numbers)
            return None
        found = [False] * len(numbers)
        left = list(range(len(numbers)))
        while left:
            # Of a key that is twice in a batch Mooncake fills one buffer, and says that both are.
            rows = list({keys[row]: row for row in left}.values())
            moved = self._get(
                [keys[row] for row in rows], [addresses[row] for row in rows], [sizes[row] for row in rows]
            )
            for row, code in zip(rows, moved, strict=True):
                found[row] = code == sizes[row]
                left.remove(row)
        return found

    def _put(self, keys: list[str], addresses: list[int], sizes: list[int]) -> None:
        codes: list[int] = []

        def put() -> bool:
            codes[:] = self.client.batch_put_from(keys, addresses, sizes)
            return not any(codes)

        _until(put, lambda: f"puts end as {sorted(set(codes))}, as where its memory is full and stays so")

    def _get(self, keys: list[str], addresses: list[int], sizes: list[int]) -> list[int]:
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            codes: list[int] = self.client.batch_get_into(keys, addresses, sizes)
            failed = {code for code in codes if code < 0 and code != _NOT_FOUND}
            if not failed:
                return codes
            self.retries += 1
            if time.monotonic() > give_up:
                raise RuntimeError(f"gets end as {sorted(failed)}, for {_PATIENCE_S:.0f} s")
            time.sleep(_PAUSE_S)

    def flush(self) -> None:
        waiting = set(self.newest)

        def on_disk() -> bool:
            for number in list(waiting):
                if any(one.is_local_disk_replica() for one in self.client.get_replica_desc(_key(number))):
                    waiting.discard(number)
            return not waiting

        _until(on_disk, lambda: f"{len(waiting)} blocks are not written to the disk")

    def forget(self) -> None:
        """Another client, whose memory is empty."""
        self._stop()
        self._start()

    def close(self) -> None:
        self._stop()
        self.memory.clear()
        if self.folder is not None:
            self.folder.remove()
            self.folder = None

    def facts(self) -> dict[str, Any]:
        return {
            "version": f"{_PACKAGE} {version(_PACKAGE)}",
            "path": "put: into memory; get: bucket file, pread, staging, TCP loopback by memcpy",
            "get_retries": self.retries,
        }


def _key(number: int) -> str:
    return f"block-{number}"


def _until(done: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    """Ask again and again: Mooncake has no call to wait with."""
    give_up = time.monotonic() + _PATIENCE_S
    while not done():
        if time.monotonic() > give_up:
            raise RuntimeError(f"{otherwise()}, for {_PATIENCE_S:.0f} s")
        time.sleep(_PAUSE_S)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
