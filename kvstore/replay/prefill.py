# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Load or compute again: how long a prefill takes, and so what a hit saves of the time to the first token.

Work of tokens p to s: ``2 parameters (s - p) + 2 layers query_heads head_dim (s² - p²)`` floating-point operations; the
first term is every weight used once per token, the second causal attention. Divided by what the GPUs really do
(peak times 0.4 to 0.5). Loading p tokens takes ``bytes / bandwidth``. A prefix that is faster to compute is not loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MODELS", "Prefill"]


@dataclass(frozen=True, slots=True)
class Prefill:
    """What the work of a prefill depends on."""

    parameters: float  # that one token uses: of a mixture of experts the active ones
    layers: int
    query_heads: int
    head_dim: int  # of MLA the mean of query/key and value: (192 + 128) / 2

    def operations(self, first_token: int, last_token: int) -> float:
        """Floating-point operations for the tokens from the one to the other."""
        dense = 2 * self.parameters * (last_token - first_token)
        attention = 2 * self.layers * self.query_heads * self.head_dim * (last_token**2 - first_token**2)
        return dense + attention

    def break_even_bytes_per_s(self, tokens: int, bytes_per_token: float, operations_per_s: float) -> float:
        """The bandwidth above which loading a prefix of so many tokens beats computing it."""
        return bytes_per_token * tokens / (self.operations(0, tokens) / operations_per_s)


#: From the models' published configurations.
MODELS = {
    "llama-2-7b": Prefill(parameters=6.74e9, layers=32, query_heads=32, head_dim=128),
    "llama-3-8b": Prefill(parameters=8.03e9, layers=32, query_heads=32, head_dim=128),
    "llama-3-70b": Prefill(parameters=70.6e9, layers=80, query_heads=64, head_dim=128),
    "qwen2.5-32b": Prefill(parameters=32.5e9, layers=64, query_heads=40, head_dim=128),
    "qwen3-coder-480b": Prefill(parameters=35e9, layers=62, query_heads=96, head_dim=128),
    "deepseek-v3": Prefill(parameters=37e9, layers=61, query_heads=128, head_dim=160),
}
