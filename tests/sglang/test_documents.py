# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the documents say to paste is accepted: each extra config of README and docs, and every setting and counter."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvstore.sglang import KVStoreHiCache
from kvstore.sglang.config import _CHECKS, DoorConfig
from kvstore.sglang.counters import Counters

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "sglang.md"
RANK = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "dp_rank": 0}
PASTED = [
    pytest.param(json.loads(match), id=f"{path.name}-{number}")
    for path in (ROOT / "README.md", DOCUMENT)
    for number, match in enumerate(re.findall(r"extra-config '(\{.*?\})'", path.read_text(), re.DOTALL))
]


def test_the_documents_have_something_to_paste() -> None:
    assert len(PASTED) >= 2


@pytest.mark.parametrize("pasted", PASTED)
def test_a_pasted_line_is_accepted(pasted: dict) -> None:
    assert (pasted["class_name"], pasted["module_path"]) == (KVStoreHiCache.__name__, "kvstore.sglang")
    assert pasted["interface_v1"] == 1
    assert DoorConfig.from_sglang(pasted, RANK).path


def test_every_setting_and_every_counter_is_in_the_document() -> None:
    text = DOCUMENT.read_text()
    assert [name for name in _CHECKS if f"| `{name}` |" not in text] == []
    told = {name for name in Counters().numbers() if name.startswith(("pages_", "bytes_"))}
    assert [name for name in told if f"`{name}`" not in text] == []
