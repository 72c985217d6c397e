# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""MemoryEngine: the engine in memory, for tests. The service and its faults are those of the C++ simulation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from kvstore import _core
from kvstore.cluster.engine import Change, Compare, Erase, KeyValue, MetadataEngine, Operation, Snapshot, Txn, Watch
from kvstore.errors import EngineError, FormatError, LeaseEnded, WaitTimeout

_clusters: dict[str, _core.MemoryCluster] = {}


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except WaitTimeout as error:
        raise EngineError(str(error)) from error
    except FormatError as error:  # "not found": the one thing looked for is a lease
        raise LeaseEnded(str(error)) from error


class MemoryEngine(MetadataEngine):
    """A client of a service in this process.

    Parameters
    ----------
    cluster : the service, a ``_core.MemoryCluster``.
    seed : of the faults.
    request_lost, reply_lost : probability of each, 0 to 1: ``EngineError``, and the change was not, or was, made.
    """

    def __init__(
        self, cluster: _core.MemoryCluster, *, seed: int = 0, request_lost: float = 0, reply_lost: float = 0
    ) -> None:
        self._core = _core.MemoryEngine(cluster, seed, request_lost, reply_lost)

    @classmethod
    def shared(cls, name: str, *, forgets_s: float = 0) -> MemoryEngine:
        """Connect to the service of this name, made by whoever asks first, to forget as much as they say."""
        return cls(_clusters.setdefault(name, _core.MemoryCluster(int(forgets_s * 1e9))))

    @property
    def forgets_s(self) -> float:
        return self._core.forgets_ns / 1e9

    def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> Txn:
        asked = [(compare.key, compare.value) for compare in compares]
        done = [
            (op.key, b"", 0, True) if isinstance(op, Erase) else (op.key, bytes(op.value), op.lease, False)
            for op in operations
        ]
        with _errors():
            return Txn(*self._core.txn(asked, done))

    def range(self, prefix: str) -> Snapshot:
        with _errors():
            items, revision = self._core.range(prefix)
        return Snapshot(tuple(KeyValue(*item) for item in items), revision)

    def watch(self, prefix: str, after: int) -> Watch:
        with _errors():
            return _MemoryWatch(self._core.watch(prefix, after))

    def grant(self, ttl_s: float) -> int:
        with _errors():
            return self._core.grant(int(ttl_s * 1e9))

    def renew(self, lease: int) -> None:
        with _errors():
            self._core.renew(lease)

    def revoke(self, lease: int) -> None:
        with _errors():
            self._core.revoke(lease)

    def close(self) -> None:
        pass  # there is no connection


class _MemoryWatch(Watch):
    def __init__(self, core: _core.MemoryWatch) -> None:
        self._core = core

    def poll(self, timeout_s: float) -> list[Change]:
        return [Change(KeyValue(*item), erased) for item, erased in self._core.poll(int(timeout_s * 1e9))]

    def close(self) -> None:
        pass
