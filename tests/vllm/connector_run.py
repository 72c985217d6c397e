# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""One process with a real vLLM and KVStoreConnector in it: as vllm_run.py, for the other door.

The engine's core runs in this process, and so does its worker unless the executor is ``mp``, so that the pool can be
looked into and spoiled while it serves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm_run import shown
from vllm_says import say


def transfer_config(engine_id: str, settings: dict[str, Any], policy: str) -> KVTransferConfig:
    return KVTransferConfig(
        kv_connector="KVStoreConnector",
        kv_connector_module_path="kvstore.vllm",
        kv_role="kv_both",
        engine_id=engine_id,
        kv_load_failure_policy=policy,
        kv_connector_extra_config=settings,
    )


def watch_stores() -> None:
    """Say when a store was submitted, for whoever wants to kill this process then."""
    from kvstore._transfer import HostTransfer

    store = HostTransfer.store

    def watched(self: Any, *arguments: Any) -> None:
        store(self, *arguments)
        say(step="storing")

    HostTransfer.store = watched


class Engine:
    """vLLM, and both halves of its connector."""

    def __init__(self, run: dict[str, Any]) -> None:
        settings = run["tier"]
        policy = run.get("policy", "recompute")
        self.llm = LLM(
            run["model"],
            dtype=run["dtype"],
            enforce_eager=True,
            max_model_len=1024,
            max_num_seqs=4,
            disable_log_stats=False,
            kv_transfer_config=transfer_config(run["engine_id"], settings, policy) if settings else None,
            **run.get("engine", {}),
        )
        self.has_store = bool(settings)
        self.worker_is_here = run.get("engine", {}).get("distributed_executor_backend") != "mp"

    def core(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core

    def halves(self) -> list[Any]:
        """The scheduler's, and the worker's where it is here."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        workers = [get_kv_transfer_group()] if self.worker_is_here else []
        return [self.core().scheduler.connector, *workers]

    def settle(self) -> None:
        """Step until all stores are reported."""
        while self.core().scheduler.connector.has_pending_push_work():
            self.llm.llm_engine.step()

    def spoil(self, depth: int) -> None:
        """Flip a bit in the payload of every block at that depth of a chain."""
        pool = self.halves()[1]._worker._opened.pool
        pool.flush()
        for block in [block for block in pool.blocks() if block.depth == depth]:
            with Path(pool.paths[0]).open("r+b") as file:
                file.seek(block.offset_bytes + block.nbytes // 2)
                byte = file.read(1)[0]
                file.seek(-1, 1)
                file.write(bytes([byte ^ 0x10]))

    def generate(self, step: dict[str, Any]) -> None:
        prompts = step["prompt"] if isinstance(step["prompt"], list) else [step["prompt"]]
        given = [{"prompt": one, **({"cache_salt": step["salt"]} if "salt" in step else {})} for one in prompts]
        sampling = SamplingParams(temperature=0, max_tokens=step.get("max_tokens", 8))
        for output in self.llm.generate(given, sampling, use_tqdm=False):
            (text,) = output.outputs
            tokens, reason = list(text.token_ids), text.finish_reason
            say(step="generate", tokens=tokens, cached=output.num_cached_tokens, finish=reason)

    def status(self) -> dict[str, Any]:
        """Summed over the halves that are here; of the others the metrics know."""
        halves = [half.report_status() for half in self.halves()]
        trouble = {kind: count for half in halves for kind, count in half.pop("trouble").items()}
        pool = halves[-1].pop("pool", None)
        counted = {name: sum(half.get(name, 0) for half in halves) for name in halves[-1]}
        return {**counted, "trouble": trouble, "pool": pool, "metrics": shown(self.llm)}


def main(run: dict[str, Any]) -> None:
    watch_stores()
    engine = Engine(run)
    for step in run["steps"]:
        if engine.has_store:
            engine.settle()
        if step["do"] == "reset":
            reset = engine.llm.reset_prefix_cache(reset_connector=step.get("connector", False))
            say(step="reset", done=reset)
        elif step["do"] == "spoil":
            engine.spoil(step["depth"])
        else:
            engine.generate(step)
    if engine.has_store:
        engine.settle()
        say(step="status", status=engine.status())
        engine.llm.llm_engine.engine_core.shutdown()
