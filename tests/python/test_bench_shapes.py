# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes of the KV caches of known models: the formulas against values that are published or follow from the model's
configuration by hand.
"""

from __future__ import annotations

import pytest

pytest.importorskip("yaml", reason="PyYAML is missing: pip install 'nvme-kvstore[bench]'")

from kvstore.bench.shapes import load_shape, parse_shape, shape_names
from kvstore.errors import ConfigError

KNOWN = {
    "llama-2-7b": 524_288,  # 2 * 32 layers * 32 heads * 128 * 2 bytes: the .5 MB a token that is quoted everywhere
    "llama-3-8b": 131_072,  # a quarter: 8 KV heads of 32
    "llama-3-70b-tp8": 40_960,  # 327,680 on 8 ranks
    "qwen2.5-32b": 262_144,
    "qwen3-coder-480b-tp8": 31_744,  # 253,952 on 8 ranks
    "deepseek-v3": 70_272,  # 61 * (512 + 64) * 2, table 1 of "Insights into DeepSeek-V3", arXiv:2505.09343
}
FIELDS = {"model": "m", "source": "s", "layers": 2, "number_bytes": 2, "tp_size": 1, "block_tokens": 16}


def test_bytes_per_token_are_the_known_ones() -> None:
    assert {name: load_shape(name).bytes_per_token for name in shape_names()} == KNOWN


def test_a_block_is_its_tokens() -> None:
    assert load_shape("Llama-3-8B").block_bytes() == 32 << 20
    assert load_shape("Llama-3-8B").block_bytes(16) == 2 << 20


def test_ranks_divide_the_heads_of_gqa_and_replicate_the_latent_of_mla() -> None:
    def of_rank(**shape: int) -> int:
        return parse_shape("x", FIELDS | shape).bytes_per_token

    gqa, mla = {"kv_heads": 4, "head_dim": 64}, {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert of_rank(**gqa, tp_size=4) * 4 == of_rank(**gqa, tp_size=1)
    assert of_rank(**gqa, tp_size=8) == of_rank(**gqa, tp_size=4)  # no rank has less than one head
    assert of_rank(**mla, tp_size=8) == of_rank(**mla, tp_size=1)


@pytest.mark.parametrize("wrong", [{}, {"kv_heads": 4}, {"kv_heads": 4, "head_dim": 64, "kv_lora_rank": 1}])
def test_fields_of_neither_kind_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="either head_dim, kv_heads or those of MLA"):
        parse_shape("x", FIELDS | wrong)


def test_a_shape_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(ConfigError, match="there are deepseek-v3, llama-2-7b"):
        load_shape("gpt-2")
