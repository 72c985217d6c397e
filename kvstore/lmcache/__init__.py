# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""kvstore as the storage of LMCache: an L2 adapter for its multiprocess mode, a connector and a storage plugin, whose
objects are in GPU memory, for its in-process mode.

Importing this module needs LMCache and checks its version once; one that is not supported is an ImportError with one
sentence. See ``docs/lmcache.md`` for configurations to paste.
"""

from __future__ import annotations

from kvstore.lmcache.compat import require_supported_version

require_supported_version()

from kvstore.lmcache.connector import KVStoreConnector, KVStoreConnectorAdapter  # noqa: E402
from kvstore.lmcache.l2_adapter import KVStoreL2Adapter  # noqa: E402
from kvstore.lmcache.storage_backend import KVStoreStorageBackend  # noqa: E402

__all__ = ["KVStoreConnector", "KVStoreConnectorAdapter", "KVStoreL2Adapter", "KVStoreStorageBackend"]
