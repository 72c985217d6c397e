# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that the core does not see as they were given."""

from __future__ import annotations

__all__ = ["flag"]


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
