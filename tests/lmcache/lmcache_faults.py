# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Faults between LMCache's doors and the store, at the level of Space and CompletionQueue.

A gated load behaves as one whose pieces are on a stuck device: it cannot be cancelled, its buffers are written when the
gate opens and not before, and only then is its job done. A failing load gives EIO for the chosen items.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kvstore.errors import DeviceError


class Outcome:
    """Stands in for a Result."""

    def __init__(self, status: str, nbytes: int = 0, error: Exception | None = None) -> None:
        self.status, self.nbytes, self.error = status, nbytes, error

    def __bool__(self) -> bool:
        return self.status == "hit"


class Faults:
    """Switches faults on and off for the spaces it wraps.

    Attributes
    ----------
    gate : loads submitted while this is an Event are stuck until it is set.
    fail : chooses the keys whose loads fail with EIO.
    """

    def __init__(self) -> None:
        self.gate: threading.Event | None = None
        self.fail: Callable[[bytes], bool] | None = None
        self.gated: list[GatedJob] = []

    def wrap_adapter(self, adapter: Any) -> Faults:
        """Put the faults between an L2 adapter and its store."""
        adapter._loads._queue = FaultyQueue(adapter._loads._queue)
        self._wrap_spaces(adapter._spaces)
        return self

    def wrap_connector(self, connector: Any) -> Faults:
        """Put the faults between an in-process connector and its store."""
        connector._queue = FaultyQueue(connector._queue)
        self._wrap_spaces(connector._spaces)
        return self

    def _wrap_spaces(self, table: Any) -> None:
        get, wrapped = table.get, {}

        def get_faulty(token: Any, fields: Any) -> Any:
            if token not in wrapped:
                wrapped[token] = FaultySpace(get(token, fields), self)
            return wrapped[token]

        table.get = get_faulty


class FaultyQueue:
    def __init__(self, queue: Any) -> None:
        self.real = queue
        self._done: list[Any] = []
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return int(self.real.fileno())

    def drain(self, limit: int | None = None) -> list[Any]:
        with self._lock:
            done, self._done = self._done, []
        return done + self.real.drain()

    def push(self, job: Any) -> None:
        import os

        with self._lock:
            self._done.append(job)
        os.eventfd_write(self.fileno(), 1)


class FaultySpace:
    def __init__(self, space: Any, faults: Faults) -> None:
        self._space, self._faults = space, faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._space, name)

    def put_many(self, *arguments: Any, queue: Any = None, **keywords: Any) -> Any:
        return self._space.put_many(*arguments, queue=getattr(queue, "real", queue), **keywords)

    def get_many(self, keys: Sequence[bytes], outs: Sequence[Any], *, queue: Any, **keywords: Any) -> Any:
        faults = self._faults
        if faults.gate is None and faults.fail is None:
            return self._space.get_many(keys, outs, queue=queue.real, **keywords)
        job = GatedJob(self._space, keys, outs, queue, keywords, faults.gate, faults.fail)
        faults.gated.append(job)
        return job


class GatedJob:
    _ids = itertools.count(1 << 60)

    def __init__(self, space, keys, outs, queue, keywords, gate, fail) -> None:  # type: ignore[no-untyped-def]
        self.id = next(self._ids)
        self.canceled: set[int] = set()
        self.results: list[Outcome] = []
        self._done = threading.Event()
        self._work = (space, keys, outs, queue, keywords, gate, fail)
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> list[Outcome]:
        if not self._done.wait(timeout_s):
            raise TimeoutError("gated")
        return self.results

    def cancel(self, item: int | None = None) -> None:
        self.canceled.update(range(len(self._work[1])) if item is None else [item])

    def _run(self) -> None:
        space, keys, outs, queue, keywords, gate, fail = self._work
        scratch = [bytearray(_nbytes(out)) for out in outs]
        keywords = {name: value for name, value in keywords.items() if name in ("salts", "deadline_ms")}
        real = space.get_many(keys, scratch, **keywords).wait()
        if gate is not None:
            gate.wait(60)
        for key, out, data, result in zip(keys, outs, scratch, real, strict=True):
            if fail is not None and fail(bytes(key)):
                self.results.append(Outcome("error", 0, DeviceError("read failed: injected", errno=5)))
            else:
                if result:
                    _write(out, data)
                self.results.append(Outcome(result.status, result.nbytes, result.error))
        self._done.set()
        queue.push(self)


def _nbytes(out: Any) -> int:
    return int(out[1]) if isinstance(out, tuple) else memoryview(out).nbytes


def _write(out: Any, data: bytearray) -> None:
    if isinstance(out, tuple):
        ctypes.memmove(out[0], bytes(data), len(data))
    else:
        memoryview(out).cast("B")[:] = data


def open_after(gate: threading.Event, delay_s: float) -> None:
    """Open a gate after a while, from another thread."""
    threading.Thread(target=lambda: (time.sleep(delay_s), gate.set()), daemon=True).start()
