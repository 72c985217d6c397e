# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""How large one block of a model's KV cache is. The models are YAML files in the folder ``shapes`` beside this file.

Per token and rank, with L layers, w bytes a number and tensor parallelism over t ranks:

* MHA and GQA: ``2 L max(H_kv / t, 1) d_h w``, keys and values of every KV head this rank has (Ainslie et al., GQA,
  arXiv:2305.13245, section 2; with fewer heads than ranks each is replicated, as vLLM does).
* MLA: ``L (r + d_rope) w``, one latent vector and one rotary key, which every rank keeps whole (DeepSeek-V2,
  arXiv:2405.04434, table 1: (d_c + d_h^R) l elements a token).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Any

from kvstore.errors import ConfigError

__all__ = ["Shape", "load_shape", "shape_names"]

_FIELDS = {"model", "source", "layers", "number_bytes", "tp_size", "block_tokens"}
_GQA_FIELDS = {"kv_heads", "head_dim"}
_MLA_FIELDS = {"kv_lora_rank", "qk_rope_head_dim"}


@dataclass(frozen=True)
class Shape:
    """One model, as one rank sees it. Either ``kv_heads`` and ``head_dim`` are given, or the two of MLA."""

    name: str
    model: str
    source: str
    layers: int
    number_bytes: int
    tp_size: int
    block_tokens: int
    kv_heads: int = 0
    head_dim: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0

    @property
    def bytes_per_token(self) -> int:
        """Of one rank; the formulas are in the head of this file."""
        if self.kv_lora_rank:
            return self.layers * (self.kv_lora_rank + self.qk_rope_head_dim) * self.number_bytes
        heads = max(self.kv_heads // self.tp_size, 1)
        return 2 * self.layers * heads * self.head_dim * self.number_bytes

    def block_bytes(self, tokens: int | None = None) -> int:
        """Of one block of so many tokens; None: the shape's own ``block_tokens``."""
        return self.bytes_per_token * (self.block_tokens if tokens is None else tokens)


def shape_names() -> list[str]:
    """All there are, sorted."""
    files = resources.files("kvstore.bench").joinpath("shapes").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def load_shape(name: str) -> Shape:
    """The shape of a name; case does not matter.

    Raises
    ------
    ConfigError : there is none of this name, or its file is not one.
    """
    import yaml

    if name.lower() not in shape_names():
        raise ConfigError(f"shape is {name!r}: there are {', '.join(shape_names())}")
    file = resources.files("kvstore.bench").joinpath("shapes").joinpath(f"{name.lower()}.yaml")
    return parse_shape(name.lower(), yaml.safe_load(file.read_text()))


def parse_shape(name: str, fields: Any) -> Shape:
    """A shape from the mapping in its file."""
    present = set(fields) if isinstance(fields, dict) else set()
    if present not in (_FIELDS | _GQA_FIELDS, _FIELDS | _MLA_FIELDS):
        expected = f"{', '.join(sorted(_FIELDS))}, and either {', '.join(sorted(_GQA_FIELDS))} or those of MLA, "
        raise ConfigError(f"shape {name}: its fields must be {expected}{', '.join(sorted(_MLA_FIELDS))}")
    shape = Shape(name=name, **fields)
    if shape.kv_heads % shape.tp_size and shape.tp_size % max(shape.kv_heads, 1):
        raise ConfigError(f"shape {name}: {shape.kv_heads} KV heads do not divide among {shape.tp_size} ranks")
    return shape
