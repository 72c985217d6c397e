# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Who uses a device: a mount, another kernel driver, or a pool. Writes nothing."""

from __future__ import annotations

import kvstore
from kvstore.errors import BusyError, KvStoreError

__all__ = ["holder_of"]


def holder_of(path: str) -> str:
    """Who; empty when nobody does, or the device cannot be opened any more."""
    try:
        kvstore.plan_format(path, force=True)
    except BusyError as error:
        return str(error).removeprefix(f"{path} is in use: ")
    except KvStoreError:
        return ""
    return ""
