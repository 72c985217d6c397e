# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the documents say to paste is accepted: each --kv-transfer-config of README and docs, and every setting."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvstore.vllm import KVStoreTier
from kvstore.vllm.config import _CHECKS, TierConfig
from kvstore.vllm.metrics import COUNTERS

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "vllm.md"
PASTED = [
    pytest.param(json.loads(match), id=f"{path.name}-{number}")
    for path in (ROOT / "README.md", DOCUMENT)
    for number, match in enumerate(re.findall(r"--kv-transfer-config '(\{.*?\})'", path.read_text(), re.DOTALL))
]


def test_the_documents_have_something_to_paste() -> None:
    assert len(PASTED) >= 2


@pytest.mark.parametrize("pasted", PASTED)
def test_a_pasted_line_is_accepted(pasted: dict) -> None:
    assert (pasted["kv_connector"], pasted["kv_load_failure_policy"]) == ("OffloadingConnector", "recompute")
    (tier,) = pasted["kv_connector_extra_config"]["secondary_tiers"]
    assert (tier.pop("type"), tier.pop("module_path")) == (KVStoreTier.__name__, "kvstore.vllm")
    assert TierConfig.from_mapping(tier, "tier").path


def test_every_setting_and_every_counter_is_in_the_document() -> None:
    text = DOCUMENT.read_text()
    assert [name for name in _CHECKS if f"| `{name}` |" not in text] == []
    assert [name for name in COUNTERS if f"{name}_total" not in text] == []
