# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A tiny Llama with random weights and a tokenizer of its own, so that a real engine runs without a download."""

from __future__ import annotations

from pathlib import Path

TEXT = "the quick brown fox jumps over the lazy dog "


def _make_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([TEXT * 10], trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


def make_model(folder: Path, seed: int) -> None:
    """Save a model of two layers; another seed gives other weights of the same shape."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    _make_tokenizer(folder)
    torch.manual_seed(seed)
    shape = LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(shape).to(torch.bfloat16).save_pretrained(folder)


def make_hybrid_model(folder: Path) -> None:
    """Save a model whose layers are of two kinds, so that vLLM has two KV cache groups: one sees 128 tokens back."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    _make_tokenizer(folder)
    torch.manual_seed(0)
    shape = Gemma3TextConfig(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2,
        pad_token_id=0, sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 2,
    )  # fmt: skip
    Gemma3ForCausalLM(shape).to(torch.bfloat16).save_pretrained(folder)
