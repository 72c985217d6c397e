# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the documents say to paste is accepted: each extra config of README and docs, and every setting and counter."""

from __future__ import annotations

import pytest
from door_support import ROOT, missing, pasted

from kvstore.sglang import KVStoreHiCache
from kvstore.sglang.config import _CHECKS, DoorConfig
from kvstore.sglang.counters import Counters

DOCUMENT = ROOT / "docs" / "sglang.md"
RANK = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "dp_rank": 0}
PASTED = pasted(r"extra-config '(\{.*?\})'", DOCUMENT)


@pytest.mark.parametrize("line", PASTED)
def test_a_pasted_line_is_accepted(line: dict) -> None:
    assert (line["class_name"], line["module_path"]) == (KVStoreHiCache.__name__, "kvstore.sglang")
    assert line["interface_v1"] == 1
    assert DoorConfig.from_sglang(line, RANK).path


def test_every_setting_and_every_counter_is_in_the_document() -> None:
    text = DOCUMENT.read_text()
    assert missing(_CHECKS, text) == []
    told = {name for name in Counters().numbers() if name.startswith(("pages_", "bytes_"))}
    assert missing(told, text, "`{}`") == []
