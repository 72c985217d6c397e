# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Runs of a real vLLM as processes, on a pool in a file."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from multiprocessing import forkserver
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from engine_process import serve
from vllm_model import TEXT
from vllm_says import PREFIX

import kvstore

HERE = Path(__file__).parent
ENVIRONMENT = {
    **os.environ,
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    # The package under test, and the spec that runs without a GPU.
    "PYTHONPATH": os.pathsep.join([str(Path(kvstore.__file__).parents[1]), str(HERE)]),
}
_FORKED = multiprocessing.get_context("forkserver")
CPU_BYTES = 32 << 20
# Whose answers without a store are known: those of generate(0) and on.
PROMPTS = 4


def prompt(number: int) -> str:
    """Text of a few blocks, another one for each number from the first block on."""
    return f"{number} " * 8 + TEXT * 40


def generate(number: int, **more: Any) -> dict[str, Any]:
    return {"do": "generate", "prompt": prompt(number), **more}


RESET = {"do": "reset"}


def start_forkserver() -> None:
    """Once for all engines: the process that they are forked from, with all that they import."""
    _FORKED.set_forkserver_preload(["engine_imports"])
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)  # it finds modules by PYTHONPATH only
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


class Run:
    """One process. Its steps are read as they come.

    It is forked from one that has imported vLLM and has done nothing else (:mod:`engine_process`): most of an engine's
    start is that. ``script`` names the module whose ``main`` it is.
    """

    def __init__(
        self,
        model: Path,
        pool: str | None,
        steps: list[dict[str, Any]],
        script: str = "vllm_run",
        **more: Any,
    ) -> None:
        environment = {**ENVIRONMENT, **more.pop("environment", {})}
        self.engine_id = f"kvstore-test-{os.getpid()}-{id(self)}"
        tier = {"path": pool, **more.pop("tier", {})} if pool is not None else None
        run = {"model": str(model), "engine_id": self.engine_id, "tier": tier, "steps": steps}
        run |= {"dtype": "bfloat16", "cpu_bytes": CPU_BYTES, **more}
        start_forkserver()
        reader, writer = os.pipe()
        self._process = _FORKED.Process(target=serve, args=(DupFd(writer), script, run, environment))
        self._process.start()
        os.close(writer)
        self._output = os.fdopen(reader, errors="replace")
        self.log: list[str] = []

    def step(self, name: str) -> dict[str, Any]:
        """The next step of that name; those before it are passed over."""
        for line in self._output:
            self.log.append(line)
            if line.startswith(PREFIX):
                step = json.loads(line.removeprefix(PREFIX))
                if step["step"] == name:
                    return step
        raise AssertionError(f"the engine ended before it came to {name}:\n" + "".join(self.log[-60:]))

    def generated(self, count: int) -> list[dict[str, Any]]:
        return [self.step("generate") for _ in range(count)]

    def status(self) -> dict[str, Any]:
        """What the tier counted, after all steps; and the end of the process, which is a good one."""
        status = self.step("status")["status"]
        self.log += self._output
        self._process.join(60)
        assert self._process.exitcode == 0, "".join(self.log[-60:])
        return status

    def kill(self) -> None:
        # Its workers too, where these are processes of their own.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join(60)

    def end(self) -> None:
        """Whatever became of it, nothing of it stays."""
        if self._process.is_alive():
            self.kill()
        self._output.close()
        for left in Path("/dev/shm").glob(f"vllm_offload_{self.engine_id}*"):
            left.unlink()
