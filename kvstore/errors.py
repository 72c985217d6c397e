# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What kvstore raises. A miss is a value, an error is one of these, a bug in the store is :class:`StoreFailed`.

Each carries ``code`` (a word for programs), ``errno`` (None when the operating system said nothing) and the message:
what, where, the numbers, and the mend.
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
    "EngineError",
    "FencedError",
    "ForeignDataError",
    "FormatError",
    "KvStoreError",
    "LeaseEnded",
    "OtherStoreError",
    "StaleError",
    "StoreFailed",
    "UnsupportedError",
    "WaitTimeout",
]


class KvStoreError(Exception):
    """Base of all errors of kvstore.

    Attributes
    ----------
    code : a word for programs.
    errno : of the system call that failed; None when the operating system said nothing.

    Examples
    --------
    >>> try:
    ...     kvstore.open("/no/such/device")
    ... except kvstore.KvStoreError as error:
    ...     print(type(error).__name__, error.code, error.errno, error)
    DeviceError not_found 2 /no/such/device: no such device or file
    """

    # No class here has an __init__ of its own: the core makes exceptions while the interpreter exits, when no Python
    # code can run on other threads any more.
    code: str = "failed"
    errno: int | None = None


class DeviceError(OSError, KvStoreError):
    """The device or the operating system said no; ``errno`` says why. Also an ``OSError``."""

    code = "io"

    def __str__(self) -> str:
        return self.strerror or super().__str__()


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
    """This opening may not write: it is read-only, or somebody with a higher epoch owns the device; the text says."""

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


class WaitTimeout(TimeoutError, KvStoreError):
    """The wait ended, what was waited for goes on. Also a ``TimeoutError``."""

    code = "timeout"

    def __str__(self) -> str:
        return self.strerror or super().__str__()


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


class EngineError(KvStoreError):
    """The metadata engine does not answer. Of a call that changes something the outcome is unknown: look first."""

    code = "engine"


class LeaseEnded(EngineError):
    """A lease of the metadata engine is over, and its keys are erased. What was asked for was not done."""

    code = "lease_ended"


# The only place where a status of the core becomes a class.
_CLASSES: dict[str, type[KvStoreError]] = {
    "not_found": FormatError,  # with an errno, the path itself is missing: DeviceError
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
_core._set_exception_classes(_CLASSES)
