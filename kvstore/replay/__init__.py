# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Replay of request traces: what a policy, or the store itself, would have hit and written. See docs/replay.md.

Examples
--------
>>> from kvstore.replay import Request, Trace, make_policy, simulate
>>> chats = [Request(time_s, 30, 0, blocks) for time_s, blocks in enumerate([(1, 2, 3), (1, 4, 5), (1, 2, 6)])]
>>> trace = Trace("example", chats, block_tokens=10)
>>> simulate(trace, make_policy("lru", 4, trace=trace)).prefix_hit
0.3333333333333333
"""

from kvstore.replay.metrics import Serving, block_figures, byte_figures, ttft_figures
from kvstore.replay.policies import BLOCKS_PER_REGION, POLICIES, BlockPolicy, Policy, make_policy
from kvstore.replay.prefill import MODELS, Prefill
from kvstore.replay.simulate import Admission, Result, Served, capacity_blocks, simulate
from kvstore.replay.store_run import StoreRun, run_on_store
from kvstore.replay.trace import Request, Trace, read_trace

__all__ = [
    "BLOCKS_PER_REGION",
    "MODELS",
    "POLICIES",
    "Admission",
    "BlockPolicy",
    "Policy",
    "Prefill",
    "Request",
    "Result",
    "Served",
    "Serving",
    "StoreRun",
    "Trace",
    "block_figures",
    "byte_figures",
    "capacity_blocks",
    "make_policy",
    "read_trace",
    "run_on_store",
    "simulate",
    "ttft_figures",
]
