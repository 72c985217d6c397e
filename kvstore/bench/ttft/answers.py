# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What came back of a request, and what that is of a pass. Requests are few, so percentiles are exact: the value of
the request at that rank, none between two of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from kvstore.bench.ttft.sessions import Point

__all__ = ["Answer", "Served", "Target", "percentile"]


@dataclass(frozen=True)
class Answer:
    """Of one request. Seconds from when it was sent."""

    first_token_s: float
    seconds: float
    tokens: int  # that it has
    output: str  # to be compared with those of other passes
    cached_tokens: int | None = None  # as the engine says


class Target(Protocol):
    """An engine under measurement."""

    def serve(
        self, prompts: Sequence[Sequence[int]], concurrency: int, output_tokens: int
    ) -> tuple[list[Answer], float]:
        """Send all, so many at a time. Their answers in order, and the seconds for all of them."""

    def settle(self) -> None:
        """Return when what was computed is stored."""

    def forget(self, *, host: bool) -> None:
        """Drop the engine's own caches: the GPU's, and with ``host`` that in host memory too."""

    def reopen(self) -> None:
        """Start it anew, so that nothing is warm but the store."""

    def counters(self) -> Mapping[str, float]:
        """The store's, since the engine began: ``bytes_loaded`` and what else it tells."""

    def facts(self) -> Mapping[str, Any]:
        """What a reader of the result has to know of it."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that so many of 100 do not exceed (nearest rank)."""
    return sorted(values)[max(math.ceil(percent / 100 * len(values)), 1) - 1]


@dataclass
class Served:
    """One pass over the sessions of a point."""

    which: str
    point: Point
    answers: list[Answer]
    seconds: float
    counters: dict[str, float] = field(default_factory=dict)  # of the store, for this pass
    differing: int = 0  # answers that are not those of the first pass

    @property
    def bytes_read(self) -> int:
        """From the store."""
        return int(self.counters.get("bytes_loaded", 0))

    @property
    def median_s(self) -> float:
        """Time to the first token."""
        return percentile([answer.first_token_s for answer in self.answers], 50)

    @property
    def cached_tokens(self) -> float | None:
        """Of a request, as the engine says."""
        told = [answer.cached_tokens for answer in self.answers if answer.cached_tokens is not None]
        return statistics.mean(told) if told else None

    def as_json(self) -> dict[str, Any]:
        """A row of the result."""
        times = [answer.first_token_s for answer in self.answers]
        return {
            "pass": self.which,
            **asdict(self.point),
            "ttft_s": {
                "p50": percentile(times, 50),
                "p90": percentile(times, 90),
                "p99": percentile(times, 99),
                "min": min(times),
                "max": max(times),
                "mean": statistics.mean(times),
            },
            "seconds": self.seconds,
            "output_tokens_per_s": sum(answer.tokens for answer in self.answers) / self.seconds,
            "prompt_tokens_per_s": self.point.tokens * len(self.answers) / self.seconds,
            "cached_tokens": self.cached_tokens,
            "bytes_read": self.bytes_read,
            "counters": self.counters,
            "differing": self.differing,
            "first_token_s": times,
        }
