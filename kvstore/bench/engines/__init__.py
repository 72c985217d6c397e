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
    "fio": "fio_engine:FioEngine",
    "preadv": "preadv_engine:PreadvEngine",
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
