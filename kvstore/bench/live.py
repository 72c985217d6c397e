# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The line while a benchmark runs: what it does, how far it is, how fast, how long still. On standard error, and only
where that is a terminal.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich import progress as bars
from rich.console import Console

from kvstore.bench.turn import Turn

__all__ = ["Live", "Progress"]

_INTERVAL_S = 0.25


class Progress:
    """How far all engines of a job are, which take turns, and how long they need still."""

    def __init__(self, engines: int) -> None:
        self._engines = engines
        self._fractions: dict[str, float] = {}
        self._begun = time.perf_counter()

    def at(self, engine: str, fraction: float) -> None:
        """An engine has done so much of what it has to do, 0 to 1."""
        self._fractions[engine] = fraction

    def done(self, engine: str) -> None:
        """It has done all, or failed."""
        self._fractions[engine] = 1.0

    @property
    def fraction(self) -> float:
        """Of the job, 0 to 1."""
        return sum(self._fractions.values()) / self._engines

    @property
    def left_s(self) -> float | None:
        """None: nothing is known yet."""
        fraction = self.fraction
        return (time.perf_counter() - self._begun) * (1 - fraction) / fraction if fraction else None


class Live:
    """A context manager; ``show`` may be called as often as one likes.

    Parameters
    ----------
    eta : fio's: "auto" for a terminal only, "always", "never".
    """

    def __init__(self, eta: str = "auto") -> None:
        on = eta == "always" or (eta == "auto" and sys.stderr.isatty())
        self._progress = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=24),
            bars.TextColumn("{task.percentage:>3.0f} %  {task.fields[note]}", markup=False),
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

    def show(self, what: str, turn: Turn, progress: Progress | None = None) -> None:
        """How fast a turn is, and how far the job, or where it has no turns of others the turn itself."""
        now = time.perf_counter()
        if now - self._shown < _INTERVAL_S:
            return
        self._shown = now
        if progress is None:
            progress = Progress(1)
            progress.at(what, turn.fraction)
            left_s = (now - turn.begun) * (1 - turn.fraction) / turn.fraction if turn.fraction else None
        else:
            left_s = progress.left_s
        note = f"{turn.bytes_per_s / 1e9:6.2f} GB/s  {_eta(left_s)}"
        self._progress.update(self._task, description=what, completed=progress.fraction, note=note)
        self._progress.refresh()


def _eta(seconds: float | None) -> str:
    """As fio has it: [eta 01m:05s]."""
    if seconds is None:
        return "[eta ?]"
    return f"[eta {int(seconds) // 60:02d}m:{int(seconds) % 60:02d}s]"
