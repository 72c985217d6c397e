# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""An etcd of one's own for a test run: Debian's etcd-server on free ports, its data in a temporary folder."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

START_S_MAX = 30.0


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def missing() -> str | None:
    """Why there can be none here; None when there can."""
    if shutil.which("etcd") is None:
        return "etcd is not installed: apt-get install etcd-server"
    if importlib.util.find_spec("etcd3gw") is None:
        return "etcd3gw is not installed: pip install 'nvme-kvstore[etcd]'"
    return None


class EtcdServer:
    """A server that answers at ``endpoint``, until it is killed; it starts again on the same data and ports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._peer = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = f"127.0.0.1:{free_port()}"

    def __enter__(self) -> EtcdServer:
        self.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.kill()

    def start(self) -> None:
        client, peer = f"http://{self.endpoint}", f"http://127.0.0.1:{self._peer}"
        command = ["etcd", "--data-dir", str(self._folder / "data"), "--name", "test", "--log-level", "error"]
        command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        command += [f"--initial-cluster=test={peer}"]
        with (self._folder / "etcd.log").open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S_MAX
        while True:
            # It listens before it has elected itself, and does not answer until then.
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{client}/health", timeout=1) as answer:
                if json.load(answer)["health"] == "true":
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = (self._folder / "etcd.log").read_text()[-2000:]
                self.kill()
                raise RuntimeError(f"etcd did not start: {text}")
            time.sleep(0.05)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
