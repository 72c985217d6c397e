# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""MemoryEngine: the engine in memory, for tests. The service and its faults are those of the C++ simulation."""

from __future__ import annotations

from kvstore import _core
from kvstore.cluster.native import NativeEngine

_clusters: dict[str, _core.MemoryCluster] = {}


class MemoryEngine(NativeEngine):
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
        super().__init__(_core.CoreEngine.memory(cluster, seed, request_lost, reply_lost))

    @classmethod
    def shared(cls, name: str, *, forgets_s: float = 0) -> MemoryEngine:
        """Connect to the service of this name, made by whoever asks first, to forget as much as they say."""
        return cls(_clusters.setdefault(name, _core.MemoryCluster(int(forgets_s * 1e9))))
