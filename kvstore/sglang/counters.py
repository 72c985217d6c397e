# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Counters: what a backend did, as sums for people and as samples for SGLang's metrics. Thread-safe and bounded."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import NamedTuple

# SGLang takes samples every step when its storage metrics are on, and never when they are off.
_SAMPLES_MAX = 1024

_SUMS = (
    "lookups",
    "pages_asked",
    "pages_there",
    "loads",
    "pages_loaded",
    "pages_missed",
    "bytes_loaded",
    "stores",
    "pages_stored",
    "pages_refused",
    "bytes_stored",
)


class Samples(NamedTuple):
    """Of each batch since they were last taken: its pages, its speed in GB/s."""

    load_pages: list[int]
    store_pages: list[int]
    load_gb_per_s: list[float]
    store_gb_per_s: list[float]


class Counters:
    """Sums since the start, and the samples of the last batches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums = dict.fromkeys(_SUMS, 0)
        self._loads: deque[tuple[int, float]] = deque(maxlen=_SAMPLES_MAX)
        self._stores: deque[tuple[int, float]] = deque(maxlen=_SAMPLES_MAX)

    def looked_up(self, asked: int, there: int) -> None:
        """Count one lookup."""
        with self._lock:
            self._add(lookups=1, pages_asked=asked, pages_there=there)

    def loaded(self, hits: int, misses: int, page_bytes: int, started_at: float) -> None:
        """Count one batch of loads; ``started_at`` is of ``time.monotonic()``."""
        with self._lock:
            self._add(loads=1, pages_loaded=hits, pages_missed=misses, bytes_loaded=hits * page_bytes)
            self._loads.append((hits, _gb_per_s(hits * page_bytes, started_at)))

    def stored(self, done: int, refused: int, page_bytes: int, started_at: float) -> None:
        """Count one batch of stores; those that were there already are done."""
        with self._lock:
            self._add(stores=1, pages_stored=done, pages_refused=refused, bytes_stored=done * page_bytes)
            self._stores.append((done, _gb_per_s(done * page_bytes, started_at)))

    def take_samples(self) -> Samples:
        """Return the samples and forget them."""
        with self._lock:
            samples = Samples(
                [pages for pages, _ in self._loads],
                [pages for pages, _ in self._stores],
                [speed for _, speed in self._loads],
                [speed for _, speed in self._stores],
            )
            self._loads.clear()
            self._stores.clear()
        return samples

    def numbers(self) -> dict[str, int]:
        """Return the sums by name."""
        with self._lock:
            return dict(self._sums)

    def _add(self, **more: int) -> None:
        for name, count in more.items():
            self._sums[name] += count


def _gb_per_s(nbytes: int, started_at: float) -> float:
    return nbytes / 1e9 / max(time.monotonic() - started_at, 1e-9)
