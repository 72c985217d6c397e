# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Waiting for a job of the store, where the end of the wait is an answer and no error."""

from __future__ import annotations

import kvstore
from kvstore.errors import KvStoreError


def wait_for_job(job: kvstore.Job, timeout_s: float) -> bool:
    """Wait for ``job``, at most ``timeout_s`` seconds; return whether it is complete."""
    if not job.done and timeout_s > 0:
        try:
            job.wait(timeout_s)
        except (TimeoutError, KvStoreError):
            return bool(job.done)
    return bool(job.done)
