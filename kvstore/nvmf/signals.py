# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Signals that end a run: Ctrl-C, systemd's SIGTERM, the SIGHUP of a lost terminal. What was done is undone first.

Guarantees: each is a KeyboardInterrupt, never in the midst of what is ``deferred``, and none at all in what is
``shielded``. In other threads than the main one nothing is done: Python hands them no signals.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

__all__ = ["deferred", "shielded", "terminable"]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Within it all of them interrupt."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    with _handled(interrupt):
        yield


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """What is within it ends first: an operation of the kernel, and the note that it is done."""
    come: list[int] = []
    with _handled(lambda number, frame: come.append(number)):
        yield
    for number in come[:1]:
        signal.raise_signal(number)


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """For undoing: the run is ending anyway, and a second signal would leave the rest as it is."""
    with _handled(lambda number, frame: None):
        yield


@contextlib.contextmanager
def _handled(handler: Callable[[int, object], object]) -> Iterator[None]:
    before = {}
    if threading.current_thread() is threading.main_thread():
        # One that is ignored stays so: nohup, and shells that start something in the background.
        before = {number: signal.getsignal(number) for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
