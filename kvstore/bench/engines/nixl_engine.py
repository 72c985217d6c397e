# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""NIXL's POSIX plugin with io_uring: one transfer of all blocks of a batch, polled until it is done.

A transfer library, not a store: blocks lie in one file as ``FlatFile`` says. Each worker has an agent of its own, since
an agent has one queue under one lock. Waiting is polling, as NIXL's callers do it, and costs a core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, ClassVar

from kvstore.bench.content import Buffers, whole_pages
from kvstore.bench.engines.base import Op, Work
from kvstore.bench.engines.flat import FlatEngine, FlatFile
from kvstore.bench.engines.processes import PATIENCE_S

__all__ = ["NixlPosixEngine"]

_PLUGIN = "POSIX"
_QUEUES = ("uring", "aio", "posix_aio")


class _AgentBuffers(Buffers):
    """Rows, registered with the agent that moves them."""

    def __init__(self, name: str, queue: str, work: Work, file: FlatFile) -> None:
        super().__init__(work.iodepth, work.row_bytes)
        api = import_module("nixl_cu12._api")
        self.name = name
        self.agent = api.nixl_agent(name, api.nixl_agent_config(backends=[]))
        self.agent.create_backend(_PLUGIN, {f"use_{queue}": "true"})
        rows = [(self.address(0), work.iodepth * work.row_bytes, 0, "")]
        self.registered = [
            self.agent.register_memory(rows, "DRAM", backends=[_PLUGIN]),
            self.agent.register_memory([(0, file.span, file.fd, "")], "FILE", backends=[_PLUGIN]),
        ]

    def release(self) -> None:
        """Before the file is closed."""
        while self.registered:
            self.agent.deregister_memory(self.registered.pop(), backends=[_PLUGIN])


class NixlPosixEngine(FlatEngine):
    """One file or device."""

    name = "nixl-posix"
    option_help: ClassVar[Mapping[str, str]] = {"queue": "uring, aio or posix_aio"}

    def __init__(self) -> None:
        self.lanes: list[_AgentBuffers] = []

    def why_not(self) -> str | None:
        return None if find_spec("nixl_cu12") else "NIXL is missing: pip install --no-deps nixl-cu12"

    def open(self, work: Work) -> None:
        os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
        self.work = work
        self.queue = work.options.get("queue", "uring")
        if self.queue not in _QUEUES:
            raise RuntimeError(f"queue is {self.queue!r}: there are {', '.join(_QUEUES)}")
        self.file = FlatFile(work)

    def buffers(self) -> Buffers:
        assert self.file is not None
        lane = _AgentBuffers(f"kvbench-{len(self.lanes)}", self.queue, self.work, self.file)
        self.lanes.append(lane)
        return lane

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        assert self.file is not None
        assert isinstance(buffers, _AgentBuffers)
        agent, fd = buffers.agent, self.file.fd
        sizes = [whole_pages(self.work.bytes_of(number)) for number in numbers]
        memory = agent.get_xfer_descs([(buffers.address(row), n, 0) for row, n in enumerate(sizes)], "DRAM")
        places = agent.get_xfer_descs(
            [(self.file.offset(number), n, fd) for number, n in zip(numbers, sizes, strict=True)], "FILE"
        )
        transfer = agent.initialize_xfer(
            "READ" if op == "get" else "WRITE", memory, places, buffers.name, backends=[_PLUGIN]
        )
        try:
            state, give_up = agent.transfer(transfer), time.monotonic() + PATIENCE_S
            while state not in ("DONE", "ERR"):
                if time.monotonic() > give_up:
                    raise RuntimeError(f"{op} of {len(numbers)} blocks is still {state} after {PATIENCE_S:.0f} s")
                state = agent.check_xfer_state(transfer)
        finally:
            agent.release_xfer_handle(transfer)
        if state != "DONE":
            raise RuntimeError(f"{op} of {len(numbers)} blocks ended as {state}")
        return None

    def close(self) -> None:
        while self.lanes:
            self.lanes.pop().release()
        super().close()

    def facts(self) -> dict[str, Any]:
        return {"version": f"nixl-cu12 {version('nixl-cu12')}", "path": f"POSIX plugin, {self.queue}, polled"}
