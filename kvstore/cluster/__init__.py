# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""How the openers of one pool agree who writes where: a small key-value service, never asked on the data path."""

from __future__ import annotations

from kvstore.cluster.engine import (
    Change,
    Compare,
    Erase,
    KeyValue,
    MetadataEngine,
    Put,
    Snapshot,
    Txn,
    Watch,
    file_of_url,
    open_engine,
)
from kvstore.cluster.sqlite_path import default_sqlite_path

__all__ = [
    "Change",
    "Compare",
    "Erase",
    "KeyValue",
    "MetadataEngine",
    "Put",
    "Snapshot",
    "Txn",
    "Watch",
    "default_sqlite_path",
    "file_of_url",
    "open_engine",
]
