# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Exit statuses of the command line, and which error gives which."""

from __future__ import annotations

from kvstore.errors import CorruptionError, DeviceError, DurabilityLost, KvStoreError, StoreFailed, WaitTimeout

__all__ = [
    "EXIT_BAD",
    "EXIT_DEVICE",
    "EXIT_INTERRUPTED",
    "EXIT_OK",
    "EXIT_REFUSED",
    "EXIT_TEXT",
    "exit_status",
]

EXIT_OK = 0
EXIT_BAD = 1
EXIT_REFUSED = 2
EXIT_DEVICE = 3
EXIT_INTERRUPTED = 130

EXIT_TEXT = """exit status:
  0  done, nothing wrong
  1  something bad was found: damaged blocks (check), a damaged store, a failed check (doctor)
  2  refused: wrong arguments, no store there, somebody else's data, in use
  3  the device or file cannot be opened, read or written"""

_FOUND_BAD = (CorruptionError,)
_DEVICE = (DeviceError, DurabilityLost, StoreFailed, WaitTimeout)


def exit_status(error: KvStoreError) -> int:
    """The status a verb ends with when it raises this error."""
    if isinstance(error, _FOUND_BAD):
        return EXIT_BAD
    return EXIT_DEVICE if isinstance(error, _DEVICE) else EXIT_REFUSED
