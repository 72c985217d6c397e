# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The program with a vLLM in it: takes lines of JSON, answers each with one, ends when there are no more.

The engine's core runs in this process and is stepped by hand, so a first token is seen when the step that made it ends.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from typing import Any

from kvstore.bench.ttft.engine import MARK

_PREFIX = "vllm:kvstore_"
#: A request that has no block to store or to load, and gives the engine its next steps.
_SHORT = [11]


class _Engine:
    def __init__(self, model: str, transfer: dict[str, Any], arguments: dict[str, Any]) -> None:
        import vllm
        from vllm.config import KVTransferConfig

        self._llm: Any = vllm.LLM(
            model, disable_log_stats=False, kv_transfer_config=KVTransferConfig(**transfer), **arguments
        )
        self._version = vllm.__version__
        self._number = 0

    def facts(self) -> dict[str, Any]:
        return {"vllm": self._version}

    def serve(self, prompts: list[list[int]], concurrency: int, output_tokens: int) -> dict[str, Any]:
        """Step until all have ended, with so many in the engine at a time."""
        from vllm import SamplingParams

        engine = self._llm.llm_engine
        sampling = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True)
        waiting = deque(enumerate(prompts))
        sent_s: dict[str, float] = {}
        first_s: dict[str, float] = {}
        places: dict[str, int] = {}
        answers: dict[int, dict[str, Any]] = {}
        begun = time.perf_counter()
        while waiting or sent_s:
            while waiting and len(sent_s) < concurrency:
                place, prompt = waiting.popleft()
                self._number += 1
                name = f"r{self._number}"
                sent_s[name], places[name] = time.perf_counter(), place
                engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
            outputs = engine.step()
            now = time.perf_counter()
            for output in outputs:
                name, tokens = output.request_id, output.outputs[0].token_ids
                if tokens:
                    first_s.setdefault(name, now)
                if output.finished:
                    sent = sent_s.pop(name)
                    answers[places[name]] = {
                        "first_token_s": first_s[name] - sent,
                        "seconds": now - sent,
                        "tokens": len(tokens),
                        "output": str(list(tokens)),
                        "cached_tokens": output.num_cached_tokens,
                    }
        seconds = time.perf_counter() - begun
        return {"answers": [answers[place] for place in range(len(prompts))], "seconds": seconds}

    def settle(self) -> dict[str, Any]:
        """vLLM hands what it computed to its connector with the next step, and takes its counts with the one after."""
        self.serve([_SHORT], 1, 1)
        for tier in self._tiers():
            tier.drain_jobs()
        self.serve([_SHORT, _SHORT], 1, 1)
        return {}

    def _tiers(self) -> list[Any]:
        connector = getattr(self._llm.llm_engine.engine_core.engine_core.scheduler, "connector", None)
        manager = getattr(getattr(connector, "connector_scheduler", None), "manager", None)
        return list(getattr(manager, "secondary_tiers", []))

    def forget(self, host: bool) -> dict[str, Any]:
        return {"done": bool(self._llm.reset_prefix_cache(reset_connector=host))}

    def counters(self) -> dict[str, Any]:
        metrics = self._llm.get_metrics()
        told = {m.name.removeprefix(_PREFIX): m.value for m in metrics if m.name.startswith(_PREFIX)}
        return {"counters": told}

    def end(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()


def main() -> None:
    """Until standard input ends."""
    engine: _Engine | None = None
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("do")
        if what == "start":
            engine = _Engine(**request)
            answer = engine.facts()
        else:
            answer = getattr(engine, what)(**request)
        print(MARK + json.dumps(answer), flush=True)
    if engine is not None:
        engine.end()


if __name__ == "__main__":
    main()
