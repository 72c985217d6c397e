# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the right answer is, for tests and for the processes they kill: a key alone tells every byte of its block."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import kvstore

IDENTITY = {"engine": "reliability", "model": "none"}
SIZES = (5000, 65_536, 200_000)


def content(key: bytes) -> bytes:
    """The only right bytes of a key; their number follows from it too."""
    source = random.Random(key)
    return source.randbytes(source.choice(SIZES))


def read(space: kvstore.Space, key: bytes) -> str:
    """``"hit"``, ``"miss"``, or the code of an error. Wrong bytes are none of these: they fail the test here."""
    out = bytearray(max(SIZES))
    (result,) = space.get_many([key], [out]).wait(60)
    if result.status == "hit":
        assert out[: result.nbytes] == content(key), f"wrong bytes under {key!r}"
    return result.code if result.status == "error" else result.status
