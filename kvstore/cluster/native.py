# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""NativeEngine: a metadata engine of the core, seen as one in Python."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from kvstore import _core
from kvstore.cluster.engine import Change, Compare, Erase, KeyValue, MetadataEngine, Operation, Snapshot, Txn, Watch
from kvstore.errors import EngineError, FormatError, LeaseEnded, WaitTimeout


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except WaitTimeout as error:
        raise EngineError(str(error)) from error
    except FormatError as error:  # "not found": the one thing looked for is a lease
        raise LeaseEnded(str(error)) from error


class NativeEngine(MetadataEngine):
    """A client of ``core``'s service. Waits in the core, where the GIL is given up."""

    def __init__(self, core: _core.CoreEngine) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._requests = 0

    @property
    def forgets_s(self) -> float:
        return self._core.forgets_ns / 1e9

    @property
    def requests(self) -> int:
        return self._requests

    def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> Txn:
        asked = [(compare.key, compare.value) for compare in compares]
        done = [
            (op.key, b"", 0, True) if isinstance(op, Erase) else (op.key, bytes(op.value), op.lease, False)
            for op in operations
        ]
        with self._request():
            return Txn(*self._core.txn(asked, done))

    def range(self, prefix: str) -> Snapshot:
        with self._request():
            items, revision = self._core.range(prefix)
        return Snapshot(tuple(KeyValue(*item) for item in items), revision)

    def watch(self, prefix: str, after: int) -> Watch:
        with self._request():
            return _NativeWatch(self._core.watch(prefix, after))

    def grant(self, ttl_s: float) -> int:
        with self._request():
            return self._core.grant(int(ttl_s * 1e9))

    def renew(self, lease: int) -> None:
        with self._request():
            self._core.renew(lease)

    def revoke(self, lease: int) -> None:
        with self._request():
            self._core.revoke(lease)

    def close(self) -> None:
        pass  # there is no connection

    @contextlib.contextmanager
    def _request(self) -> Iterator[None]:
        with self._lock:
            self._requests += 1
        with _errors():
            yield


class _NativeWatch(Watch):
    def __init__(self, core: _core.CoreWatch) -> None:
        self._core = core

    def poll(self, timeout_s: float) -> list[Change]:
        with _errors():
            return [Change(KeyValue(*item), erased) for item, erased in self._core.poll(int(timeout_s * 1e9))]

    def close(self) -> None:
        self._core.close()
