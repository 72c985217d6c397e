# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""From which prompt length on loading beats computing: as the sizing formulas say, and as it was measured.

    computing   t = a + F(0, s) / R                      F: operations of a prefill (kvstore.replay.prefill)
    loading     t = c + bytes(p) / B + F(p, s) / R       p: tokens in whole blocks, at least one less than the prompt

The four constants come from the shortest and the longest prompt, two medians each. All that is between is predicted,
and how far the measurement is from that is told: `deviations`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvstore.errors import ConfigError
from kvstore.replay.prefill import Prefill

__all__ = ["Crossover", "ModelShape", "find_crossover", "shape_of"]

_KEYS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


@dataclass(frozen=True)
class ModelShape:
    """What computing and loading a token of a model take."""

    prefill: Prefill
    bytes_per_token: int  # of keys and values


def shape_of(config: Mapping[str, Any], bytes_per_number: int = 2) -> ModelShape:
    """Of a dense model with the ``config.json`` of Llama's kind.

    Raises
    ------
    ConfigError : a figure is not in it, or it is of another kind.
    """
    missing = [key for key in _KEYS if not isinstance(config.get(key), int)]
    if missing or "num_local_experts" in config or "kv_lora_rank" in config:
        raise ConfigError(f"the model's config.json is not of a dense model of Llama's kind ({', '.join(missing)})")
    hidden, inner, layers, heads = (int(config[key]) for key in _KEYS)
    head_dim = int(config.get("head_dim") or hidden // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    of_layer = 2 * hidden * head_dim * (heads + kv_heads) + 3 * hidden * inner
    return ModelShape(
        Prefill(parameters=float(layers * of_layer), layers=layers, query_heads=heads, head_dim=head_dim),
        bytes_per_token=2 * layers * kv_heads * head_dim * bytes_per_number,
    )


@dataclass(frozen=True)
class Crossover:
    """Seconds, operations a second, bytes a second, tokens."""

    shape: ModelShape
    block_tokens: int
    compute_base_s: float
    operations_per_s: float
    load_base_s: float
    bytes_per_s: float
    lengths: Sequence[int]
    computed_s: Sequence[float]
    loaded_s: Sequence[float]

    def compute_s(self, tokens: int) -> float:
        """Predicted time to the first token of a prompt of which nothing is there."""
        return self.compute_base_s + self.shape.prefill.operations(0, tokens) / self.operations_per_s

    def load_s(self, tokens: int) -> float:
        """Predicted for one whose whole blocks are in the store."""
        loaded = loaded_tokens(tokens, self.block_tokens)
        rest = self.shape.prefill.operations(loaded, tokens) / self.operations_per_s
        return self.load_base_s + self.shape.bytes_per_token * loaded / self.bytes_per_s + rest

    @property
    def predicted(self) -> int | None:
        """The shortest prompt that has something to load, from which on loading is faster; None up to the longest."""
        slower = None
        for tokens in range(self.block_tokens + 1, max(self.lengths) + 1):
            if self.load_s(tokens) >= self.compute_s(tokens):
                slower = tokens
        if slower == max(self.lengths):
            return None
        return self.block_tokens + 1 if slower is None else slower + 1

    @property
    def measured(self) -> tuple[int | None, int | None]:
        """The longest measured prompt that was quicker to compute, and the shortest from which on all were to load."""
        ordered = sorted(zip(self.lengths, self.computed_s, self.loaded_s, strict=True))
        slower = [tokens for tokens, computed, loaded in ordered if loaded >= computed]
        last = max(slower, default=None)
        beyond = [tokens for tokens, _, _ in ordered if last is None or tokens > last]
        return last, min(beyond, default=None)

    @property
    def interpolated(self) -> float | None:
        """Between those two, where both times are the same; on logarithms, as the picture shows them."""
        low, high = self.measured
        if low is None or high is None:
            return None
        gaps = {
            tokens: math.log(loaded / computed)
            for tokens, computed, loaded in zip(self.lengths, self.computed_s, self.loaded_s, strict=True)
        }
        share = gaps[low] / (gaps[low] - gaps[high])
        return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))

    def as_json(self) -> dict[str, Any]:
        """With the deviation of each length that no constant was taken from: measured / predicted - 1."""
        ends = (min(self.lengths), max(self.lengths))
        between = [
            {
                "tokens": tokens,
                "computed": computed / self.compute_s(tokens) - 1,
                "loaded": loaded / self.load_s(tokens) - 1,
            }
            for tokens, computed, loaded in zip(self.lengths, self.computed_s, self.loaded_s, strict=True)
            if tokens not in ends
        ]
        prefill = self.shape.prefill
        return {
            "parameters": prefill.parameters,
            "layers": prefill.layers,
            "query_heads": prefill.query_heads,
            "head_dim": prefill.head_dim,
            "bytes_per_token": self.shape.bytes_per_token,
            "block_tokens": self.block_tokens,
            "compute_base_s": self.compute_base_s,
            "operations_per_s": self.operations_per_s,
            "load_base_s": self.load_base_s,
            "bytes_per_s": self.bytes_per_s,
            "break_even_bytes_per_s": {
                str(tokens): prefill.break_even_bytes_per_s(tokens, self.shape.bytes_per_token, self.operations_per_s)
                for tokens in self.lengths
            },
            "predicted_tokens": self.predicted,
            "measured_between": list(self.measured),
            "measured_tokens": self.interpolated,
            "deviations": between,
        }


def loaded_tokens(tokens: int, block_tokens: int) -> int:
    """Of a prompt: whole blocks, and never the last token, which an engine computes to have the next one."""
    return max(tokens - 1, 0) // block_tokens * block_tokens


def find_crossover(
    shape: ModelShape, block_tokens: int, lengths: Sequence[int], computed_s: Sequence[float], loaded_s: Sequence[float]
) -> Crossover:
    """From medians of the time to the first token at each length.

    Raises
    ------
    ConfigError : fewer than three lengths that have a whole block to load, or times that no constants fit.
    """
    if len(lengths) < 3 or loaded_tokens(min(lengths), block_tokens) == 0:
        raise ConfigError(
            f"a crossover needs three prompt lengths or more, each above a block of {block_tokens} tokens"
        )
    points = sorted(zip(lengths, computed_s, loaded_s, strict=True))
    short, long = points[0], points[-1]
    works = [shape.prefill.operations(0, tokens) for tokens, _, _ in (short, long)]
    compute_base_s, operations_per_s = _line(works, (short[1], long[1]))
    loads = [
        loaded - shape.prefill.operations(loaded_tokens(tokens, block_tokens), tokens) / operations_per_s
        for tokens, _, loaded in (short, long)
    ]
    sizes = [float(shape.bytes_per_token * loaded_tokens(tokens, block_tokens)) for tokens, _, _ in (short, long)]
    load_base_s, bytes_per_s = _line(sizes, loads)
    return Crossover(
        shape, block_tokens, compute_base_s, operations_per_s, load_base_s, bytes_per_s,
        [tokens for tokens, _, _ in points], [one for _, one, _ in points], [one for _, _, one in points],
    )  # fmt: skip


def _line(works: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Base and rate of ``base + work / rate`` through two points."""
    if seconds[1] <= seconds[0]:
        raise ConfigError("the longest prompt took no longer than the shortest: noise, or too few requests")
    rate = (works[1] - works[0]) / (seconds[1] - seconds[0])
    return seconds[0] - works[0] / rate, rate
