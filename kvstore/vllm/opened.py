# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What both roles of the connector have: the settings checked, the pool open, and the space of each rank.

vLLM builds the connector for its scheduler and for each worker. Those in one process share one open pool, which
``kvstore.open`` sees to; those in several need shared mode, and are refused without it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.v1.kv_cache_interface import FullAttentionSpec

import kvstore
from kvstore.errors import ConfigError
from kvstore.vllm import compat
from kvstore.vllm.config import ConnectorConfig
from kvstore.vllm.revision import revision_of
from kvstore.vllm.space import identity_of

logger = compat.logger()

WHERE = "kv_connector_extra_config"
DOOR = "connector"


class Configs(NamedTuple):
    """What vLLM says of one engine: its own two, and the ``OffloadingConfig`` that it makes of them."""

    vllm: Any
    kv_cache: Any
    offloading: Any

    @classmethod
    def of(cls, vllm_config: Any, kv_cache_config: Any) -> Configs:
        """All three, from vLLM's own two."""
        return cls(vllm_config, kv_cache_config, build_offloading_config(vllm_config, kv_cache_config))

    @property
    def whole_prefix(self) -> bool:
        """All layers need all blocks of a prefix: none has a window."""
        return all(isinstance(group.kv_cache_spec, FullAttentionSpec) for group in self.kv_cache.kv_cache_groups)


class Opened:
    """One role's opening of the pool.

    Parameters
    ----------
    configs : of the engine; kept for both halves of the connector.

    Raises
    ------
    ConfigError : a setting is wrong, or the engine is one that the connector cannot serve.
    KvStoreError : the pool cannot be opened.
    """

    def __init__(self, configs: Configs) -> None:
        self.configs = configs
        transfer = configs.vllm.kv_transfer_config
        self.config = ConnectorConfig.from_mapping(transfer.kv_connector_extra_config, WHERE)
        parallel = configs.vllm.parallel_config
        _require_one_opener(parallel, self.config.mode)
        if parallel.pipeline_parallel_size > 1:
            raise ConfigError(
                "KVStoreConnector cannot be used with pipeline parallelism, under which ranks have other layers; "
                "KVStoreTier can"
            )
        self.ranks = range(parallel.world_size)
        self.rank = int(parallel.rank)
        groups = len(configs.offloading.groups)
        self.by_layer = self.config.layerwise and _can_load_by_layer(len(self.ranks), groups, configs.whole_prefix)
        if transfer.kv_load_failure_policy == "fail":
            logger.warning(
                'kvstore: kv_load_failure_policy is "fail": a block that cannot be loaded ends its request; set it to '
                '"recompute" in --kv-transfer-config'
            )
        self._revision = self.config.revision or revision_of(configs.offloading.model.name, WHERE)
        self.pool = kvstore.open(list(self.config.path), **self.config.open_options())

    def space(self, rank: int, epoch: str) -> kvstore.Space:
        """The space of one rank's parts. An ``epoch`` is a cache of its own, which nobody else finds."""
        identity = identity_of(
            self.configs.offloading,
            self.configs.offloading.worker_kv_bytes_per_block,
            self._revision,
            self.config.identity,
            door=DOOR,
            rank=rank,
        )
        return self.pool.space(**identity, **({"epoch": epoch} if epoch else {}))

    def close(self, timeout_s: float) -> None:
        """Undo this opening; the last one in the process closes the pool."""
        self.pool.close(timeout_s)


def _require_one_opener(parallel: Any, mode: str) -> None:
    """In owner mode the pool has one opener: the scheduler and its only worker in one process."""
    if mode == "shared":
        return
    backend = parallel.distributed_executor_backend
    if parallel.world_size > 1:
        several = f"{parallel.world_size} workers"
    elif parallel.data_parallel_size > 1:
        several = f"{parallel.data_parallel_size} data parallel engines"
    elif backend not in (None, "uni"):
        several = f"the scheduler and its worker, of the executor {backend!r},"
    else:
        return
    raise ConfigError(
        f'{WHERE}.mode must be "shared": {several} open one pool, each a process, and in owner mode it has one opener'
    )


def _can_load_by_layer(ranks: int, groups: int, whole_prefix: bool) -> bool:
    # A layer that does not come is known only when earlier ones were computed with. Then the step's own blocks are
    # wrong as well, on all ranks, and vLLM takes back the blocks of one KV cache group only.
    if ranks == 1 and groups == 1 and whole_prefix:
        return True
    logger.warning(
        "kvstore: %s.layerwise is for one worker and one KV cache group without a window, and here are %d and %d%s: "
        "blocks are loaded before their request is scheduled",
        WHERE,
        ranks,
        groups,
        "" if whole_prefix else ", with one",
    )
    return False
