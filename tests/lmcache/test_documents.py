# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the documents say to paste is accepted: every --l2-adapter JSON of README and docs goes through the settings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvstore.lmcache.config import DoorConfig

pytestmark = pytest.mark.lmcache
ROOT = Path(__file__).parents[2]
PASTED = [
    pytest.param(json.loads(match), id=f"{path.name}-{number}")
    for path in (ROOT / "README.md", ROOT / "docs" / "lmcache.md")
    for number, match in enumerate(re.findall(r"--l2-adapter '(\{.*?\})'", path.read_text(), re.DOTALL))
]


def test_the_documents_have_something_to_paste() -> None:
    assert len(PASTED) >= 2


@pytest.mark.parametrize("pasted", PASTED)
def test_a_pasted_adapter_line_is_accepted(pasted: dict) -> None:
    assert pasted["class_name"] == "KVStoreL2Adapter"
    assert DoorConfig.from_mapping(pasted["adapter_params"], "adapter_params").path
