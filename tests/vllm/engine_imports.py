# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What every engine of the tests imports. The process that each of them is forked from does this once, and no more."""

from __future__ import annotations

import importlib

for name in (
    "vllm.entrypoints.llm",
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.core",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.worker.cpu_worker",
    "kvstore.vllm",
):
    importlib.import_module(name)
