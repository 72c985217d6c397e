# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The engines by name. A module is imported when its engine is asked for, so that no engine's package is needed by
the others; what a module imports of its rival it imports in ``why_not`` and ``open``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kvstore.errors import ConfigError

if TYPE_CHECKING:
    from kvstore.bench.engines.base import Engine  # numpy, which the command line can do without

__all__ = ["ENGINES", "make_engine"]

#: Name, as after ``engine=``, to module and class.
ENGINES = {
    "kvstore": "kvstore_engine:KvStoreEngine",
    "kvstore-threads": "kvstore_engine:KvStoreThreads",
    "kvstore-unverified": "kvstore_engine:KvStoreUnverified",
    "fio": "fio_engine:FioEngine",
    "fio-batches": "fio_engine:FioBatches",
    "preadv": "preadv_engine:PreadvEngine",
    "liburing": "liburing_engine:LiburingEngine",
    "file-per-key": "file_per_key_engine:FilePerKeyEngine",
    "raw_block-posix": "raw_block_engine:RawBlockPosix",
    "raw_block-io_uring": "raw_block_engine:RawBlockUring",
    "lmcache-local-disk": "local_disk_engine:LocalDiskEngine",
    "lmdb": "lmdb_engine:LmdbEngine",
    "rocksdb": "rocksdb_engine:RocksDbEngine",
    "nixl-posix": "nixl_engine:NixlPosixEngine",
    "mooncake": "mooncake_engine:MooncakeEngine",
    "kvikio": "kvikio_engine:KvikioEngine",
}


def make_engine(name: str) -> Engine:
    """A fresh engine, not open.

    Raises
    ------
    ConfigError : there is none of this name.
    """
    if name not in ENGINES:
        raise ConfigError(f"engine is {name!r}: there are {', '.join(ENGINES)}")
    module, _, class_name = ENGINES[name].partition(":")
    engine: Engine = getattr(import_module(f"kvstore.bench.engines.{module}"), class_name)()
    return engine
