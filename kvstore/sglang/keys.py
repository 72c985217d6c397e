# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""SGLang's page keys to key bytes, and where a page stands in its chain.

A page's key is the SHA-256 of its tokens and all before them, seeded by the request's cache salt, as hexadecimal text.
It becomes ``0x00 ‖ 32 bytes``; any other text ``0x01 ‖ UTF-8``. No two texts become the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_DIGEST = re.compile(r"[0-9a-f]{64}")


def key_bytes(key: str) -> bytes:
    """Encode one page key."""
    return b"\0" + bytes.fromhex(key) if _DIGEST.fullmatch(key) else b"\1" + key.encode()


class Places(NamedTuple):
    """Of each page of a call: the key before it in its chain, and how many there are before it."""

    parents: list[bytes | None]
    depths: list[int]


def places_of(keys: Sequence[bytes], prefix_keys: Sequence[str] | None) -> Places:
    """Place the pages of one call: they follow each other, and ``prefix_keys`` are all those before the first.

    Parameters
    ----------
    keys : of the call, encoded, in token order.
    prefix_keys : as SGLang gives them; None when it does not, and then the first page counts as the start of a chain.
    """
    before = key_bytes(prefix_keys[-1]) if prefix_keys else None
    first = len(prefix_keys or ())
    return Places([before, *keys[:-1]], list(range(first, first + len(keys))))
