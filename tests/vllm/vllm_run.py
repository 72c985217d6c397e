# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""One process with a real vLLM in it: does what the JSON in its argument says, prints a line of JSON for each step.

The engine's core runs in this process, so that the tier can be asked for its counts.
"""

from __future__ import annotations

from typing import Any

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm_says import say


def transfer_config(engine_id: str, tier: dict[str, Any], cpu_bytes: int) -> KVTransferConfig:
    return KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        engine_id=engine_id,
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "vllm_cpu",
            "cpu_bytes_to_use": cpu_bytes,
            "secondary_tiers": [{"type": "KVStoreTier", "module_path": "kvstore.vllm", **tier}],
        },
    )


def watch_stores() -> None:
    """Say when a store was submitted, for whoever wants to kill this process then."""
    from kvstore.vllm import KVStoreTier

    submit = KVStoreTier.submit_store

    def submit_store(self: Any, job_metadata: Any) -> None:
        submit(self, job_metadata)
        say(step="storing")

    KVStoreTier.submit_store = submit_store


def the_tier(llm: LLM) -> Any:
    connector = llm.llm_engine.engine_core.engine_core.scheduler.connector
    return connector.connector_scheduler.manager.secondary_tiers[0]


def shown(llm: LLM) -> dict[str, float]:
    """The tier's counters as /metrics has them. vLLM takes them with the end of a step."""
    return {metric.name: metric.value for metric in llm.get_metrics() if metric.name.startswith("vllm:kvstore_")}


def main(run: dict[str, Any]) -> None:
    tier = run["tier"]
    if tier is not None:
        watch_stores()
    llm = LLM(
        run["model"],
        dtype=run["dtype"],
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=4,
        disable_log_stats=False,
        kv_transfer_config=transfer_config(run["engine_id"], tier, run["cpu_bytes"]) if tier is not None else None,
        **run.get("engine", {}),
    )
    sampling = SamplingParams(temperature=0, max_tokens=8)
    for step in run["steps"]:
        if step["do"] == "reset":
            say(step="reset", done=llm.reset_prefix_cache(reset_connector=True))
            continue
        prompt = {"prompt": step["prompt"], **({"cache_salt": step["salt"]} if "salt" in step else {})}
        output = llm.generate([prompt], sampling, use_tqdm=False)[0]
        say(step="generate", tokens=list(output.outputs[0].token_ids), cached=output.num_cached_tokens)
    if tier is not None:
        the_tier(llm).drain_jobs()
        say(step="status", status={**the_tier(llm).report_status(), "metrics": shown(llm)})
        llm.llm_engine.engine_core.shutdown()
