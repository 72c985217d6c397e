# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A vLLM of its own: a process that :mod:`.engine_process` is the program of, spoken to by lines of JSON.

To open the pool anew is to end that process and to start another one: nothing of the first can warm the second.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import kvstore
from kvstore.bench.ttft.answers import Answer
from kvstore.errors import ConfigError

__all__ = ["MARK", "EngineOptions", "VllmEngine"]

#: Begins the lines that are meant for this side: vLLM and its libraries print, too.
MARK = "KVSTORE-TTFT "
_LOG_LINES = 15
_END_TIMEOUT_S = 120


@dataclass(frozen=True)
class EngineOptions:
    """What the engine is started with."""

    model: str
    transfer: Mapping[str, Any]  # vLLM's --kv-transfer-config
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of vllm.LLM
    python: str = sys.executable  # of an environment that has vLLM


class VllmEngine:
    """A context manager: the engine runs inside it, and nothing of it is left after."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None
        self._facts: dict[str, Any] = {}

    def __enter__(self) -> VllmEngine:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def facts(self) -> Mapping[str, Any]:
        options = asdict(self._options)
        del options["python"]
        return {"target": "vLLM in a process of its own", **options, **self._facts, "started_anew": "a new process"}

    def serve(
        self, prompts: Sequence[Sequence[int]], concurrency: int, output_tokens: int
    ) -> tuple[list[Answer], float]:
        answer = self._do("serve", prompts=prompts, concurrency=concurrency, output_tokens=output_tokens)
        return [Answer(**one) for one in answer["answers"]], float(answer["seconds"])

    def settle(self) -> None:
        self._do("settle")

    def forget(self, *, host: bool) -> None:
        if not self._do("forget", host=host)["done"]:
            raise ConfigError("vLLM does not drop its prefix cache while blocks of it are in use")

    def reopen(self) -> None:
        self._end()
        self._start()

    def counters(self) -> Mapping[str, float]:
        counters: dict[str, float] = self._do("counters")["counters"]
        return counters

    def _start(self) -> None:
        self._log = tempfile.TemporaryFile("w+")
        # The kvstore that measures is the one that is measured, wherever that Python has another one.
        path = [str(Path(kvstore.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", **os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(path)
        self._process = subprocess.Popen(
            [self._options.python, "-m", "kvstore.bench.ttft.engine_process"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment,
        )  # fmt: skip
        options = self._options
        self._facts = self._do("start", model=options.model, transfer=options.transfer, arguments=options.arguments)

    def _do(self, what: str, **how: Any) -> dict[str, Any]:
        """Ask, and wait for the answer."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # why it ended is in its log
            process.stdin.write(json.dumps({"do": what, **how}) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            if line.startswith(MARK):
                answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return answer
        process.wait()
        raise ConfigError(f"vLLM ended with status {process.returncode} at {what!r}:\n{self._end_of_log()}")

    def _end_of_log(self) -> str:
        assert self._log is not None
        self._log.seek(0)
        return "".join(self._log.readlines()[-_LOG_LINES:])

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()  # after which it ends
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
        if self._log is not None:
            self._log.close()
