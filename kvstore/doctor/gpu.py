# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The check of the way into a GPU's memory: cuFile is asked to read the pool's devices, and what it reads compared.

In a process of its own, which is given a time: cuFile has been seen to spin for ever, and a CUDA context costs memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from kvstore.doctor.finding import Finding

__all__ = ["check_gpu_path"]

_TIMEOUT_S = 90.0
_CHILD = (
    "import json, sys; from kvstore import _core; print(json.dumps(_core.prove_direct_reads(*json.load(sys.stdin))))"
)


def check_gpu_path(paths: Sequence[str], gpu: int, timeout_s: float = _TIMEOUT_S) -> Finding:
    """Which way bytes of these devices take into the memory of a GPU when a pool is opened with ``gpu_direct``."""
    command = [sys.executable, "-c", _CHILD]
    given = json.dumps([list(paths), gpu])
    try:
        child = subprocess.run(command, input=given, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return Finding(
            "gpu path",
            "fail",
            f"GPU {gpu}: the proof did not end in {timeout_s:g} s",
            "do not set gpu_direct; see cufile.log in /tmp",
        )
    if child.returncode != 0:
        lines = child.stderr.strip().splitlines() or [f"it ended with {child.returncode}"]
        what, _, mend = lines[-1].rpartition(": ")[2].partition("; ")
        return Finding("gpu path", "fail", f"GPU {gpu}: {what}", mend)
    state = json.loads(child.stdout)
    if state == "direct":
        return Finding("gpu path", "ok", f"GPU {gpu}: direct, proven by reading and hashing 1 MiB of each device")
    if state == "compat":
        return Finding(
            "gpu path",
            "warn",
            f"GPU {gpu}: compat: cuFile reads the right bytes and copies them through host memory",
            "docs/gpu.md tells what direct reads need; until then leave gpu_direct off, kvstore's own way is faster",
        )
    reason = state.removeprefix("refused: ")
    what, _, mend = reason.partition("; ")
    return Finding("gpu path", "warn", f"GPU {gpu}: bounce, through host memory: {what}", mend)
