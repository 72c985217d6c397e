# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""``arrays`` runs a test once for each library that makes arrays in GPU memory; ``space`` is in a pool of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvstore

sys.path.insert(0, str(Path(__file__).parent))

from gpu_arrays import LIBRARIES

_MADE: dict[str, Any] = {}


@pytest.fixture(params=LIBRARIES)
def arrays(request: pytest.FixtureRequest) -> Any:
    name = request.param
    if name not in _MADE:
        try:
            _MADE[name] = LIBRARIES[name]()
        except (ImportError, OSError) as error:
            pytest.skip(f"needs a GPU and {name}: {error}")
        except RuntimeError as error:  # of cupy and torch, when the driver refuses
            pytest.skip(f"needs a GPU that {name} can use: {error}")
    return _MADE[name]


@pytest.fixture
def space(tmp_path: Path) -> Iterator[kvstore.Space]:
    path = tmp_path / "pool.img"
    kvstore.format(path, size="256MiB", region_bytes="16MiB", min_block_bytes="64KiB")
    with kvstore.open(path) as pool:
        yield pool.space(engine="test", model="gpu")
