# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Traces for the tests of replay: small seeded ones, and the public ones where KVSTORE_TRACES names their folder."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.replay import Request, Trace, read_trace

BLOCK_TOKENS = 512


@pytest.fixture
def pool_file(tmp_path: Path) -> Iterator[Path]:
    """Where a pool can be made: in memory if a file there can be read and written past the page cache."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else tmp_path) as folder:
        try:
            os.close(os.open(Path(folder) / "probe", os.O_CREAT | os.O_RDWR | os.O_DIRECT))
        except OSError:  # tmpfs before Linux 6.6
            yield tmp_path / "pool.img"
        else:
            yield Path(folder) / "pool.img"


def conversations(seed: int, requests: int = 400, first_blocks_max: int = 24) -> Trace:
    """Chats over one system prompt that grow turn by turn, some of them going on after a while, as real ones do."""
    randoms = random.Random(seed)
    chats: list[list[int]] = []
    made: list[Request] = []
    next_block = 1
    for number in range(requests):
        if chats and randoms.random() < 0.4:
            chat = chats[-1 - min(int(randoms.expovariate(0.03)), len(chats) - 1)]
        else:
            chats.append(chat := [0])
        grown = randoms.randrange(1, first_blocks_max if len(chat) == 1 else 6)
        chat.extend(range(next_block, next_block + grown))
        next_block += grown
        tokens = len(chat) * BLOCK_TOKENS - randoms.randrange(BLOCK_TOKENS)
        made.append(Request(time_s=number * 0.5, tokens=tokens, output_tokens=100, blocks=tuple(chat)))
    return Trace("conversations", made, BLOCK_TOKENS)


def public_trace(name: str) -> Trace:
    """One of Mooncake's traces; skips where they are not at hand."""
    folder = os.environ.get("KVSTORE_TRACES")
    if not folder:
        pytest.skip(f"KVSTORE_TRACES names no folder with Mooncake's traces ({name})")
    return read_trace(Path(folder) / f"mooncake_{name}_trace.jsonl")


def write_mooncake(trace: Trace, path: Path) -> Path:
    """The trace as Mooncake writes them."""
    lines = [
        json.dumps(
            {
                "timestamp": round(request.time_s * 1000),
                "input_length": request.tokens,
                "output_length": request.output_tokens,
                "hash_ids": list(request.blocks),
            }
        )
        for request in trace.requests
    ]
    path.write_text("\n".join(lines) + "\n")
    return path
