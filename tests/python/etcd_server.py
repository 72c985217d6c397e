# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""An etcd of one's own for a test run: Debian's etcd-server on free ports, its data in a temporary folder."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
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


@contextlib.contextmanager
def etcd_server(folder: Path) -> Iterator[str]:
    """Yield ``host:port`` of a server that answers; it ends with the block."""
    client, peer = free_port(), free_port()
    command = ["etcd", "--data-dir", str(folder / "data"), "--name", "test", "--log-level", "error"]
    command += [f"--listen-client-urls=http://127.0.0.1:{client}", f"--advertise-client-urls=http://127.0.0.1:{client}"]
    command += [f"--listen-peer-urls=http://127.0.0.1:{peer}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}"]
    command += [f"--initial-cluster=test=http://127.0.0.1:{peer}"]
    with (folder / "etcd.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            deadline = time.monotonic() + START_S_MAX
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", client), timeout=1):
                    break
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"etcd did not start: {(folder / 'etcd.log').read_text()[-2000:]}")
                time.sleep(0.05)
            yield f"127.0.0.1:{client}"
        finally:
            server.kill()
