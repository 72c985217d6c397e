# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the documents say to paste is accepted: each --kv-transfer-config of README and docs, and every setting."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import kvstore.vllm
from kvstore.vllm import KVStoreConnector, KVStoreTier
from kvstore.vllm.config import _CHECKS, _CONNECTOR_CHECKS, ConnectorConfig, TierConfig
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
    assert pasted["kv_load_failure_policy"] == "recompute"
    settings = pasted["kv_connector_extra_config"]
    if pasted["kv_connector"] == KVStoreConnector.__name__:
        assert getattr(kvstore.vllm, pasted["kv_connector"]) is KVStoreConnector
        assert pasted["kv_connector_module_path"] == kvstore.vllm.__name__
        assert ConnectorConfig.from_mapping(settings, "connector").path
        return
    assert pasted["kv_connector"] == "OffloadingConnector"
    (tier,) = settings["secondary_tiers"]
    assert (tier.pop("type"), tier.pop("module_path")) == (KVStoreTier.__name__, "kvstore.vllm")
    assert TierConfig.from_mapping(tier, "tier").path


def test_both_doors_have_a_line_to_paste() -> None:
    doors = {one.values[0]["kv_connector"] for one in PASTED}
    assert doors == {"OffloadingConnector", "KVStoreConnector"}


def test_every_setting_and_every_counter_is_in_the_document() -> None:
    text = DOCUMENT.read_text()
    assert [name for name in _CHECKS if f"| `{name}` |" not in text] == []
    assert [name for name in _CONNECTOR_CHECKS if f"`{name}`" not in text.partition("## The connector")[2]] == []
    assert [name for name in COUNTERS if f"{name}_total" not in text] == []
