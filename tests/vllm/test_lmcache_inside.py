# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: vLLM with LMCache between it and kvstore says the same tokens as without, and loads them after a restart.

Method: a real vLLM on the CPU, a real ``lmcache server`` (multiprocess mode) with kvstore as its L2, processes of their
own. Both are started anew between two runs, so what the second finds cached can only come from the pool.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vllm_says import PREFIX
from vllm_support import ENVIRONMENT, HERE, prompt

sys.path.insert(0, str(HERE.parents[1] / "scripts" / "lib"))

from lmcache_server import LMCacheServer

#: LMCache and what it needs beyond vLLM's own requirements, which scripts/test engines puts there.
LMCACHE = HERE.parents[1] / "build" / "lmcache-beside-vllm"
BESIDE = {
    **ENVIRONMENT,
    "PYTHONPATH": os.pathsep.join([ENVIRONMENT["PYTHONPATH"], str(LMCACHE)]),
    "LMCACHE_TRACK_USAGE": "false",
}
PROMPTS, BLOCKS, BLOCK_TOKENS = 2, 2, 128

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (LMCACHE / ".installed").exists(), reason="lmcache beside vllm: scripts/test engines"),
]


def server(folder: Path, pool: str) -> LMCacheServer:
    """One whose memory keeps nothing: what it has is in the pool."""
    return LMCacheServer(
        folder,
        pool,
        0.25,
        program=(sys.executable, "-m", "lmcache.cli.main"),
        arguments=("--chunk-size", str(BLOCK_TOKENS)),
        environment=BESIDE,
    )


def run(model: Path, port: int) -> list[dict[str, Any]]:
    """What an engine of its own says to each prompt."""
    what = {"model": str(model), "port": port, "prompts": [prompt(number) for number in range(PROMPTS)]}
    words = [sys.executable, str(HERE / "lmcache_run.py"), json.dumps(what)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, env=BESIDE, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return [json.loads(line.removeprefix(PREFIX)) for line in done.stdout.splitlines() if line.startswith(PREFIX)]


def test_a_prefix_comes_back_through_lmcache_when_engine_and_server_were_killed(
    model: Path, make_pool: Any, expected: list[list[int]], tmp_path: Path
) -> None:
    pool = make_pool()
    with server(tmp_path, pool) as first:
        first.wait_until_ready()
        cold = run(model, first.port)
        first.wait_until_stored(PROMPTS * BLOCKS)
    assert [(step["tokens"], step["cached"]) for step in cold] == [(one, 0) for one in expected[:PROMPTS]]
    with server(tmp_path, pool) as second:
        second.wait_until_ready()
        there = second.l2_status()["pool"]["blocks"]
        warm = run(model, second.port)
        found = second.l2_status()["pool"]
    assert there == PROMPTS * BLOCKS
    assert [(step["tokens"], step["cached"]) for step in warm] == [
        (one, BLOCKS * BLOCK_TOKENS) for one in expected[:PROMPTS]
    ]
    assert found["hits"] >= PROMPTS * BLOCKS
    assert (found["puts_stored"], found["checksum_misses"]) == (0, 0)
