# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: a run without vLLM says what it left out, and why; one with vLLM, that its version is supported."""

from __future__ import annotations

import pytest

REASON = "vLLM is not installed, so no test of tests/vllm runs: scripts/test engines"


def test_the_installed_vllm_is_supported() -> None:
    pytest.importorskip("vllm", reason=REASON)
    from kvstore.vllm import compat

    assert compat.version_complaint(compat.installed_version()) is None


@pytest.mark.parametrize("version", [None, "0.31.9", "0.34.0", "1.0", "0.3.3", "unknown"])
def test_another_version_is_refused_in_one_sentence(version: str | None) -> None:
    pytest.importorskip("vllm", reason=REASON)
    from kvstore.vllm import compat

    complaint = compat.version_complaint(version)
    assert complaint is not None
    assert "\n" not in complaint
    assert "0.32.x and 0.33.x" in complaint
