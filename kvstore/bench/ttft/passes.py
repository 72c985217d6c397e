# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The passes, in the order that keeps a read of the store cold.

All points are computed and stored first, then the engine is started anew, then all are read back: no block of the
last pass can come out of anybody's memory. Before each pass of a point the engine drops the caches it must not use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvstore.bench.ttft.answers import Served, Target
from kvstore.bench.ttft.sessions import Point, warm_up_prompt

__all__ = ["PASSES", "TtftSpec", "measure_ttft"]

PASSES = ("cold", "gpu", "host", "kvstore")


@dataclass(frozen=True)
class TtftSpec:
    """What is measured."""

    points: Sequence[Point]
    passes: Sequence[str] = PASSES
    output_tokens: int = 8
    vocabulary: int = 1000  # tokens are drawn below this
    seed: int = 1


def measure_ttft(spec: TtftSpec, target: Target, tell: Callable[[Served], None] = lambda served: None) -> list[Served]:
    """Run every pass that is asked for; cold always, since it is what stores.

    Parameters
    ----------
    tell : is called with each pass as it ends.
    """
    first: dict[Point, Served] = {}
    results: list[Served] = []

    def one(which: str, point: Point) -> None:
        before = target.counters()
        answers, seconds = target.serve(
            point.prompts(spec.vocabulary, spec.seed), point.concurrency, spec.output_tokens
        )
        target.settle()
        counters = {name: value - before.get(name, 0) for name, value in target.counters().items()}
        served = Served(which, point, answers, seconds, counters)
        pairs = zip(answers, first.setdefault(point, served).answers, strict=True)
        served.differing = sum(mine.output != other.output for mine, other in pairs)
        results.append(served)
        tell(served)

    _warm_up(spec, target, 0)
    for point in spec.points:
        target.forget(host=True)
        one("cold", point)
        if "gpu" in spec.passes:
            one("gpu", point)
        if "host" in spec.passes:
            target.forget(host=False)
            one("host", point)
    if "kvstore" in spec.passes:
        target.reopen()
        _warm_up(spec, target, 1)
        for point in spec.points:
            target.forget(host=True)
            one("kvstore", point)
    return results


def _warm_up(spec: TtftSpec, target: Target, number: int) -> None:
    """What an engine does once, on its first request of a size, is not part of anybody's first token."""
    for tokens in sorted({point.tokens for point in spec.points}):
        target.serve([warm_up_prompt(tokens, spec.vocabulary, spec.seed, number)], 1, spec.output_tokens)
    target.settle()
