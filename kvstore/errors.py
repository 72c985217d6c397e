# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What kvstore raises. A miss is a value, an error is one of these, a bug in the store is :class:`StoreFailed`.

Each carries ``code`` (a word for programs), ``errno`` (0 when the operating system said nothing) and the message: what,
where, the numbers, and the mend.
"""

from __future__ import annotations

from kvstore import _core

__all__ = [
    "BusyError",
    "CanceledError",
    "ClosedError",
    "ConfigError",
    "CorruptionError",
    "DeviceError",
    "DurabilityLost",
    "FencedError",
    "ForeignDataError",
    "FormatError",
    "KvStoreError",
    "OtherStoreError",
    "StaleError",
    "StoreFailed",
    "UnsupportedError",
    "WaitTimeout",
]


class KvStoreError(Exception):
    """Base of all errors of kvstore.

    Parameters
    ----------
    message : what, where, the numbers, the mend.
    code : a word for programs; each class has its own by default.
    errno : of the system call that failed, or 0.

    Examples
    --------
    >>> try:
    ...     kvstore.open("/no/such/device")
    ... except kvstore.KvStoreError as error:
    ...     print(type(error).__name__, error.errno)
    DeviceError 2
    """

    code: str = "failed"
    errno: int | None

    def __init__(self, message: str = "", code: str | None = None, errno: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.errno = errno
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[type[KvStoreError], tuple[str, str, int | None]]:
        return type(self), (self.message, self.code, self.errno)


class DeviceError(KvStoreError, OSError):
    """The device or the operating system said no; ``errno`` says why. Also an ``OSError``."""

    code = "io"

    def __init__(self, message: str = "", code: str | None = None, errno: int = 0) -> None:
        OSError.__init__(self, errno, message)
        KvStoreError.__init__(self, message, code, errno)


class FormatError(KvStoreError):
    """There is no store here, or not one that this build can read as such."""

    code = "not_found"


class ForeignDataError(FormatError):
    """Something that is not ours is on the device: a file system, a partition table, another program's data."""

    code = "foreign"


class OtherStoreError(FormatError):
    """A store, but not the one that belongs here: another uuid, a swapped or resized device, a missing member."""

    code = "other_store"


class CorruptionError(KvStoreError):
    """Bytes on the device contradict themselves. A corrupt *payload* is a miss, never this."""

    code = "corrupt"


class StaleError(KvStoreError):
    """Right once, superseded since: the block moved, the region was reused."""

    code = "stale"


class FencedError(KvStoreError):
    """Somebody with a higher epoch owns the device now; this opening may no longer write."""

    code = "fenced"


class ConfigError(KvStoreError, ValueError):
    """An argument is wrong; the message names it, what was given and what is allowed. Also a ``ValueError``."""

    code = "invalid"


class BusyError(KvStoreError):
    """A bound is reached (jobs, pins, space with everything pinned) or somebody else holds it. Try again later."""

    code = "busy"


class ClosedError(KvStoreError):
    """The pool is closed, or this is a forked child of the process that opened it."""

    code = "closed"


class WaitTimeout(KvStoreError, TimeoutError):
    """The wait ended, what was waited for goes on. Also a ``TimeoutError``."""

    code = "timeout"

    def __init__(self, message: str = "", code: str | None = None, errno: int = 0) -> None:
        OSError.__init__(self, errno, message)
        KvStoreError.__init__(self, message, code, errno)


class DurabilityLost(KvStoreError):
    """Blocks reported stored were lost before they were durable: they are misses. Raised once, by ``flush``."""

    code = "durability_lost"


class StoreFailed(KvStoreError):
    """An invariant of the store broke: it refuses further work. Reads of other openings are not affected."""

    code = "failed"


class UnsupportedError(KvStoreError):
    """This build, kernel, device or format version cannot do it; the message says what is missing."""

    code = "unsupported"


class CanceledError(KvStoreError):
    """The item was canceled before it began."""

    code = "canceled"


_CLASSES: dict[str, type[KvStoreError]] = {
    "not_found": FormatError,
    "corrupt": CorruptionError,
    "stale": StaleError,
    "busy": BusyError,
    "no_space": BusyError,
    "fenced": FencedError,
    "invalid": ConfigError,
    "unsupported": UnsupportedError,
    "io": DeviceError,
    "timeout": WaitTimeout,
    "closed": ClosedError,
    "foreign": ForeignDataError,
    "other_store": OtherStoreError,
    "durability_lost": DurabilityLost,
    "failed": StoreFailed,
    "canceled": CanceledError,
}


def from_core(code: str, errno: int, message: str) -> KvStoreError:
    """The exception of a status of the core. The only place where one becomes the other."""
    kind = _CLASSES.get(code, StoreFailed)
    if code == "not_found" and errno != 0:
        kind = DeviceError  # the path itself is missing
    return kind(message, code, errno)


_core._set_exception_factory(from_core)
