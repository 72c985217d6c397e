# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The line while a benchmark runs: what it does, how far it is, how fast, how long still. On standard error, and only
where that is a terminal.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from kvstore.bench.contender import Turn

__all__ = ["Live"]

_INTERVAL_S = 0.25


class Live:
    """A context manager; ``show`` may be called as often as one likes.

    Parameters
    ----------
    eta : fio's: "auto" for a terminal only, "always", "never".
    """

    def __init__(self, eta: str = "auto") -> None:
        on = eta == "always" or (eta == "auto" and sys.stderr.isatty())
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %  {task.fields[note]}", markup=False),
            console=Console(stderr=True, force_terminal=True if eta == "always" else None),
            auto_refresh=False,
            transient=True,
            disable=not on,
        )
        self._task = self._progress.add_task("", total=1.0, note="")
        self._shown = 0.0

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def show(self, what: str, turn: Turn, before: float = 0.0, share: float = 1.0) -> None:
        """``turn`` is ``share`` of what is to be done, ``before`` of which is done already."""
        now = time.perf_counter()
        if now - self._shown < _INTERVAL_S:
            return
        self._shown = now
        fraction = before + share * turn.fraction
        speed = turn.moved_bytes / max(now - turn.begun, 1e-9)
        left = (now - turn.begun) * (1 - turn.fraction) / turn.fraction if turn.fraction else None
        note = f"{speed / 1e9:6.2f} GB/s  {_eta(left)}"
        self._progress.update(self._task, description=what, completed=fraction, note=note)
        self._progress.refresh()


def _eta(seconds: float | None) -> str:
    """As fio has it: [eta 01m:05s]."""
    if seconds is None:
        return "[eta ?]"
    return f"[eta {int(seconds) // 60:02d}m:{int(seconds) % 60:02d}s]"
