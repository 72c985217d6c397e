# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that the core does not see as they were given."""

from __future__ import annotations

import math
import numbers

from kvstore.errors import ConfigError

__all__ = ["flag", "seconds"]


def flag(given: object, name: str, default: bool | None = None) -> bool:
    """A bool, Python's or numpy's. ``"False"`` is true as Python sees it, and would be the opposite of what was meant.

    Parameters
    ----------
    given : the argument.
    name : of the argument, for the message.
    default : what None means; None: it is refused.

    Raises
    ------
    TypeError : it is something else.
    """
    if given is None and default is not None:
        return default
    kind = type(given)
    if kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_")):
        return bool(given)
    raise TypeError(f"{name} is a {kind.__name__}, not a bool")


def seconds(given: object, name: str, least: float = 0, most: float = math.inf) -> float:
    """A length of time.

    Parameters
    ----------
    given : the argument; True is no second.
    name : of the argument, for the message.
    least, most : what is allowed.

    Raises
    ------
    TypeError : it is no number.
    ConfigError : it is NaN, or beyond what is allowed.
    """
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise TypeError(f"{name} is a {type(given).__name__}, not a number")
    try:
        number = float(given)
    except OverflowError:  # such an int may have no text either
        number = -math.inf if given < 0 else math.inf
    if not least <= number <= most:
        allowed = f"{least:,} and more" if most == math.inf else f"{least:,} to {most:,}"
        raise ConfigError(f"{name} is {number:g}, allowed are {allowed}")
    return number
