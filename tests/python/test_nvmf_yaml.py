# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A YAML file is values or one ConfigError, whatever is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("yaml", reason="PyYAML is missing: pip install 'nvme-kvstore[nvmf]'")

from kvstore.errors import ConfigError
from kvstore.nvmf.yaml_file import read_yaml


def read(folder: Path, text: str) -> object:
    (folder / "pool.yaml").write_text(text)
    return read_yaml(folder / "pool.yaml")


def test_values_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, "a: [1, two, {b: 3}]\nc: text\n") == {"a": [1, "two", {"b": 3}], "c": "text"}


@pytest.mark.parametrize(
    "text",
    [
        "serial: 2026-13-45",
        "serial: 2026-11-30 99:00:00",
        "a: " + "9" * 5000,
        "a: !!int foo",
        "a: !!int ''",
        "a: !!float foo",
        "a: !!bool foo",
        "a: !!timestamp foo",
        "a: !!python/object:os.system x",
        "a: {b: *absent}",
        "a: [",
        "\ta: b",
        "a: \x00",
    ],
)
def test_what_cannot_be_read_is_one_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"pool\.yaml "):
        read(tmp_path, text)


@pytest.mark.parametrize("depth", [33, 400, 100_000])
def test_lists_within_lists_without_end_are_refused_at_once(tmp_path: Path, depth: int) -> None:
    with pytest.raises(ConfigError, match="line 1: lists within lists, deeper than 32"):
        read(tmp_path, "a: " + "[" * depth)


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", "list:\n- {a: 1, a: 2}\n", "a: {b: {c: 1, c: 1}}\n"])
def test_a_name_that_is_there_twice_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="is there twice"):
        read(tmp_path, text)


def test_an_alias_that_leads_to_itself_ends(tmp_path: Path) -> None:
    assert isinstance(read(tmp_path, "a: &x [1, *x]"), dict)


def test_a_file_of_absurd_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="such a file has a few thousand"):
        read(tmp_path, "#" * ((1 << 20) + 1))
