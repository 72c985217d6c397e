# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the documents say to paste is accepted: each adapter, in-process configuration and vLLM line, each setting."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from kvstore.lmcache import KVStoreConnectorAdapter
from kvstore.lmcache.config import _CHECKS, DoorConfig

pytestmark = pytest.mark.lmcache
ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "lmcache.md"
PLUGIN = "remote_storage_plugin.kvstore."
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


@pytest.mark.parametrize("document", [ROOT / "README.md", DOCUMENT], ids=lambda path: path.name)
def test_a_pasted_in_process_configuration_is_accepted(document: Path) -> None:
    pasted = [
        yaml.safe_load(text)["extra_config"]
        for text in re.findall(r"```yaml\n(.*?)```", document.read_text(), re.DOTALL)
    ]
    assert pasted
    for extra in pasted:
        settings = {name.removeprefix(PLUGIN): value for name, value in extra.items() if name.startswith(PLUGIN)}
        assert settings.pop("module_path") == "kvstore.lmcache"
        assert settings.pop("class_name") == KVStoreConnectorAdapter.__name__
        assert DoorConfig.from_mapping(settings, "extra_config").path


def test_a_pasted_line_for_vllm_says_what_to_do_when_a_load_fails() -> None:
    lines = re.findall(r"--kv-transfer-config '(\{.*?\})'", DOCUMENT.read_text(), re.DOTALL)
    pasted = [json.loads(line) for line in lines]
    assert [one["kv_connector"] for one in pasted] == ["LMCacheMPConnector", "LMCacheConnectorV1"]
    assert {one["kv_load_failure_policy"] for one in pasted} == {"recompute"}


def test_every_setting_is_in_the_document() -> None:
    assert [name for name in _CHECKS if f"| `{name}` |" not in DOCUMENT.read_text()] == []
