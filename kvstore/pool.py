# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Pool: one or more devices opened together; open() and format()."""

from __future__ import annotations

import atexit
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex, TypeAlias, Union

from kvstore import _core, cluster, testing
from kvstore._arguments import flag, seconds
from kvstore._core import BlockInfo, Buffer, Eviction
from kvstore.cluster import records
from kvstore.errors import BusyError, ConfigError, KvStoreError
from kvstore.job import CompletionQueue
from kvstore.sizes import parse_size
from kvstore.space import Identity, Space, canonical_identity

if TYPE_CHECKING:
    from kvstore.buffers import Segment

__all__ = ["EvictionFeed", "Pool", "Registration", "format", "open", "plan_format", "unshare"]

Paths: TypeAlias = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]
Size: TypeAlias = str | SupportsIndex
DeviceKind: TypeAlias = Literal["auto", "uring", "threads"]
Verify: TypeAlias = Literal["always", "first_read", "off"]
ReclaimOrder: TypeAlias = Literal["lru", "fifo"]
GpuDirect: TypeAlias = Literal["off", "auto", "on"]
GpuEngine: TypeAlias = Literal["cufile", "kvikio"]
Mode: TypeAlias = Literal["owner", "shared"]

_log = logging.getLogger("kvstore")
_EXIT_TIMEOUT_S = 10.0
_WAIT_SLICE_S = 1.0
_LEASE_S = 10.0  # as the core's default
# Shorter, and a slow disk or a busy host ends it; longer, and what a dead opener held would wait for hours.
_LEASE_S_MIN, _LEASE_S_MAX = 1, 3600
_CALLS_PER_LEASE = 5
_ENGINE_TIMEOUT_S = 1.0  # at least: a busy host is no engine that is lost


class Registration(NamedTuple):
    """Whether memory was registered with the device queues. False means slower, never wrong; ``reason`` says why."""

    registered: bool
    reason: str

    def __bool__(self) -> bool:
        return self.registered


class EvictionFeed:
    """Blocks that became misses, in order, behind an eventfd. Made by :meth:`Pool.evictions`.

    Bounded: a feed that is not drained drops the newest, and says so once in :attr:`overflowed`; list the blocks again
    then. Safe from many threads.

    Examples
    --------
    >>> pool = kvstore.open(example_pool)
    >>> feed = pool.evictions(limit=1000)
    >>> feed.drain(), feed.overflowed
    ([], False)
    >>> pool.close()
    """

    __slots__ = ("_core",)

    def __init__(self, core: _core.FeedHandle) -> None:
        self._core = core

    def fileno(self) -> int:
        """The eventfd, readable while there is something to drain. Owned by the feed: do not close or read it."""
        return self._core.fileno()

    def drain(self, limit: int | None = None) -> list[Eviction]:
        """Take at most ``limit`` evictions (None: all there are). Does not block."""
        return self._core.drain(limit)

    @property
    def overflowed(self) -> bool:
        """Whether evictions were dropped since this was last read. Reading it clears it."""
        return self._core.take_overflowed()


