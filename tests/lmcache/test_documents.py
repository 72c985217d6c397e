# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the documents say to paste is accepted: each adapter, in-process configuration and vLLM line, each setting."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from door_support import ROOT, missing, pasted

from kvstore.lmcache import KVStoreConnectorAdapter, KVStoreStorageBackend
from kvstore.lmcache.config import _STORAGE_CHECKS, DoorConfig, StorageConfig

DOCUMENT = ROOT / "docs" / "lmcache.md"
PLUGIN = "remote_storage_plugin.kvstore."
ADAPTERS = pasted(r"--l2-adapter '(\{.*?\})'", DOCUMENT)
STORAGE = "storage_plugin.kvstore."


@pytest.mark.parametrize("line", ADAPTERS)
def test_a_pasted_adapter_line_is_accepted(line: dict) -> None:
    assert line["class_name"] == "KVStoreL2Adapter"
    assert DoorConfig.from_mapping(line["adapter_params"], "adapter_params").path


@pytest.mark.parametrize("document", [ROOT / "README.md", DOCUMENT], ids=lambda path: path.name)
def test_a_pasted_in_process_configuration_is_accepted(document: Path) -> None:
    configurations = [
        yaml.safe_load(text)["extra_config"]
        for text in re.findall(r"```yaml\n(.*?)```", document.read_text(), re.DOTALL)
    ]
    assert configurations
    for extra in configurations:
        if STORAGE + "path" in extra:
            settings = {name.removeprefix(STORAGE): value for name, value in extra.items()}
            assert settings.pop("module_path") == "kvstore.lmcache"
            assert settings.pop("class_name") == KVStoreStorageBackend.__name__
            assert StorageConfig.from_mapping(settings, "extra_config").buffer_bytes
            continue
        settings = {name.removeprefix(PLUGIN): value for name, value in extra.items() if name.startswith(PLUGIN)}
        assert settings.pop("module_path") == "kvstore.lmcache"
        assert settings.pop("class_name") == KVStoreConnectorAdapter.__name__
        assert DoorConfig.from_mapping(settings, "extra_config").path


def test_a_pasted_line_for_vllm_says_what_to_do_when_a_load_fails() -> None:
    found = re.findall(r"--kv-transfer-config '(\{.*?\})'", DOCUMENT.read_text(), re.DOTALL)
    lines = [json.loads(line) for line in found]
    assert [one["kv_connector"] for one in lines] == ["LMCacheMPConnector", "LMCacheConnectorV1"]
    assert {one["kv_load_failure_policy"] for one in lines} == {"recompute"}


def test_every_setting_is_in_the_document() -> None:
    assert missing(_STORAGE_CHECKS, DOCUMENT.read_text()) == []
