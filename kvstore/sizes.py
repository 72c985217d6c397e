# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes as people write them: ``"4GiB"`` <-> 4294967296."""

from __future__ import annotations

import operator
import re
from typing import SupportsIndex

from kvstore.errors import ConfigError

__all__ = ["format_size", "parse_size"]

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTPE", start=1):
    _UNITS[f"{_letter}IB"] = _UNITS[_letter] = 1024**_power
    _UNITS[f"{_letter}B"] = 1000**_power
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_size(size: str | SupportsIndex, name: str = "size") -> int:
    """Bytes of a size.

    Parameters
    ----------
    size : an int (bytes), or text: a number and a unit. ``KiB MiB GiB TiB PiB EiB`` and ``K M G T P E`` are powers of
        1024, ``KB MB GB TB PB EB`` powers of 1000; case does not matter; no unit means bytes.
    name : of the argument, for the message.

    Returns
    -------
    bytes, 0 or more; the result must be whole.

    Raises
    ------
    ConfigError : negative, not whole, beyond 64 bits, or an unknown unit.
    TypeError : neither text nor an int.

    Examples
    --------
    >>> parse_size("4GiB"), parse_size("1.5 MiB"), parse_size(4096)
    (4294967296, 1572864, 4096)
    """
    if isinstance(size, str):
        match = _PATTERN.fullmatch(size)
        unit = _UNITS.get(match[2].upper()) if match else None
        if match is None or unit is None:
            raise ConfigError(f"{name} is {size!r}: write a number and a unit, such as 4096, '512KiB' or '4GiB'")
        whole, _, fraction = match[1].partition(".")
        scale: int = 10 ** len(fraction)
        scaled: int = int(whole + fraction) * unit
        bytes_ = scaled // scale
        if scaled % scale:
            raise ConfigError(f"{name} is {size!r}: that is not a whole number of bytes")
    elif isinstance(size, bool):
        raise TypeError(f"{name} is a bool, not a size")
    else:
        try:
            bytes_ = operator.index(size)
        except TypeError:
            raise TypeError(f"{name} is a {type(size).__name__}, not a size: an int or text such as '4GiB'") from None
    if not 0 <= bytes_ < 1 << 63:
        raise ConfigError(f"{name} is {size!r}: allowed are 0 to {(1 << 63) - 1:,} bytes")
    return bytes_


def format_size(size: int) -> str:
    """Bytes as text, in the largest binary unit that keeps it short.

    Examples
    --------
    >>> format_size(4 << 30), format_size(1536), format_size(7)
    ('4GiB', '1.5KiB', '7B')
    """
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024:
            return f"{value:.4g}{unit}"
        value /= 1024
    return f"{value:.4g}EiB"
