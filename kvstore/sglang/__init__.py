# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""kvstore as the storage of SGLang's HiCache: a dynamic backend, ``--hicache-storage-backend dynamic``.

Asking this module for ``KVStoreHiCache`` needs SGLang and checks its version once; one that is not supported is an
ImportError with one sentence. See ``docs/sglang.md`` for configurations to paste.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvstore.sglang.hicache import KVStoreHiCache

__all__ = ["KVStoreHiCache"]


def __getattr__(name: str) -> Any:
    # On first use, so that what needs no SGLang can be imported without it.
    if name != "KVStoreHiCache":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvstore.sglang.compat import require_supported_version

    require_supported_version()
    from kvstore.sglang.hicache import KVStoreHiCache

    return KVStoreHiCache
