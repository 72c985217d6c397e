# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the openers of a pool keep in its metadata engine, read for people and tests.

The keys and values are ``csrc/cluster/records.h``'s; docs/sharing.md has the table. Nothing here writes them but
:func:`declare_gone`, the operator's word that an opener will never write again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvstore.cluster.engine import Compare, MetadataEngine, Put
from kvstore.errors import BusyError, ConfigError, EngineError

__all__ = ["Opener", "PoolState", "declare_gone", "empty_state", "pool_prefix", "read_state"]

_HOLDS = ("free", "owned", "sealed", "retiring")


@dataclass
class Opener:
    """One opener: who it is, whether it lives, and the regions whose records bear its epoch, as (device, region)."""

    epoch: int
    live: bool = False
    host: str = ""
    boot: str = ""
    process_namespace: int = 0
    process_id: int = 0
    process_start: int = 0
    lost_seconds: int = 0
    gone: bool = False
    read: int = 0
    owned: list[tuple[int, int]] = field(default_factory=list)
    retiring: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class PoolState:
    """All that the engine holds of one pool, at one revision."""

    initialised: bool
    epoch_floor: int  # the owner epoch in the superblocks when it was set up; with another one it is void
    revision: int
    keys: int
    openers: dict[int, Opener]
    regions: dict[str, int]
    deleted: list[tuple[str, str]] = field(default_factory=list)  # region and dead slots, as the keys have them
    retired_at: int = 0  # revision of the last region that waits for openers to let go of it; 0: none does


def empty_state() -> PoolState:
    """That of an engine which is not there."""
    return PoolState(False, 0, 0, 0, {}, dict.fromkeys(_HOLDS, 0))


def pool_prefix(pool_uuid: str) -> str:
    """What the keys of a pool begin with."""
    return f"kvstore/{pool_uuid}/"


def read_state(engine: MetadataEngine, pool_uuid: str) -> PoolState:
    """Read everything the engine holds of a pool: one request.

    Raises
    ------
    EngineError : the engine does not answer.
    """
    prefix = pool_prefix(pool_uuid)
    snapshot = engine.range(prefix)
    state = PoolState(False, 0, snapshot.revision, len(snapshot.items), {}, dict.fromkeys(_HOLDS, 0))
    for item in snapshot.items:
        key, value = item.key.removeprefix(prefix), item.value.decode("ascii", "replace")
        folder, _, rest = key.partition("/")
        if key == "format":
            state.initialised = True
            words = value.split(" ")
            state.epoch_floor = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        elif folder in ("opener", "live", "read") and rest.isdigit():
            opener = state.openers.setdefault(int(rest), Opener(int(rest)))
            if folder == "live":
                opener.live = True
            elif folder == "read":
                opener.read = int(value) if value.isdigit() else 0
            else:
                _take_identity(opener, value)
        elif folder == "dead":
            state.deleted.append((rest, value))
        elif folder == "r":
            _take_region(state, rest, value, item.modified)
    return state


def declare_gone(engine: MetadataEngine, pool_uuid: str, epoch: int) -> None:
    """Say that the opener of this epoch will never write again, so that its regions can be reused.

    Only somebody who knows that its host is off, or cut off from the devices, can say that (docs/sharing.md, S5). If it
    is said of one that does write, its late writes meet another's: those blocks become misses, never wrong bytes.

    Raises
    ------
    ConfigError : there is no such opener.
    BusyError : it lives.
    """
    opener = read_state(engine, pool_uuid).openers.get(epoch)
    if opener is None:
        raise ConfigError(f"the pool has no opener of epoch {epoch}")
    if opener.live:
        raise BusyError(f"the opener of epoch {epoch} lives: its lease is renewed; stop it instead")
    key = f"{pool_prefix(pool_uuid)}opener/{epoch}"
    found = [item for item in engine.range(key).items if item.key == key]
    if not found:
        raise ConfigError(f"nothing is known of the opener of epoch {epoch} any more")
    words = found[0].value.split(b" ")
    value = b" ".join([*words[:-1], b"gone"])
    if not engine.txn([Compare(key, found[0].value)], [Put(key, value)]).applied:
        raise EngineError(f"the record of epoch {epoch} changed meanwhile: look again")


def _take_identity(opener: Opener, value: str) -> None:
    words = value.split(" ")
    if len(words) != 7 or not all(word.isdigit() for word in words[2:6]):
        return
    opener.host, opener.boot = words[0], words[1]
    opener.process_namespace, opener.process_id, opener.process_start = (int(word) for word in words[2:5])
    opener.lost_seconds = int(words[5])
    opener.gone = words[6] == "gone"


def _take_region(state: PoolState, place: str, value: str, modified: int) -> None:
    device, _, region = place.partition("/")
    words = value.split(" ")
    if len(words) != 4 or words[0] not in _HOLDS or not (device.isdigit() and region.isdigit() and words[2].isdigit()):
        return
    state.regions[words[0]] += 1
    if words[0] not in ("owned", "retiring"):
        return
    if words[0] == "retiring":
        state.retired_at = max(state.retired_at, modified)
    opener = state.openers.setdefault(int(words[2]), Opener(int(words[2])))
    (opener.owned if words[0] == "owned" else opener.retiring).append((int(device), int(region)))
