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


def test_sglangs_factory_refuses_another_version_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sglang", reason=REASON)
    from sglang_engine import create_backend

    from kvstore.sglang import compat

    monkeypatch.setattr(compat, "installed_version", lambda: "0.7.1")
    with pytest.raises(ImportError, match=r"does not support SGLang 0\.7\.1.*pip install sglang==0\.5\.23"):
        create_backend("no such pool")
