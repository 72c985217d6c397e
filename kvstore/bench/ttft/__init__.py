# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Time to the first token, with and without the store: ``kvstore bench ttft``.

Sessions are prompts of random tokens, as many and as long as asked for, no two of which share a block. They are sent to
an engine in passes:

    cold      nobody has seen them: computed, and stored
    gpu       again: the engine's own prefix cache
    host      again, after the engine forgot that: its tier in host memory, where it has one
    kvstore   again, in an engine that was started anew, on a pool that was opened anew: from the store

The engine is an OpenAI-compatible endpoint (:mod:`.endpoint`), or a vLLM in a process of its own (:mod:`.engine`). That
a pass was served from where it should have been is told by the store's counters, and said where it was not.
"""