class Pool:
    """One or more devices opened together. Made by :func:`kvstore.open`; a context manager.

    Opening the same devices again in one process gives the same pool once more, equal to the first: the devices are
    closed with the last of them. One that nobody closes is closed when the interpreter exits, within 10 s.

    Notes
    -----
    Safe from many threads. Not usable in a forked child: every call raises :class:`~kvstore.errors.ClosedError` there.

    Examples
    --------
    >>> with kvstore.open(example_pool) as pool:
    ...     space = pool.space(engine="example", model="none")
    ...     _ = space.put(b"pool-1", b"abc")
    ...     pool.flush()
    ...     sorted(block.key for block in pool.blocks())[-1:]
    [b'pool-1']
    >>> pool.closed
    True
    """

    def __init__(self, opened: _Opened) -> None:
        self._opened = opened
        self._core = opened.core
        self._is_closed = False
        self._process = os.getpid()

    @property
    def paths(self) -> list[str]:
        """Of the devices, as first opened."""
        return list(self._opened.paths)

    @property
    def closed(self) -> bool:
        """Whether this opening was closed. The pool itself is when all its openings in this process are."""
        return self._is_closed or not self._core.is_open

    def space(self, **identity: Identity) -> Space:
        """The space of an identity.

        Parameters
        ----------
        identity : every field that two callers must agree on for a block of one to be right for the other: engine,
            model, revision, dtype, layout, block_tokens, tp_size, tp_rank ... Values are str, int, bool, None or lists
            of these; types matter.

        Raises
        ------
        ConfigError : no field, or more than 3,900 bytes of JSON.
        TypeError : a value of another type.
        """
        return Space(self, self._core, canonical_identity(identity))

    def queue(self) -> CompletionQueue:
        """A completion queue with an eventfd of its own. Submit jobs to it, drain it when it is readable."""
        return CompletionQueue()

    def evictions(self, limit: int = 65536) -> EvictionFeed:
        """Subscribe to evictions from now on.

        Parameters
        ----------
        limit : evictions kept undelivered at most; further ones are dropped and the feed says it overflowed.
        """
        return EvictionFeed(self._core.evictions(limit))

    # ---- memory ----

    def alloc(self, nbytes: Size) -> Buffer:
        """Page-aligned memory, registered with the device queues where the memory lock limit allows.

        Parameters
        ----------
        nbytes : 1 or more; an int or text such as ``"64MiB"``.

        Returns
        -------
        a writable :class:`Buffer`, owned by the caller; given back when it and all views of it are gone.
        """
        return self._core.alloc(parse_size(nbytes, "nbytes"))

    def register(self, buffer: Segment) -> Registration:
        """Register memory that the caller owns, such as an engine's arena, shared memory too.

        Parameters
        ----------
        buffer : writable, page-aligned. Held until :meth:`unregister` or :meth:`close`; ``(pointer, nbytes)`` must stay
            mapped until then. GPU memory is registered with cuFile, in buffers of 1 MiB, where ``gpu_direct`` uses it:
            blocks should begin at multiples of 1 MiB of it.

        Returns
        -------
        a :class:`Registration`: where the kernel refuses, the memory is used all the same, and ``reason`` says why.
        """
        registered, reason = self._core.register(buffer)
        return Registration(registered, reason)

    def unregister(self, buffer: Segment) -> None:
        """Undo :meth:`register`. The buffer is told by its address; no job may be using GPU memory of it."""
        self._core.unregister(buffer)

    # ---- durability, numbers ----

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything reported stored or deleted before this call survives a crash.

        Raises
        ------
        DurabilityLost : once, with the count, after blocks that were reported stored were lost. They are misses now.
        WaitTimeout : not yet after ``timeout_s`` seconds; it goes on.
        DeviceError : the device refuses to flush.

        Notes
        -----
        Blocking; releases the GIL.
        """
        self._core.flush(timeout_s)

    def refresh(self, timeout_s: float | None = None) -> None:
        """Shared mode: wait until all that other openers had on the devices before this call is known here.

        Without it that takes ``refresh_interval_ms``, or a lookup that misses. In owner mode there is nobody else.

        Raises
        ------
        WaitTimeout : not yet after ``timeout_s`` seconds; it goes on.

        Notes
        -----
        Blocking; releases the GIL. Two device reads for each region that another opener writes, and its metadata for
        each that an opener which is gone has left open.
        """
        self._core.refresh(timeout_s)

    def stats(self) -> dict[str, int | float | str]:
        """Counters, sizes and settings by name; see docs/metrics.md. Counters start at 0 at each open."""
        return self._core.stats()

    def devices(self) -> list[dict[str, Any]]:
        """What each device is: path, kind in use, sizes, alignment, identity."""
        return self._core.devices()

    def superblocks(self) -> list[dict[str, Any]]:
        """What each device's superblock says: uuids, geometry, owner, flags."""
        return self._core.superblocks()

    # ---- listing ----

    def blocks(self) -> Iterator[BlockInfo]:
        """Iterate over all live blocks on the devices, region by region.

        Notes
        -----
        Reads all metadata (128 bytes a block) at the first step. A block may be gone by the time it is looked at.
        """
        yield from self._core.blocks(None)

    def spaces(self) -> list[dict[str, Identity]]:
        """The identities that have blocks on the devices. Reads all metadata."""
        seen = {block.space_json for block in self._core.blocks(None)}
        return [json.loads(text) for text in sorted(seen)]

    def verify_block(self, block: BlockInfo) -> Literal["ok", "corrupt", "stale"]:
        """Read one listed block and compare its checksum.

        Returns
        -------
        ``"ok"``, ``"corrupt"``, or ``"stale"`` when it was deleted, superseded or reclaimed since it was listed.

        Raises
        ------
        DeviceError : it cannot be read.
        """
        return self._core.verify_block(_listed(block))

    def drop_block(self, block: BlockInfo) -> None:
        """Delete one listed block, whatever is wrong with it."""
        self._core.drop_block(_listed(block))

    # ---- life ----

    def close(self, timeout_s: float | None = _EXIT_TIMEOUT_S) -> None:
        """Undo the :func:`open` that gave this object; the last one closes the pool.

        Parameters
        ----------
        timeout_s : seconds to wait for jobs in flight; None: as long as they take.

        Raises
        ------
        WaitTimeout : device requests are outstanding, the message names them. The pool is closed all the same, and
            their buffers are never given back, since the device may still write to them.
        DurabilityLost, DeviceError : closed, but blocks reported stored were lost, or deletes since the last flush.

        Notes
        -----
        Completes what was submitted, makes it durable, marks the store clean. Blocking; releases the GIL. Closing
        again does nothing, to other openings neither. Leaving a ``with`` in a forked child does nothing.
        """
        # First: what is refused has closed nothing.
        _registry.close(self, None if timeout_s is None else seconds(timeout_s, "timeout_s"))

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if os.getpid() == self._process:  # an error would take the place of how the child ends
            self.close()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pool) and self._core is other._core

    def __hash__(self) -> int:
        return hash(self._core)

    def __repr__(self) -> str:
        return f"<Pool {', '.join(self._opened.paths)}{' (closed)' if self.closed else ''}>"


