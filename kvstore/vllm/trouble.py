# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Trouble: what went wrong, said once for each kind, counted always.

The device that fails one load fails thousands, in a process that must go on serving.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from kvstore.vllm import compat

logger = compat.logger()

_Answer = TypeVar("_Answer")


def answers(otherwise: Callable[[], _Answer], doing: str) -> Callable[[Callable[..., _Answer]], Callable[..., _Answer]]:
    """Make a method answer ``otherwise()`` where it would raise: what leaves it would end the engine.

    The method's object has its :class:`Trouble` in ``_trouble``.
    """

    def decorate(method: Callable[..., _Answer]) -> Callable[..., _Answer]:
        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **named: Any) -> _Answer:
            try:
                return method(self, *arguments, **named)
            except Exception as error:  # noqa: BLE001 - the engine goes on, whatever it is; told with its place
                self._trouble.tell(doing, error)
                return otherwise()

        return call

    return decorate


class Trouble:
    """What went wrong in one door, by kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def tell(self, doing: str, error: BaseException | str) -> None:
        """Count one trouble, and log the first of its kind.

        Parameters
        ----------
        doing : what was being done, and what becomes of it.
        error : what went wrong. What is not an error of kvstore is a bug, and logged with where it happened.
        """
        code = error if isinstance(error, str) else str(getattr(error, "code", type(error).__name__))
        kind = f"{doing}: {code}"
        self.counts[kind] += 1
        if self.counts[kind] > 1:
            return
        is_bug = isinstance(error, BaseException) and not hasattr(error, "code")
        logger.warning(
            "kvstore: %s: %s; further ones of this kind are only counted",
            doing,
            error,
            exc_info=error if is_bug and isinstance(error, BaseException) else None,
        )
