# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""MetadataEngine: what kvstore asks of a key-value service. It holds O(regions + hosts) keys.

What every engine guarantees, and ``tests/python/test_engines.py`` demands of each:

* transactions are atomic and linearizable, and each that changes something has a revision of its own, higher than any
  before;
* a watch gives every change after a revision, once, in order, or raises ``StaleError``: never a gap;
* a key bound to a lease is erased, as a change like any other, when the lease ends, and a lease does not end before its
  time as the engine counts it.

``EngineError`` of a call that changes something says nothing of the outcome: it was done, was not, or will be.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import parse_qsl

from kvstore.errors import ConfigError

# Compares, and operations, of one transaction: what etcd takes as it is set up by default.
TXN_MAX = 128
# Regions are used that long after they were taken; what forgets more is no metadata engine.
FORGETS_S_MAX = 60


@dataclass(frozen=True)
class KeyValue:
    """One key: its value, the revision that wrote it, and the lease it is bound to (0: none)."""

    key: str
    value: bytes
    modified: int
    lease: int = 0


@dataclass(frozen=True)
class Compare:
    """Holds when ``key`` has this whole value; None: when it is absent.

    Not a revision: an engine that forgot may hand the same one out again, for another value (S1).
    """

    key: str
    value: bytes | None = None


@dataclass(frozen=True)
class Put:
    """Writes a key, bound to ``lease`` from now on (0: to none)."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True)
class Erase:
    """Erases a key; of one that is absent, nothing."""

    key: str


Operation: TypeAlias = Put | Erase


@dataclass(frozen=True)
class Txn:
    """Whether a transaction was applied, and its revision: the store's as it was when nothing changed."""

    applied: bool
    revision: int


@dataclass(frozen=True)
class Snapshot:
    """Keys in order, as they were at one revision."""

    items: tuple[KeyValue, ...]
    revision: int


@dataclass(frozen=True)
class Change:
    """A key that was written, or erased (its value is empty then)."""

    item: KeyValue
    erased: bool


class Watch(abc.ABC):
    """The changes of keys with one prefix. One thread at a time."""

    @abc.abstractmethod
    def poll(self, timeout_s: float) -> list[Change]:
        """Return the changes since the last call, waiting at most ``timeout_s`` for the first of them.

        Raises
        ------
        StaleError : some changes are not kept any more: make a range and a watch anew.
        EngineError : the engine does not answer; nothing is lost, call again.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give its connection back. Idempotent."""


class MetadataEngine(abc.ABC):
    """A connection to the service. Thread-safe; calls block, at most for the time limit it was opened with."""

    @property
    @abc.abstractmethod
    def forgets_s(self) -> float:
        """A failover of the service may forget what it acknowledged in the time before, up to this much (S2)."""

    @property
    @abc.abstractmethod
    def requests(self) -> int:
        """What this client has asked the service so far. A watch that waits asks nothing."""

    @abc.abstractmethod
    def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> Txn:
        """Do all operations if all compares hold.

        Parameters
        ----------
        compares, operations : at most ``TXN_MAX`` of each, no key twice in either.

        Raises
        ------
        ConfigError : there are more.
        LeaseEnded : an operation names a lease that has ended; nothing was done.
        EngineError : the outcome is unknown.
        """

    @abc.abstractmethod
    def range(self, prefix: str) -> Snapshot:
        """Return all keys with this prefix."""

    @abc.abstractmethod
    def watch(self, prefix: str, after: int) -> Watch:
        """Watch keys with this prefix for changes after revision ``after``, such as that of a ``range``."""

    @abc.abstractmethod
    def grant(self, ttl_s: float) -> int:
        """Return a lease that lasts ``ttl_s``, or a little longer where the engine counts in seconds."""

    @abc.abstractmethod
    def renew(self, lease: int) -> None:
        """Begin the lease's time anew. The engine counts it from its end of the call, so count from before the call.

        Raises
        ------
        LeaseEnded : it has ended, with its keys.
        """

    @abc.abstractmethod
    def revoke(self, lease: int) -> None:
        """End the lease now, with its keys. Of one that has ended: nothing."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection. Leases run on until their time is over. Idempotent."""