class _Opened:
    """What the openings of one pool in this process have in common."""

    def __init__(
        self,
        core: _core.PoolHandle,
        engine: cluster.MetadataEngine | None,
        paths: list[str],
        options: dict[str, Any],
        key: Any,
    ) -> None:
        self.core = core
        self.engine = engine  # opened by open(), closed with the pool
        self.paths = paths
        self.options = options
        self.key = key
        self.openings = 0


class _Registry:
    """The open pools of this process, by the devices they are on, so that a second open gives the same pool.

    One lock per pool is held while it opens and closes, so that whoever opens it meanwhile waits instead of finding it
    held by this very process. The locks are reentrant: a signal handler may close what its own thread is opening.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a forked child too: the pools are the parent's, and a lock may be held by a thread that is not here."""
        self._lock = threading.RLock()
        self._pools: dict[Any, _Opened] = {}
        self._changing: dict[Any, threading.RLock] = {}

    def _change(self, key: Any) -> threading.RLock:
        with self._lock:
            return self._changing.setdefault(key, threading.RLock())

    def open(self, paths: list[str], options: dict[str, Any], wait_s: float) -> Pool:
        key = (_identities(paths), options["read_only"])
        with self._change(key):
            opened = self._pools.get(key)
            if opened is None:
                core, engine = _open_core(paths, options, wait_s)
                opened = self._pools[key] = _Opened(core, engine, paths, options, key)
            else:
                _check_same(opened, options)
            opened.openings += 1
            return Pool(opened)

    def close(self, pool: Pool, timeout_s: float | None) -> None:
        """Take one open back, and close with the last. What is not in the table is closed, or a forked child's copy."""
        opened = pool._opened
        with self._change(opened.key):
            if self._pools.get(opened.key) is opened:
                if pool._is_closed:
                    return
                pool._is_closed = True
                opened.openings -= 1
                if opened.openings > 0:
                    return
                del self._pools[opened.key]
            try:
                opened.core.close(timeout_s)
            finally:
                if opened.engine is not None:
                    opened.engine.close()

    def close_all(self, timeout_s: float) -> None:
        """Close what is open, whatever its count; all together within the timeout."""
        deadline = time.monotonic() + timeout_s
        pools = list(self._pools.values())
        self._pools.clear()
        for opened in pools:
            try:
                opened.core.close(max(0.0, deadline - time.monotonic()))
            except KvStoreError as error:
                _log.error("closing %r at exit: %s", Pool(opened), error)
            if opened.engine is not None:
                opened.engine.close()


