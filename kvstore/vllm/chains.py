# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Which block comes before which, from the positions that vLLM gives the keys of a request.

A place is a hint for the store's reclaim, which drops the tail of a chain before its head; it is never needed for
correctness. The table lives in the request's own context and goes with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvstore.vllm import compat


class _RequestChains:
    """The keys of one request by group and end token."""

    def __init__(self) -> None:
        self.keys: dict[tuple[int, int], bytes] = {}
        self.seen = 0

    def learn(self, req_context: Any) -> None:
        for key, end_token in compat.keys_of_request(req_context, self.seen):
            self.keys[compat.group_of(key), end_token] = key
            self.seen += 1


def places(
    keys: Sequence[bytes], req_context: Any, chunk_tokens: Sequence[int]
) -> tuple[list[bytes | None], list[int]]:
    """Return the parent and the depth of each key, as far as vLLM tells them.

    Parameters
    ----------
    keys : of one request.
    req_context : vLLM's ``ReqContext`` of it.
    chunk_tokens : tokens of one chunk, for each KV cache group.
    """
    chains = req_context.get_state(_RequestChains)
    if chains is None:
        chains = _RequestChains()
        req_context.set_state(chains)
    chains.learn(req_context)
    parents: list[bytes | None] = []
    depths: list[int] = []
    for key in keys:
        group, end_token = compat.group_of(key), req_context.get_offload_key_position(key)
        if end_token is None or group >= len(chunk_tokens):
            parents.append(None)
            depths.append(0)
            continue
        # The last block of a request may end within a chunk.
        depth = (end_token - 1) // chunk_tokens[group]
        parents.append(chains.keys.get((group, depth * chunk_tokens[group])))
        depths.append(depth)
    return parents, depths
