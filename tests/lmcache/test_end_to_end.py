# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: LMCache as its users start it, on a pool in a file: stores, is killed, starts again, and serves the same bytes.

Method: ``lmcache server`` and ``lmcache bench`` as processes of their own; ``skip_l1`` makes every hit after the kill a
read of the pool. The in-process mode is LMCache's own engine with a tensor in the place of the GPU.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from lmcache_manager import spec

import kvstore

# 512 KiB a chunk of 256 tokens: four layers of two heads.
SHAPE = "(2,1024,16,2,64):float16:4"
CLI = [sys.executable, "-m", "lmcache.cli.main"]
ENVIRONMENT = {
    **os.environ,
    "LMCACHE_TRACK_USAGE": "false",
    "LMCACHE_LOG_LEVEL": "INFO",
    # The package under test, wherever it is.
    "PYTHONPATH": os.pathsep.join([str(Path(kvstore.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
}


def free_port() -> int:
    for port in range(17_100, 17_900):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port from 17100 to 17899")


class Server:
    """A running ``lmcache server``."""

    def __init__(self, adapter_spec: str, log: Path) -> None:
        self.port = free_port()
        self.http_port = free_port_but(self.port)
        words = [
            *("server", "--host", "127.0.0.1", "--port", str(self.port), "--http-port", str(self.http_port)),
            *("--l1-size-gb", "0.25", "--no-l1-use-lazy", "--eviction-policy", "noop"),
            *("--l2-store-policy", "skip_l1", "--supported-transfer-mode", "engine_driven"),
            *("--l2-adapter", adapter_spec),
        ]
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen([*CLI, *words], stdout=output, stderr=output, env=ENVIRONMENT)
        end = time.monotonic() + 60
        while not self._answers():
            assert self.process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/healthcheck", timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def status(self) -> dict:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/status", timeout=10) as answer:
            return json.load(answer)

    def bench(self) -> dict[str, str]:
        """Run ``lmcache bench server``; return the checksum of each request's KV."""
        words = [
            *("bench", "server", "--mode", "cpu", "--rpc-url", f"tcp://127.0.0.1:{self.port}"),
            *("--url", f"http://127.0.0.1:{self.http_port}", "--num-tokens", "1024", "--start", "0", "--end", "3"),
            *("--interval", "0", "--kvcache-shape-spec", SHAPE),
        ]
        done = subprocess.run([*CLI, *words], capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert re.search(r"Checksum FAIL:\s+0", done.stdout), done.stdout[-3000:]
        return dict(re.findall(r"\[seq (\d+)/warm\] CHECKSUM: ([0-9a-f]+)", done.stdout))


def free_port_but(taken: int) -> int:
    port = free_port()
    return port if port != taken else port + 1


@contextmanager
def server(adapter_spec: str, log: Path):
    running = Server(adapter_spec, log)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
            running.process.wait(30)


def test_a_server_that_is_killed_serves_the_same_bytes_when_it_is_back(make_pool, tmp_path):
    path = make_pool(size=256 << 20, region_bytes=4 << 20)
    log = tmp_path / "server.log"
    with server(spec(path), log) as first:
        before = first.bench()
        assert sorted(before) == ["0", "1", "2"]
        (adapter,) = first.status()["storage_manager"]["l2_adapters"]
        assert adapter["is_healthy"]
        assert adapter["live_bytes"] == 3 * 4 * (512 << 10)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(10)
    with server(spec(path), log) as second:
        (adapter,) = second.status()["storage_manager"]["l2_adapters"]
        assert adapter["live_bytes"] == 3 * 4 * (512 << 10)
        assert second.bench() == before
        (adapter,) = second.status()["storage_manager"]["l2_adapters"]
        assert adapter["pool"]["hits"] >= 3 * 4
        assert adapter["pool"]["puts_stored"] == 0
        assert adapter["locked_key_count"] == 0
        assert adapter["withheld_bytes"] == 0
        begin = time.monotonic()
        second.process.terminate()
        second.process.wait(30)
        assert time.monotonic() - begin < 15


def test_lmcaches_own_l2_bench_verifies(make_pool, tmp_path):
    path = make_pool(size=512 << 20, region_bytes=16 << 20)
    report = tmp_path / "report.json"
    words = [
        *("bench", "l2", "--l2-adapter", spec(path), "--num-keys", "16", "--in-flight", "2", "--data-size-kb", "1024"),
        *("--l1-align-bytes", "4096", "--rounds", "3", "--warmup-rounds", "1", "--no-skip-verify"),
        *("--lookup-max-hit-rate", "1.0", "--format", "json", "--output", str(report)),
    ]
    done = subprocess.run([*CLI, *words], capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-3000:]
    assert not re.search(r"mismatch|TIMEOUT|FAIL(?!.*\b0\b)", text), text[-3000:]
    assert report.stat().st_size > 0


@pytest.mark.parametrize("unfull", [False, True], ids=["whole chunks", "a partial chunk"])
@pytest.mark.parametrize("door", ["RemoteBackend-kvstore", "kvstore"], ids=["connector", "storage plugin"])
def test_lmcaches_in_process_engine_finds_its_cache_after_a_restart(pool_path, unfull, door):
    from lmcache.v1.cache_engine import LMCacheEngineBuilder
    from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface
    from lmcache_engine import CHUNK, HEAD, HEADS, LAYERS, config, metadata, storage_config
    from lmcache_helpers import eventually

    class TensorConnector(GPUConnectorInterface):
        """A CPU tensor in the place of the GPU's KV cache."""

        def __init__(self, kv: torch.Tensor) -> None:
            self.kv = kv

        def from_gpu(self, memory_obj, start, end, **kwargs):
            memory_obj.tensor.copy_(self.kv[:, :, start:end])

        def to_gpu(self, memory_obj, start, end, **kwargs):
            kwargs["target"][:, :, start:end].copy_(memory_obj.tensor)

        def batched_from_gpu(self, memory_objs, starts, ends, **kwargs):
            for obj, start, end in zip(memory_objs, starts, ends, strict=True):
                self.from_gpu(obj, start, end, **kwargs)

        def batched_to_gpu(self, memory_objs=None, starts=None, ends=None, **kwargs):
            for obj, start, end in zip(memory_objs, starts, ends, strict=True):
                self.to_gpu(obj, start, end, **kwargs)

        def get_shape(self, num_tokens):
            return torch.Size([2, LAYERS, num_tokens, HEADS * HEAD])

    count = 3 * CHUNK + (5 if unfull else 0)
    kv = torch.randn(2, LAYERS, count, HEADS * HEAD).to(torch.bfloat16)
    tokens = torch.arange(count)

    @contextmanager
    def engine(name: str):
        made = LMCacheEngineBuilder.get_or_create(
            name,
            (storage_config if door == "kvstore" else config)(pool_path, save_unfull_chunk=unfull),
            metadata(role="worker"),
            TensorConnector(kv),
            lambda tensor, source: None,
            lambda obj, source: obj,
        )
        made.post_init()
        try:
            yield made
        finally:
            LMCacheEngineBuilder.destroy(name)

    with engine("before") as first:
        backend = first.storage_manager.storage_backends[door]
        assert first.lookup(tokens) == 0
        first.store(tokens)
        pool = backend._store.pool if door == "kvstore" else backend.connection.getWrappedConnector()._pool
        eventually(lambda: pool.stats()["puts_stored"] == -(-count // CHUNK))
    with engine("after") as second:
        assert second.lookup(tokens) == count
        target = torch.zeros_like(kv)
        assert int(second.retrieve(tokens, target=target).sum()) == count
        assert torch.equal(target, kv)