def _identities(paths: list[str]) -> frozenset[Any]:
    """What the paths lead to: by-id links and /dev names of one device are the same."""
    found: set[Any] = set()
    for path in paths:
        try:
            status = Path(path).stat()
        except OSError:
            found.add(path)  # the core says what is wrong with it
        else:
            block = stat.S_ISBLK(status.st_mode)
            found.add(("device", status.st_rdev) if block else ("file", status.st_dev, status.st_ino))
    return frozenset(found)


def _check_same(opened: _Opened, options: dict[str, Any]) -> None:
    for name, asked in options.items():
        given = opened.options[name]
        if name == "verify" and given is None:
            given = "always"  # the default, said or not
        if asked is not None and asked != given:
            raise ConfigError(
                f"{Pool(opened)!r} is open already with {name}={given!r}; it cannot also have {name}={asked!r}:"
                " close it first"
            )


def _open_core(
    paths: list[str], options: dict[str, Any], wait_s: float
) -> tuple[_core.PoolHandle, cluster.MetadataEngine | None]:
    opened_by = testing.open_simulated if testing.are_simulated(paths) else _core.PoolHandle.open
    given = {name: value for name, value in options.items() if name not in ("mode", "engine")}
    url = options["engine"]
    engine = _connect(url, paths, options["lease_s"]) if isinstance(url, str) else url
    try:
        # In slices, so that a signal handler of the main thread runs while a holder is waited for.
        deadline = time.monotonic() + wait_s
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                core = opened_by(paths, {**given, "engine": engine, "wait_s": min(left, _WAIT_SLICE_S)})
                return core, engine if isinstance(url, str) else None
            except BusyError:
                if left <= _WAIT_SLICE_S:
                    raise
    except BaseException:
        if isinstance(url, str) and engine is not None:
            engine.close()
        raise


def _connect(url: str, paths: list[str], lease_s: float | None) -> cluster.MetadataEngine:
    if testing.are_simulated(paths):
        raise ConfigError("a simulated disk is opened in owner mode only")
    return cluster.open_engine(
        url,
        # A call that takes longer than this costs renewals (docs/sharing.md, S3).
        timeout_s=max((_LEASE_S if lease_s is None else lease_s) / _CALLS_PER_LEASE, _ENGINE_TIMEOUT_S),
        default_path=lambda: cluster.default_sqlite_path(paths, _core.read_superblock(paths[0])["pool_uuid"]),
    )


