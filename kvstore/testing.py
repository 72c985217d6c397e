# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated device with faults, for tests of what stands on kvstore: the real store on a disk in memory."""

from __future__ import annotations

import itertools
from typing import Any, Literal, TypeAlias

from kvstore import _core
from kvstore.errors import ConfigError
from kvstore.sizes import parse_size

__all__ = ["SimDisk"]

Fault: TypeAlias = Literal[
    "error", "error_after_write", "short", "again", "stuck", "lost", "misdirected", "bit_rot", "flush_fails"
]
Op: TypeAlias = Literal["read", "write", "flush", "any"]

PREFIX = "sim:"
_numbers = itertools.count()
_disks: dict[str, SimDisk] = {}


class SimDisk:
    """A disk in memory. ``kvstore.format`` and ``kvstore.open`` take its :attr:`path` in the process that made it.

    Parameters
    ----------
    size : bytes or text such as ``"256MiB"``.
    seed : of the order of completions and of what a power cut keeps.
    latency_ms : of each request.
    is_fabric : says it is reached over NVMe-oF, where late writes are possible.

    Notes
    -----
    Lives until :meth:`remove`, or until the process ends.

    Examples
    --------
    >>> from kvstore.testing import SimDisk
    >>> disk = SimDisk("128MiB")
    >>> _ = kvstore.format(disk.path, region_bytes="4MiB")
    >>> with kvstore.open(disk.path) as pool:
    ...     space = pool.space(engine="example")
    ...     _ = space.put(b"sim-1", b"abc", durable=True)
    ...     block = space.describe([b"sim-1"])[0]
    ...     disk.fault("error", op="read", first_byte=block.offset_bytes, last_byte=block.offset_bytes + 1, times=100)
    ...     result = space.get_many([b"sim-1"], [bytearray(3)]).wait()[0]
    ...     result.status, result.code
    ('error', 'io')
    >>> disk.remove()
    """

    def __init__(self, size: str | int, *, seed: int = 0, latency_ms: float = 0, is_fabric: bool = False) -> None:
        self._path = f"{PREFIX}{next(_numbers)}"
        self._core = _core.SimMedium(self._path, parse_size(size), seed, int(latency_ms * 1e6), is_fabric)
        _disks[self._path] = self

    @property
    def path(self) -> str:
        """Name of the disk, to open it by."""
        return self._path

    def fault(
        self,
        fault: Fault,
        *,
        op: Op = "any",
        first_byte: int = 0,
        last_byte: int = (1 << 64) - 1,
        skip: int = 0,
        times: int = 1,
        value: int = 0,
    ) -> None:
        """Spoil requests to come.

        Parameters
        ----------
        fault : ``"error"`` (-EIO, nothing moved), ``"error_after_write"`` (the bytes land all the same), ``"short"``
            (``value`` bytes moved), ``"again"`` (-EAGAIN), ``"stuck"`` (no answer until :meth:`release_stuck`),
            ``"lost"`` (a write that changes nothing), ``"misdirected"`` (goes to offset ``value``), ``"bit_rot"`` (one
            bit of byte ``value`` of a read is wrong) or ``"flush_fails"`` (-EIO, unflushed bytes are gone).
        op : which requests.
        first_byte, last_byte : only those that overlap this range of the disk; flushes always do.
        skip : let so many through first.
        times : hit so many.
        value : see ``fault``.
        """
        self._core.add_fault(fault, op, first_byte, last_byte, skip, times, value)

    def clear_faults(self) -> None:
        """Forget the faults that have not hit yet."""
        self._core.clear_faults()

    def release_stuck(self) -> None:
        """Let all stuck requests complete."""
        self._core.release_stuck()

    @property
    def stuck_count(self) -> int:
        """Requests that are stuck now."""
        return self._core.stuck_count()

    def stop(self, after: int = 0) -> None:
        """Fail every write and flush after so many more, and all reads then, as if the process had died there.

        Close the pool (which raises), call :meth:`power_cut`, and open again to see what is left.
        """
        self._core.stop_after(after)

    def power_cut(self, *, cache_survives: bool = False) -> None:
        """Drop, keep or tear what was not flushed, and forget :meth:`stop`. ``cache_survives``: a killed process."""
        self._core.power_cut(cache_survives)

    def peek(self, offset: int, nbytes: int) -> bytes:
        """What a read would return now."""
        return self._core.peek(offset, nbytes)

    def poke(self, offset: int, data: bytes) -> None:
        """Change the medium, durably, behind the store's back."""
        self._core.poke(offset, data)

    def remove(self) -> None:
        """Forget the name; the memory goes with the last pool that has it open."""
        _disks.pop(self._path, None)


def are_simulated(paths: list[str]) -> bool:
    """Whether the paths name simulated disks."""
    return any(path.startswith(PREFIX) for path in paths)


def _media(paths: list[str]) -> list[_core.SimMedium]:
    unknown = [path for path in paths if path not in _disks]
    if unknown:
        raise ConfigError(f"{unknown[0]} is no simulated disk of this process")
    return [_disks[path]._core for path in paths]


def open_simulated(paths: list[str], options: dict[str, Any]) -> _core.PoolHandle:
    """What :func:`kvstore.open` does for simulated disks."""
    return _core.open_simulated(_media(paths), options)


def format_simulated(paths: list[str], options: dict[str, Any]) -> list[dict[str, Any]]:
    """What :func:`kvstore.format` does for simulated disks."""
    return _core.format_simulated(_media(paths), options)
