# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: a run without LMCache says what it left out, and why; one with LMCache, that its version is supported."""

from __future__ import annotations

import pytest

REASON = "LMCache is not installed, so no test of tests/lmcache runs: scripts/test --lmcache"


def test_the_installed_lmcache_is_supported():
    pytest.importorskip("torch", reason=REASON)
    pytest.importorskip("lmcache", reason=REASON)
    from kvstore.lmcache import compat

    assert compat.version_complaint(compat.installed_version()) is None
