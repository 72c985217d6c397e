# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""kvstore as the storage of vLLM: a secondary tier behind its CPU tier, or a connector straight behind its KV cache.

Importing this module needs vLLM and checks its version once; one that is not supported is an ImportError with one
sentence. See ``docs/vllm.md`` for the configuration to paste.
"""

from __future__ import annotations

from kvstore.vllm.compat import require_supported_version

require_supported_version()

from kvstore.vllm.connector import KVStoreConnector  # noqa: E402
from kvstore.vllm.tier import KVStoreTier  # noqa: E402

__all__ = ["KVStoreConnector", "KVStoreTier"]
