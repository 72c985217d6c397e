# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Prompts of random tokens. The same seed gives the same ones, in any process: what was stored is asked for again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Point", "warm_up_prompt"]

#: Below are a tokenizer's special tokens, at which some engines stop.
_FIRST_TOKEN = 10
_WARM_UP = 1 << 20  # no point has so many sessions


@dataclass(frozen=True)
class Point:
    """What is asked of the engine at once: one row of the result for each pass."""

    tokens: int  # of a prompt
    concurrency: int
    requests: int

    def prompts(self, vocabulary: int, seed: int) -> list[list[int]]:
        """Other ones for each point: none may be warm from another's pass."""
        return [
            _prompt(self.tokens, vocabulary, [seed, self.tokens, self.concurrency, number])
            for number in range(self.requests)
        ]


def warm_up_prompt(tokens: int, vocabulary: int, seed: int, number: int) -> list[int]:
    """One that no point has."""
    return _prompt(tokens, vocabulary, [seed, tokens, _WARM_UP, number])


def _prompt(tokens: int, vocabulary: int, seeds: list[int]) -> list[int]:
    drawn: list[int] = np.random.default_rng(seeds).integers(_FIRST_TOKEN, vocabulary, tokens).tolist()
    return drawn