def _check_mode(
    mode: Mode, engine: str | cluster.MetadataEngine | None, read_only: bool
) -> str | cluster.MetadataEngine | None:
    """The engine to use: none in owner mode."""
    if mode not in ("owner", "shared"):
        raise ConfigError(f"mode is {mode!r}, allowed are 'owner' and 'shared'")
    if mode == "owner":
        if engine is not None:
            raise ConfigError(f"engine={engine!r} is for mode='shared'")
        return None
    if read_only:
        raise ConfigError("read_only looks on: it needs no mode='shared'")
    return "sqlite:" if engine is None else _check_engine(engine)


def _check_engine(engine: str | cluster.MetadataEngine) -> str | cluster.MetadataEngine:
    if not isinstance(engine, (str, cluster.MetadataEngine)):
        raise TypeError(f"engine is a {type(engine).__name__}, not a url or a MetadataEngine")
    return engine


def _paths(paths: Paths) -> list[str]:
    if isinstance(paths, (str, os.PathLike)):
        given = [paths]
    elif isinstance(paths, (bytes, bytearray, memoryview)) or not isinstance(paths, Iterable):
        raise TypeError(f"paths is a {type(paths).__name__}, not a path or a list of paths")
    else:
        given = list(paths)
    if not given:
        raise ConfigError("no device is named: give a path or a list of paths")
    texts = [_path(path, index) for index, path in enumerate(given)]
    for text in texts:
        if not text or "\0" in text:
            raise ConfigError(f"{text!r} is not a path")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"the path {text!r} is no UTF-8: use another name of the device") from None
    if len(_identities(texts)) != len(texts):
        raise ConfigError(f"a device is named twice in {texts}")
    return texts


def _path(path: str | os.PathLike[str], index: int) -> str:
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError(f"paths[{index}] is a {type(text).__name__}, not a str or a path")
    return text


def _listed(block: BlockInfo) -> BlockInfo:
    if not isinstance(block, BlockInfo):
        raise TypeError(f"block is a {type(block).__name__}, not one that blocks() or describe() gave")
    return block


