# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Trouble: what went wrong, said once for each kind, counted always.

The device that fails one load fails thousands, in a process that must go on serving.
"""

from __future__ import annotations

from collections import Counter

from kvstore.vllm import compat

logger = compat.logger()


class Trouble:
    """What went wrong in one tier, by kind."""

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
