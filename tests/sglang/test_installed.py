# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: a run without SGLang says what it left out, and why; one with SGLang, that its version is supported."""

from __future__ import annotations

import pytest

REASON = "SGLang is not installed here, so no test of tests/sglang runs: scripts/test engines"


def test_the_installed_sglang_is_supported() -> None:
    pytest.importorskip("sglang", reason=REASON)
    from kvstore.sglang import compat

    assert compat.version_complaint(compat.installed_version()) is None
