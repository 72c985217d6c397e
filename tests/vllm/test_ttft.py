# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""``kvstore bench ttft`` with a vLLM of its own: each pass is served from where it is named after, a job a request."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from vllm_support import ENVIRONMENT

from kvstore.cli import main

pytestmark = pytest.mark.timeout(600)
ARGUMENTS = {"dtype": "bfloat16", "enforce_eager": True, "max_model_len": 1024, "max_num_seqs": 4}
# Of 128 tokens; the last token of a prompt is computed, so 257 tokens have two to load.
TOKENS, BLOCKS, ROW_BYTES = 257, 2, 128 << 10
REQUESTS = 3


def test_every_pass_of_an_engine_is_told_with_its_calls(
    model: Path, make_pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    result = tmp_path / "result.json"
    words = [
        *("--model", str(model), "--pool", make_pool(), "--python", sys.executable, "--output", str(result)),
        *("--spec", "vllm_cpu:CpuTieringSpec", "--cpu-bytes", "32MiB", "--engine-args", json.dumps(ARGUMENTS)),
        *("--tokens", str(TOKENS), "--concurrency", "2", "--requests", str(REQUESTS), "--output-tokens", "4"),
    ]
    assert main(["bench", "ttft", *words]) == 0
    rows = {row["pass"]: row for row in json.loads(result.read_text())["rows"]}
    assert list(rows) == ["cold", "gpu", "host", "kvstore"]
    assert [row["cached_tokens"] for row in rows.values()] == [0, 256, 256, 256]
    assert all(0 < row["ttft_s"]["p50"] <= row["ttft_s"]["p99"] <= row["seconds"] for row in rows.values())
    calls = ("lookups", "load_jobs", "blocks_loaded", "store_jobs", "blocks_stored")
    cold, loaded = ([rows[which]["counters"].get(name, 0) for name in calls] for which in ("cold", "kvstore"))
    assert cold == [REQUESTS, 0, 0, REQUESTS, REQUESTS * BLOCKS]
    assert loaded == [REQUESTS * BLOCKS, REQUESTS, REQUESTS * BLOCKS, 0, 0]
    assert rows["kvstore"]["bytes_read"] == REQUESTS * BLOCKS * ROW_BYTES
