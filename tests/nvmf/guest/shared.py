# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""In one of three guests: the target runs etcd, and hosts share one pool on the namespace that it exports."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from pathlib import Path

import fabrics
from fabrics import LINKS
from support import keys, open_pool, put, read, wait_for

import kvstore

COUNT = 12
PORT = 2379
DATA = Path("/run/etcd")


def serve_engine() -> None:
    """On the target: etcd, for both links, unless it runs already."""
    if DATA.exists():
        return
    DATA.mkdir()
    with (DATA / "log").open("w") as log:
        subprocess.Popen(
            ["etcd", "--data-dir", str(DATA / "data"), "--log-level", "error",
             "--listen-client-urls", f"http://0.0.0.0:{PORT}",
             "--advertise-client-urls", f"http://10.77.1.1:{PORT}",
             "--listen-peer-urls", "http://127.0.0.1:2380"],
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    wait_for("etcd answers", _answers, 120)


def _answers() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5) as answer:
            return b'"true"' in answer.read()
    except OSError:
        return False


def engine() -> str:
    """By the address of the target on this host's own link."""
    return f"etcd://10.77.{LINKS[os.uname().nodename]}.1:{PORT}"


_shared: list[kvstore.Pool] = []


def share(transport: str) -> None:
    """Open the pool with the others."""
    _shared.append(open_pool(fabrics.device(transport), mode="shared", engine=engine(), wait_s=60))


def puts(prefix: str, count: int = COUNT) -> None:
    """Durably."""
    put(_shared[0], keys(prefix, count))


def reads(*prefixes: str) -> dict[str, list[str]]:
    """What this opener gets of what all have put."""
    _shared[0].refresh(60)
    return {prefix: read(_shared[0], keys(prefix, COUNT)) for prefix in prefixes}


def openers() -> int:
    return int(_shared[0].stats()["openers"])


def format_anew(transport: str) -> None:
    """A pool of one owner, whatever openers that were killed have left: as an operator who wants no more of it."""
    number = fabrics.TRANSPORTS.index(transport) + 1
    nguid = fabrics.namespace(number, "")["nguid"].replace("-", "")
    fabrics.do("pool", str(fabrics.FILE), "--host", fabrics.host_name(transport), "--force", nguid)


def refusal(transport: str) -> str:
    """What an opener in owner mode is told of a pool that is shared."""
    try:
        open_pool(fabrics.device(transport)).close()
    except kvstore.errors.KvStoreError as error:
        return str(error)
    return ""
