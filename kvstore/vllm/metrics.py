# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the tier and the connector count. vLLM's ``/metrics`` shows each as ``vllm:kvstore_<name>_total``."""

from __future__ import annotations

from collections import Counter
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import OffloadingCounterMetadata

_PREFIX = "vllm:kvstore_"

COUNTERS = {
    "lookups": "Blocks that kvstore was asked for.",
    "lookup_hits": "Blocks that kvstore said it has.",
    "load_jobs": "Loads, each one batch of the store.",
    "blocks_loaded": "Blocks read and verified.",
    "bytes_loaded": "Bytes of blocks_loaded.",
    "blocks_not_loaded": "Blocks that were said to be there and could not be loaded: computed again.",
    "store_jobs": "Stores, each one batch of the store.",
    "blocks_stored": "Blocks written.",
    "bytes_stored": "Bytes of blocks_stored.",
    "blocks_present": "Blocks that were there already: nothing was written.",
    "blocks_not_stored": "Blocks that could not be stored.",
}


def definitions() -> dict[str, OffloadingCounterMetadata]:
    """What vLLM makes its counters from."""
    return {_PREFIX + name: OffloadingCounterMetadata(documentation=text) for name, text in COUNTERS.items()}


class TierCounts:
    """The counts of one door: all of them since it began, and those that vLLM has not taken yet."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self._taken: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        self.totals[name] += amount

    def take(self) -> Any:
        """Return what was counted since the last call, as vLLM's statistics; None when that is nothing."""
        since = {name: total - self._taken[name] for name, total in self.totals.items() if total != self._taken[name]}
        if not since:
            return None
        self._taken = Counter(self.totals)
        stats = OffloadingConnectorStats()
        for name, amount in since.items():
            stats.increase_counter(_PREFIX + name, amount)
        return stats


class ConnectorPromMetrics(KVConnectorPromMetrics):
    """The connector's counters in ``/metrics``; of vLLM's own offloading metrics it shows none."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        made = {
            name: self._counter_cls(name=name, documentation=one.documentation, labelnames=labelnames)
            for name, one in definitions().items()
        }
        self._counters = {
            (name, engine): counter.labels(*values)
            for name, counter in made.items()
            for engine, values in per_engine_labelvalues.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, by_labels in transfer_stats_data.get("data", {}).items():
            counter = self._counters.get((name, engine_idx))
            if counter is not None:
                counter.inc(sum(by_labels.values()))