def open(
    paths: Paths,
    *,
    mode: Mode | None = None,
    engine: str | cluster.MetadataEngine | None = None,
    verify: Verify | None = None,
    read_only: bool | None = None,
    wait_s: float | None = None,
    device_kind: DeviceKind | None = None,
    window_bytes: Size | None = None,
    engine_threads: int | None = None,
    staging_bytes: Size | None = None,
    prefetch_bytes: Size | None = None,
    index_blocks_max: int | None = None,
    jobs_max: int | None = None,
    pins_max: int | None = None,
    pin_lease_s: float | None = None,
    commit_interval_ms: float | None = None,
    io_timeout_s: float | None = None,
    quarantine_s: float | None = None,
    heartbeat_s: float | None = None,
    failures_max: int | None = None,
    reclaim_order: ReclaimOrder | None = None,
    free_regions_target: int | None = None,
    gpu_direct: GpuDirect | None = None,
    gpu_engine: GpuEngine | None = None,
    lease_s: float | None = None,
    orphan_quarantine_s: float | None = None,
    refresh_interval_ms: float | None = None,
    refresh_reads_per_s: int | None = None,
) -> Pool:
    """Open a pool: every device of it, by path.

    Parameters
    ----------
    None means the default, for each of them but the paths.

    paths : a device or file, or a list of all devices of the pool in any order. Prefer /dev/disk/by-id names.
    mode : ``"owner"`` (default): one opener at a time. ``"shared"``: any number of processes and hosts put and get
        (docs/sharing.md); the first one makes an owner-mode pool a shared one, ``kvstore unshare`` undoes that.
    engine : shared mode: ``"sqlite:"`` (default) or ``"sqlite:/absolute/path"`` for the processes of one host,
        ``"etcd://host:port,host:port"`` for many hosts, or a :class:`kvstore.cluster.MetadataEngine` of the caller's,
        which then closes it after the pool.
    verify : when a read is checked: ``"always"`` (default), ``"first_read"`` (once per block and opening) or ``"off"``
        (benchmarks).
    read_only : claim and write nothing; may look at a store that somebody else has open. It reads the devices and asks
        no engine: what was deleted in shared mode, which only the engine knows, is a hit.
    wait_s : seconds to wait for a living holder of the device.
    device_kind : ``"uring"``, ``"threads"`` (preadv2 and pwritev2), or ``"auto"`` (default): io_uring where allowed.
    window_bytes : in flight per device; 32 MiB by default.
    engine_threads : 1 or more; one per device up to 4 by default.
    staging_bytes : bounce memory for unaligned buffers, per engine thread; 64 MiB by default.
    prefetch_bytes : staging cache of :meth:`Space.prefetch`; 256 MiB by default, 0 turns it off.
    index_blocks_max : blocks the index has room for; from the geometry by default.
    jobs_max : jobs in flight, 4,096 by default; more is :class:`~kvstore.errors.BusyError`.
    pins_max, pin_lease_s : pins at a time (1,048,576), and when a pin nobody undid ends (300 s).
    commit_interval_ms : a stored block survives a crash within this (50 ms).
    io_timeout_s : a device request older than this is stuck (30 s).
    quarantine_s : on fabrics, of a region with a write of unknown outcome (60 s).
    heartbeat_s : how often the owner re-reads its claim (1 s).
    failures_max : failed writes until the pool is read-only (8).
    reclaim_order : which region goes first: ``"lru"`` (default), none of whose blocks was used for longest; ``"fifo"``,
        that was written longest ago, whatever was read since. One without a live block goes before all others.
    free_regions_target : regions per device that background reclaim keeps free (2).
    gpu_direct : whether gets read straight into GPU memory by cuFile (docs/gpu.md): ``"off"`` (default); ``"auto"``,
        once that was proven on the GPU, and through host memory otherwise; ``"on"``, also where cuFile itself copies
        through host memory, and a job with GPU memory is refused where it cannot be.
    gpu_engine : by what they do: ``"cufile"`` (default), the store's own calls of it; ``"kvikio"``, by that library,
        with ``gpu_direct="on"`` and without gets that a stream waits for.
    lease_s : shared mode: writing stops at half of this without word from the engine (10 s; 1 to 3,600).
    orphan_quarantine_s : shared mode: when the regions of an opener that is out of sight, and not certainly gone, may
        be reused (3,600 s).
    refresh_interval_ms, refresh_reads_per_s : shared mode: how often the others' open regions are read, besides after
        a miss (100 ms), and how many device reads a second that may take (2,000).

    Returns
    -------
    a :class:`Pool`; when this process has it open already, one more opening of the same pool.

    Raises
    ------
    FormatError : no store here. Its subclasses: ``ForeignDataError`` (something else is here), ``OtherStoreError``
        (another store, a swapped, resized or missing device).
    CorruptionError : a store, but its superblocks contradict each other.
    BusyError : somebody else holds it; the message says who.
    DeviceError : a path does not exist or cannot be opened or read.
    UnsupportedError : a format version or feature this build does not know; no O_DIRECT.
    ConfigError, TypeError : a wrong argument, or other options than those the pool is open with.

    Notes
    -----
    Blocking; releases the GIL. Reads all descriptors, 128 bytes a block.
    """
    read_only = flag(read_only, "read_only", default=False)
    mode = "owner" if mode is None else mode
    options = {
        "verify": verify,
        "read_only": read_only,
        "device_kind": device_kind,
        "window_bytes": None if window_bytes is None else parse_size(window_bytes, "window_bytes"),
        "engine_threads": engine_threads,
        "staging_bytes": None if staging_bytes is None else parse_size(staging_bytes, "staging_bytes"),
        "prefetch_bytes": None if prefetch_bytes is None else parse_size(prefetch_bytes, "prefetch_bytes"),
        "index_blocks_max": index_blocks_max,
        "jobs_max": jobs_max,
        "pins_max": pins_max,
        "pin_lease_s": pin_lease_s,
        "commit_interval_ms": commit_interval_ms,
        "io_timeout_s": io_timeout_s,
        "quarantine_s": quarantine_s,
        "heartbeat_s": heartbeat_s,
        "failures_max": failures_max,
        "reclaim_order": reclaim_order,
        "free_regions_target": free_regions_target,
        "gpu_direct": gpu_direct,
        "gpu_engine": _check_gpu_engine(gpu_engine, gpu_direct),
        "mode": mode,
        "engine": _check_mode(mode, engine, read_only),
        "lease_s": None if lease_s is None else seconds(lease_s, "lease_s", _LEASE_S_MIN, _LEASE_S_MAX),
        "orphan_quarantine_s": orphan_quarantine_s,
        "refresh_interval_ms": refresh_interval_ms,
        "refresh_reads_per_s": refresh_reads_per_s,
    }
    return _registry.open(_paths(paths), options, 0.0 if wait_s is None else seconds(wait_s, "wait_s"))


