# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Policies that replay judges, by name. A further one is a class in a file of its own and a line here."""

from __future__ import annotations

from kvstore.errors import ConfigError
from kvstore.replay.policies.arc import Arc
from kvstore.replay.policies.base import BlockPolicy, Policy
from kvstore.replay.policies.cleaning import RegionClean
from kvstore.replay.policies.optimal import Optimal
from kvstore.replay.policies.queues import Clock, Fifo, Lru
from kvstore.replay.policies.regions import RegionFifo, RegionLru, RegionSecondChance
from kvstore.replay.policies.s3fifo import S3Fifo
from kvstore.replay.policies.store import StoreDefault, StoreFifo
from kvstore.replay.trace import Trace

__all__ = ["BLOCKS_PER_REGION", "POLICIES", "BlockPolicy", "Policy", "make_policy"]

#: What `kvstore format` aims at (8 to 16).
BLOCKS_PER_REGION = 8

_CLASSES: tuple[type[Policy], ...] = (
    Fifo,
    Lru,
    Clock,
    S3Fifo,
    Arc,
    Optimal,
    RegionFifo,
    RegionLru,
    RegionSecondChance,
    RegionClean,
    StoreDefault,
    StoreFifo,
)
#: The policies by name.
POLICIES: dict[str, type[Policy]] = {one.name: one for one in _CLASSES}


def make_policy(name: str, capacity_blocks: int, *, trace: Trace, blocks_per_region: int = BLOCKS_PER_REGION) -> Policy:
    """A fresh cache of one policy.

    Parameters
    ----------
    name : one of :data:`POLICIES`.
    capacity_blocks : how many it may hold, 1 or more.
    trace : the one that will be replayed.
    blocks_per_region : of policies that reuse whole regions.

    Raises
    ------
    ConfigError : no such policy, or a number below 1.
    """
    if name not in POLICIES:
        raise ConfigError(f"policy is {name!r}, known are {', '.join(POLICIES)}")
    if capacity_blocks < 1 or blocks_per_region < 1:
        raise ConfigError(f"a cache of {capacity_blocks} blocks, {blocks_per_region} a region: allowed are 1 and more")
    return POLICIES[name](capacity_blocks, trace, blocks_per_region)