def demand_txn_fits(compares: Sequence[Compare], operations: Sequence[Operation]) -> None:
    """Refuse what etcd would, so that what works with one engine works with all."""
    for what, count in (("compares", len(compares)), ("operations", len(operations))):
        if count > TXN_MAX:
            raise ConfigError(f"a transaction of {count} {what}: {TXN_MAX} are allowed")


def open_engine(url: str, *, timeout_s: float = 5.0, default_path: Callable[[], str] | None = None) -> MetadataEngine:
    """Connect to the engine that ``url`` names.

    Parameters
    ----------
    url : ``sqlite:/path/to/file``, an absolute path, for the processes of one host,
        ``etcd://host:port[,host:port…][?forgets_s=…]`` for many hosts,
        ``etcds://host:port[,host:port…]?ca=…[&cert=…&key=…]`` the same by TLS, with files of certificates,
        ``memory:name[?forgets_s=…]`` for the threads of one process (tests).
    timeout_s : longest time a call may take.
    default_path : called for the file that ``sqlite:`` alone means, such as :func:`default_sqlite_path` of a pool.

    Raises
    ------
    ConfigError : not such a url, or the client library is missing.
    EngineError : the engine cannot be reached.
    """
    file = file_of_url(url, default_path)
    if file is not None:
        try:
            from kvstore.cluster.sqlite import SqliteEngine
        except ImportError as error:
            raise ConfigError(f"engine {url!r}: this Python was built without SQLite: {error}") from error
        return SqliteEngine(file, timeout_s=timeout_s)
    scheme, _, rest = url.partition(":")
    place, _, query = rest.removeprefix("//").partition("?")
    if scheme in ("etcd", "etcds") and rest.startswith("//"):
        from kvstore.cluster.etcd import EtcdEngine, Tls

        options = _options(url, query, ("forgets_s", "ca", "cert", "key") if scheme == "etcds" else ("forgets_s",))
        tls = Tls(options.get("ca"), options.get("cert"), options.get("key")) if scheme == "etcds" else None
        return EtcdEngine(place, timeout_s=timeout_s, forgets_s=_forgets_s(url, options), tls=tls)
    if scheme == "memory" and rest:
        from kvstore.cluster.memory import MemoryEngine

        return MemoryEngine.shared(place, forgets_s=_forgets_s(url, _options(url, query, ("forgets_s",))))
    raise ConfigError(f"engine {url!r} is none: write sqlite:/path/to/file, etcd://host:port,host:port or memory:name")


def file_of_url(url: str, default_path: Callable[[], str] | None = None) -> str | None:
    """Return the file that a ``sqlite:`` url means, and None for a url of another engine.

    A path that depends on the current directory, and what SQLite itself understands in a path, would be a file of its
    own for each opener: two engines for one pool.

    Raises
    ------
    ConfigError : ``sqlite:`` and then anything but an absolute path.
    """
    scheme, colon, path = url.partition(":")
    if scheme != "sqlite":
        return None
    if colon and not path and default_path is not None:
        return default_path()
    if "?" in path:
        problem = "there are no options, and no '?' in a path"
    elif "\0" in path or not _is_utf8(path):
        problem = "no file can have this name"
    elif path != path.strip():
        problem = "there are blanks around the path"
    elif not path.startswith("/") or (path.startswith("//") and not path.startswith("///")):
        problem = "the path is not absolute"
    else:
        return path
    raise ConfigError(f"engine {url!r}: {problem}; write sqlite: alone, or sqlite:/var/lib/kvstore/pool.sqlite")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _options(url: str, query: str, allowed: tuple[str, ...]) -> dict[str, str]:
    try:
        given = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        given = [(query, "")]
    for name, _ in given:
        if name not in allowed:
            raise ConfigError(f"engine {url!r}: there is no option {name!r}, allowed are {', '.join(allowed)}")
    return dict(given)


def _forgets_s(url: str, options: dict[str, str]) -> float:
    try:
        seconds = float(options.get("forgets_s", "0"))
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= FORGETS_S_MAX:
        raise ConfigError(f"engine {url!r}: forgets_s is from 0 to {FORGETS_S_MAX}")
    return seconds