def _check_gpu_engine(gpu_engine: str | None, gpu_direct: str | None) -> str | None:
    if gpu_engine is not None and gpu_direct in (None, "off"):
        raise ConfigError(f"gpu_engine is {gpu_engine!r} and nothing reads by it: gpu_direct is to be 'auto' or 'on'")
    if gpu_engine == "kvikio" and gpu_direct == "auto":
        raise ConfigError(
            "gpu_engine is 'kvikio', which copies through host memory where it sees fit: gpu_direct is to be 'on'"
        )
    return gpu_engine


def unshare(paths: Paths, *, engine: str | cluster.MetadataEngine = "sqlite:", engine_is_lost: bool = False) -> None:
    """Make a shared pool an owner-mode one again. Its blocks stay.

    Parameters
    ----------
    paths : every device of the pool.
    engine : the one that its openers were given, as :func:`open`.
    engine_is_lost : on your word: nothing is left of what the engine held, and no host has the pool open.

    Raises
    ------
    BusyError : the engine knows of an opener that lives, or that may still write; or somebody has the pool open.
    ConfigError : the engine holds nothing of this pool, so its openers use another one, and ``engine_is_lost`` is not
        given.
    EngineError : the engine does not answer, so nobody knows who is there.

    Notes
    -----
    Blocking; releases the GIL. Opens the pool as its only owner, writes what the engine knows of deletes to the devices
    and closes it. With an engine its deletes are lost: deleted blocks may come back then, with their right bytes.
    """
    names = _paths(paths)
    _check_engine(engine)
    is_lost = flag(engine_is_lost, "engine_is_lost", default=False)
    superblocks = [_core.read_superblock(name) for name in names]
    deleted: list[tuple[str, str]] = []
    if any(superblock["shared_mode"] for superblock in superblocks):
        deleted = _take_leave(names, superblocks, engine, engine_is_lost=is_lost)
    _core.PoolHandle.open(names, {"becomes_shared": False, "deleted_before": deleted}).close(_EXIT_TIMEOUT_S)


def _take_leave(
    names: list[str],
    superblocks: list[dict[str, Any]],
    engine: str | cluster.MetadataEngine,
    *,
    engine_is_lost: bool,
) -> list[tuple[str, str]]:
    """See that nobody is there; return the deletes, which only the engine knows of."""
    connected = _connect(engine, names, None) if isinstance(engine, str) else engine
    try:
        state = records.read_state(connected, superblocks[0]["pool_uuid"])
    finally:
        if isinstance(engine, str):
            connected.close()
    # What was set up before the pool had its last owner is void, as it is to an opener (Agent::is_valid_format).
    is_current = state.initialised and state.epoch_floor == max(one["owner"]["epoch"] for one in superblocks)
    if not is_current and not engine_is_lost:
        raise ConfigError(
            f"engine {engine!r} holds nothing of this pool: name the one that its openers use. If nothing is left of "
            "that one, and no host has the pool open: engine_is_lost=True (--engine-is-lost)"
        )
    # Of the processes of this host the lock on the devices tells; of another host only the engine does.
    one_host = isinstance(engine, str) and engine.startswith("sqlite:")
    may_write = is_current and not one_host
    there = [one for one in state.openers.values() if one.live or (one.owned and not one.gone and may_write)]
    if there:
        listed = ", ".join(f"{one.epoch} ({'lives' if one.live else 'may still write'})" for one in there)
        raise BusyError(f"the pool has openers, by epoch: {listed}; see `kvstore peers`")
    return state.deleted if is_current else []


