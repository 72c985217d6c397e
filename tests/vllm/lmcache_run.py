# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""One process with a vLLM that is connected to an ``lmcache server``: a line of JSON for each prompt it is given."""

from __future__ import annotations

import builtins
import json
import sys
from typing import Any

from vllm_says import say


def let_vllm_scan_its_modules() -> None:
    """vLLM 0.32 on a CPU looks into every attribute of every module, and takes ``vars()`` of each for a dictionary.
    llvmlite's, which LMCache imports with numba, is none, and the engine would not start.
    """
    import vllm.triton_utils.dispatcher as dispatcher

    def only_dictionaries(value: Any) -> dict[str, Any]:
        found = builtins.vars(value)
        return found if isinstance(found, dict) else {}

    dispatcher.vars = only_dictionaries


def main(run: dict[str, Any]) -> None:
    let_vllm_scan_its_modules()
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    llm = LLM(
        run["model"],
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=4,
        kv_transfer_config=KVTransferConfig(
            kv_connector="LMCacheMPConnector",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": run["port"]},
        ),
    )
    sampling = SamplingParams(temperature=0, max_tokens=8)
    for prompt in run["prompts"]:
        output = llm.generate([{"prompt": prompt}], sampling, use_tqdm=False)[0]
        say(step="generate", tokens=list(output.outputs[0].token_ids), cached=output.num_cached_tokens)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
