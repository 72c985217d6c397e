# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: engines whose rows would have other bytes share no block, and no more of them are kept apart than that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm.v1.kv_offload.config import OffloadingGroupConfig
from vllm_tier import offloading_config

from kvstore.errors import ConfigError
from kvstore.vllm.config import RESERVED_IDENTITY
from kvstore.vllm.revision import revision_of
from kvstore.vllm.space import identity_of


def identity(**changed: Any) -> dict[str, Any]:
    return identity_of(offloading_config(**changed), 65536, "r1", {})


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "another/model"},
        {"dtype": "fp8_e4m3"},
        {"tokens_per_hash": 32},
        {"blocks_per_chunk": 8},
        {"kv_cache_layout": "LBNHC"},
        {"tp_size": 2},
        {"pp_size": 2},
        {"dcp_size": 2},
        {"replicated_layout": True},
        {"canonical_layout": True},
        {"is_parallelism_agnostic": True},
        {"groups": (OffloadingGroupConfig(16, ("layer.0",), 0),)},
        {"groups": (OffloadingGroupConfig(32, ("layer.0", "layer.1"), 0),)},
    ],
    ids=str,
)
def test_what_changes_the_bytes_changes_the_space(changed: dict[str, Any]) -> None:
    assert identity(**changed) != identity()


def test_row_bytes_revision_and_what_the_user_adds_are_part_of_it() -> None:
    config = offloading_config()
    spaces = [
        identity_of(config, 65536, "r1", {}),
        identity_of(config, 131072, "r1", {}),
        identity_of(config, 65536, "r2", {}),
        identity_of(config, 65536, "r1", {"rope": "yarn"}),
    ]
    assert all(a != b for number, a in enumerate(spaces) for b in spaces[:number])


def test_portable_rows_are_shared_by_all_parallel_sizes() -> None:
    assert identity(is_parallelism_agnostic=True, tp_size=2) == identity(is_parallelism_agnostic=True, tp_size=4)


def test_neither_the_engine_nor_its_replica_is_part_of_it() -> None:
    assert identity(engine_id="other", data_parallel_index=1) == identity()


def test_the_user_can_name_nothing_that_is_set_here() -> None:
    assert set(identity()) <= RESERVED_IDENTITY


def write_model(folder: Path, weights: bytes) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return str(folder)


def test_other_weights_at_one_path_are_another_revision(tmp_path: Path) -> None:
    weights = bytes(range(256)) * 4096
    first = revision_of(write_model(tmp_path / "m", weights), "tier")
    assert first == revision_of(write_model(tmp_path / "copy", weights), "tier")
    assert first != revision_of(write_model(tmp_path / "m", weights[::-1]), "tier")


def test_weights_that_cannot_be_read_are_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_model(tmp_path / "m", b"weights")

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match=r"tier\.revision is missing, and the weights cannot be read.*denied"):
        revision_of(model, "tier")


def test_a_name_stands_for_the_one_commit_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshots = tmp_path / "models--a--model" / "snapshots"
    with pytest.raises(ConfigError, match="no revision of it is"):
        revision_of("a/model", "tier")
    (snapshots / "abc").mkdir(parents=True)
    assert revision_of("a/model", "tier") == "abc"
    (snapshots / "def").mkdir()
    with pytest.raises(ConfigError, match=r"tier\.revision is missing.*2 revisions"):
        revision_of("a/model", "tier")