def _format_options(
    size: Size | None,
    region_bytes: Size | None,
    block_bytes: Size | None,
    min_block_bytes: Size | None,
    force: bool,
    device_kind: DeviceKind,
) -> dict[str, Any]:
    file_bytes = None if size is None else parse_size(size, "size")
    if file_bytes == 0:
        raise ConfigError(f"size is {size!r}: a store needs more than 33 MiB")
    return {
        "file_bytes": file_bytes,
        "region_bytes": None if region_bytes is None else parse_size(region_bytes, "region_bytes"),
        "block_bytes": None if block_bytes is None else parse_size(block_bytes, "block_bytes"),
        "min_block_bytes": None if min_block_bytes is None else parse_size(min_block_bytes, "min_block_bytes"),
        "force": flag(force, "force"),
        "device_kind": device_kind,
    }


def format(
    paths: Paths,
    *,
    size: Size | None = None,
    region_bytes: Size | None = None,
    block_bytes: Size | None = None,
    min_block_bytes: Size | None = None,
    force: bool = False,
    device_kind: DeviceKind = "auto",
) -> list[dict[str, Any]]:
    """Make a pool of devices or files. What was on them is lost.

    Parameters
    ----------
    paths : a device or file, or a list: the members of one pool.
    size : of a file that is made or grown, sparse, such as ``"4GiB"``.
    region_bytes : unit of reuse, a power of two; chosen from the block and device size by default.
    block_bytes : size of the blocks that will be put, if known; helps to choose region_bytes.
    min_block_bytes : smallest block to be efficient with; 256 KiB by default.
    force : overwrite what is there: a file system, a partition table, another store.
    device_kind : as :func:`open`.

    Returns
    -------
    the superblock of each device.

    Raises
    ------
    ForeignDataError, OtherStoreError : the device is not empty, and ``force`` is not given. Nothing was written.
    BusyError : the device is mounted or held.
    ConfigError : sizes that do not fit; the message names the allowed range.

    Examples
    --------
    >>> superblocks = kvstore.format(new_file, size="256MiB", region_bytes="4MiB")
    >>> superblocks[0]["geometry"]["region_bytes"]
    4194304
    """
    options = _format_options(size, region_bytes, block_bytes, min_block_bytes, force, device_kind)
    names = _paths(paths)
    return (
        testing.format_simulated(names, options) if testing.are_simulated(names) else _core.format_pool(names, options)
    )


def plan_format(
    paths: Paths,
    *,
    size: Size | None = None,
    region_bytes: Size | None = None,
    block_bytes: Size | None = None,
    min_block_bytes: Size | None = None,
    force: bool = False,
    device_kind: DeviceKind = "auto",
) -> list[dict[str, Any]]:
    """What :func:`format` would do: per device ``path``, ``geometry`` and ``found`` (what is there now, or empty).

    Writes nothing. Arguments and errors as :func:`format`.
    """
    options = _format_options(size, region_bytes, block_bytes, min_block_bytes, force, device_kind)
    return _core.plan_format(_paths(paths), options)


_registry = _Registry()


@atexit.register
def _close_at_exit() -> None:
    _registry.close_all(_EXIT_TIMEOUT_S)
    _core.begin_exit()


os.register_at_fork(after_in_child=_registry.forget)
