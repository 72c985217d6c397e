# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Starts, watches and kills a real `lmcache server` with kvstore as its L2, for scripts/demo and tests."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_READY_TIMEOUT_S = 120
_POLL_S = 0.05
_LOG_LINES = 25


class ServerDied(Exception):
    """The server ended, or never answered; the message has the end of its log."""


class LMCacheServer:
    """One `lmcache server` process on one pool.

    Parameters
    ----------
    folder : for its log and its process id.
    pool : path of a formatted pool.
    l1_gb : memory that LMCache moves blocks through.
    program : that runs LMCache.
    arguments : further ones of the server.
    environment : beside that of this process.
    """

    def __init__(
        self,
        folder: Path,
        pool: Path | str,
        l1_gb: float,
        *,
        program: Sequence[str] = ("lmcache",),
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port, self.http_port = _free_port(), _free_port()
        self._log = folder / "server.log"
        self._pid_file = folder / "server.pid"
        adapter = {
            "type": "plugin",
            "module_path": "kvstore.lmcache",
            "class_name": "KVStoreL2Adapter",
            "adapter_params": {"path": str(pool), "durable": True},
        }
        command = [
            *program, "server",
            "--host", "127.0.0.1", "--port", str(self.port), "--http-port", str(self.http_port),
            "--l1-size-gb", str(l1_gb), "--no-l1-use-lazy", "--eviction-policy", "noop",
            "--l2-store-policy", "skip_l1", "--supported-transfer-mode", "engine_driven",
            "--l2-adapter", json.dumps(adapter), *arguments,
        ]  # fmt: skip
        environment = {**os.environ, "LMCACHE_TRACK_USAGE": "false", **(environment or {})}
        self._started = time.monotonic()
        with open(self._log, "ab") as log:
            # A group of its own, so that killing it reaches what it starts itself.
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._pid_file.write_text(str(self._process.pid))

    def __enter__(self) -> LMCacheServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait_until_ready(self) -> float:
        """Wait until it answers; return the seconds since it was started."""
        while time.monotonic() - self._started < _READY_TIMEOUT_S:
            if self._process.poll() is not None:
                raise ServerDied(f"the LMCache server ended with status {self._process.returncode}\n{self._log_end()}")
            try:
                self._get("/healthcheck")
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(_POLL_S)
            else:
                return time.monotonic() - self._started
        raise ServerDied(f"the LMCache server did not answer within {_READY_TIMEOUT_S} s\n{self._log_end()}")

    def rate(self, direction: str) -> float:
        """GB/s of a "store" or "load" between LMCache's memory and kvstore, as LMCache measures them: mean of all."""
        pattern = rf"^lmcache_mp_l2_{direction}_throughput\w*_(count|sum)\{{.*\}} (\S+)$"
        numbers = dict(re.findall(pattern, self._get("/metrics"), re.MULTILINE))
        return float(numbers["sum"]) / float(numbers["count"]) if numbers else 0.0

    def l2_status(self) -> dict[str, Any]:
        """What the kvstore adapter reports of itself."""
        return _find_adapter(json.loads(self._get("/status")))

    def wait_until_stored(self, blocks: int, timeout_s: float = 60) -> None:
        """Wait until so many blocks have been stored durably, and no store is in flight."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            status = self.l2_status()
            if status["store_inflight_task_count"] == 0 and status["pool"]["puts_stored"] >= blocks:
                return
            time.sleep(_POLL_S)
        raise ServerDied(f"{blocks} blocks were not stored within {timeout_s} s: {status}\n{self._log_end()}")

    def kill(self) -> None:
        """SIGKILL: nothing is closed, flushed or said good-bye to."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._pid_file.unlink(missing_ok=True)

    def stop(self) -> None:
        """End it the way an administrator does; SIGKILL when that takes too long."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()
        self._pid_file.unlink(missing_ok=True)

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=10) as response:
            text: str = response.read().decode()
            return text

    def _log_end(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


def _find_adapter(status: Any) -> dict[str, Any]:
    """The adapter's own part of the server's status, wherever this version of LMCache puts it."""
    if isinstance(status, dict):
        if status.get("type") == "KVStoreL2Adapter":
            return status
        status = list(status.values())
    for value in status if isinstance(status, list) else []:
        try:
            return _find_adapter(value)
        except KeyError:
            continue
    raise KeyError("KVStoreL2Adapter")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
