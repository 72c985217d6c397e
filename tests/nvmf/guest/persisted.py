# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""In the guest: what `nvmf-setup persist` writes, used by those for whom it is."""

from __future__ import annotations

import shlex
from pathlib import Path

import fabrics
from fabrics import FILE, do, host_name
from support import run, wait_for

ROOT = Path("/run/image")
COPY = ROOT / "etc/kvstore/nvmf.yaml"


def connects_by_nvme_cli(transport: str) -> list[str]:
    """What nvmf-setup has to put right where nvme-cli has connected by /etc/nvme/config.json."""
    fabrics.prepare()
    fabrics.disconnect(transport)
    words = ["--host", host_name(transport)]
    image = ["--root", str(ROOT)]
    command = do("persist", "host", str(FILE), *words, *image, "--program", "/bin/true")["nvme_cli"]
    run("modprobe", "-a", "nvme-fabrics", "nvme-tcp", "nvme-rdma")
    said = run(*shlex.split(command), f"--config={ROOT / 'etc/nvme/config.json'}", check=False)
    wait_for("it is connected, or told otherwise", lambda: fabrics.state(transport) == "live" or said)
    done = do("host", "connect", str(COPY), *words)["done"]
    fabrics.disconnect(transport)
    do("persist", "host", str(FILE), *words, *image, "--remove")
    return [one.partition(": ")[2] for one in done]
