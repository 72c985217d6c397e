# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: vLLM with LMCache between it and kvstore says the same tokens as without, and loads them after a restart.

Method: a real vLLM on the CPU, a real ``lmcache server`` (multiprocess mode) with kvstore as its L2, processes of their
own. Both are started anew between two runs, so what the second finds cached can only come from the pool.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from vllm_run import PREFIX
from vllm_support import ENVIRONMENT, HERE, generate, prompt

#: LMCache and what it needs beyond vLLM's own requirements, which scripts/test --engines puts there.
LMCACHE = HERE.parents[1] / "build" / "lmcache-beside-vllm"
BESIDE = {
    **ENVIRONMENT,
    "PYTHONPATH": os.pathsep.join([ENVIRONMENT["PYTHONPATH"], str(LMCACHE)]),
    "LMCACHE_TRACK_USAGE": "false",
}
PROMPTS, BLOCKS, BLOCK_TOKENS = 2, 2, 128

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (LMCACHE / ".installed").exists(), reason="lmcache beside vllm: scripts/test --engines"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """An ``lmcache server`` whose memory keeps nothing: what it has is in the pool."""

    def __init__(self, pool: Path, log: Path) -> None:
        self.port, self._http_port, self._log = free_port(), free_port(), log
        adapter = {
            "type": "plugin",
            "module_path": "kvstore.lmcache",
            "class_name": "KVStoreL2Adapter",
            "adapter_params": {"path": str(pool), "durable": True},
        }
        words = [
            *("--host", "127.0.0.1", "--port", str(self.port), "--http-port", str(self._http_port)),
            *("--l1-size-gb", "0.25", "--no-l1-use-lazy", "--eviction-policy", "noop", "--l2-store-policy", "skip_l1"),
            *("--supported-transfer-mode", "engine_driven", "--chunk-size", str(BLOCK_TOKENS)),
            *("--l2-adapter", json.dumps(adapter)),
        ]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lmcache.cli.main", "server", *words], stdout=output, stderr=output, env=BESIDE
            )

    def adapter(self) -> dict[str, Any]:
        """What its L2 tells of itself; nothing while the server does not answer yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/status", timeout=10) as answer:
                adapters: list[dict[str, Any]] = json.load(answer)["storage_manager"]["l2_adapters"]
        except (urllib.error.URLError, OSError):
            return {}
        return adapters[0]

    def wait_for_blocks(self, count: int) -> dict[str, Any]:
        """Until so many are in the pool."""
        end = time.monotonic() + 120
        while not (adapter := self.adapter()) or adapter["pool"]["blocks"] < count:
            assert self.process.poll() is None, self._log.read_text()[-3000:]
            assert time.monotonic() < end, self._log.read_text()[-3000:]
            time.sleep(0.2)
        return adapter


@contextmanager
def server(pool: Path, log: Path) -> Iterator[Server]:
    running = Server(pool, log)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait(30)


def run(model: Path, port: int) -> list[dict[str, Any]]:
    """What an engine of its own says to each prompt."""
    what = {"model": str(model), "port": port, "prompts": [prompt(number) for number in range(PROMPTS)]}
    words = [sys.executable, str(HERE / "lmcache_run.py"), json.dumps(what)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, env=BESIDE, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return [json.loads(line.removeprefix(PREFIX)) for line in done.stdout.splitlines() if line.startswith(PREFIX)]


def test_a_prefix_comes_back_through_lmcache_when_engine_and_server_were_killed(
    model: Path, make_pool: Any, run_engine: Any, tmp_path: Path
) -> None:
    expected = run_engine(model, None, [generate(number) for number in range(PROMPTS)]).generated(PROMPTS)
    tokens = [step["tokens"] for step in expected]
    pool, log = make_pool(), tmp_path / "server.log"
    with server(pool, log) as first:
        first.wait_for_blocks(0)
        cold = run(model, first.port)
        first.wait_for_blocks(PROMPTS * BLOCKS)
    assert [(step["tokens"], step["cached"]) for step in cold] == [(one, 0) for one in tokens]
    with server(pool, log) as second:
        second.wait_for_blocks(PROMPTS * BLOCKS)
        warm = run(model, second.port)
        adapter = second.adapter()
    assert [(step["tokens"], step["cached"]) for step in warm] == [(one, BLOCKS * BLOCK_TOKENS) for one in tokens]
    assert adapter["pool"]["hits"] >= PROMPTS * BLOCKS
    assert (adapter["pool"]["puts_stored"], adapter["pool"]["checksum_misses"]) == (0, 0)
