# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the documents say to paste is accepted: each --kv-transfer-config of README and docs, and every setting."""

from __future__ import annotations

import pytest
from door_support import ROOT, missing, pasted

import kvstore.vllm
from kvstore.vllm import KVStoreConnector, KVStoreTier
from kvstore.vllm.config import _CHECKS, _CONNECTOR_CHECKS, ConnectorConfig, TierConfig
from kvstore.vllm.metrics import COUNTERS

DOCUMENT = ROOT / "docs" / "vllm.md"
PASTED = pasted(r"--kv-transfer-config '(\{.*?\})'", DOCUMENT)


@pytest.mark.parametrize("line", PASTED)
def test_a_pasted_line_is_accepted(line: dict) -> None:
    assert line["kv_load_failure_policy"] == "recompute"
    settings = line["kv_connector_extra_config"]
    if line["kv_connector"] == KVStoreConnector.__name__:
        assert getattr(kvstore.vllm, line["kv_connector"]) is KVStoreConnector
        assert line["kv_connector_module_path"] == kvstore.vllm.__name__
        assert ConnectorConfig.from_mapping(settings, "connector").path
        return
    assert line["kv_connector"] == "OffloadingConnector"
    (tier,) = settings["secondary_tiers"]
    assert (tier.pop("type"), tier.pop("module_path")) == (KVStoreTier.__name__, "kvstore.vllm")
    assert TierConfig.from_mapping(tier, "tier").path


def test_both_doors_have_a_line_to_paste() -> None:
    doors = {one.values[0]["kv_connector"] for one in PASTED}
    assert doors == {"OffloadingConnector", "KVStoreConnector"}


def test_every_setting_and_every_counter_is_in_the_document() -> None:
    text = DOCUMENT.read_text()
    assert missing(_CHECKS, text) == []
    assert missing(_CONNECTOR_CHECKS, text.partition("## The connector")[2], "`{}`") == []
    assert missing(COUNTERS, text, "{}_total") == []
