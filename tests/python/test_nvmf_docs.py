# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""docs/nvmf.md says what nvmf-setup does: its plans are the program's output for the file that is on the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from nvmf_support import FakeConfigfs

from kvstore.nvmf.cli import Machine, build_parser, main
from kvstore.nvmf.host import LocalHost
from kvstore.nvmf.spec import Connection, Spec
from kvstore.nvmf.target import Target
from kvstore.nvmf.tree import DirectoryTree

PAGE = (Path(__file__).resolve().parents[2] / "docs/nvmf.md").read_text()
BY_ID = "/dev/disk/by-id/"


def block(opening: str) -> str:
    found = re.search(rf"^```{opening}(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found, opening
    return found[1]


@pytest.mark.parametrize("words", [("plan",), ("plan", "--host", "decode1")], ids=["target", "host"])
def test_the_plans_on_the_page_are_the_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(block("yaml\n").replace(BY_ID, f"{tmp_path}/"))
    for name in ("nvme-DRIVE_A", "nvme-DRIVE_B"):
        (tmp_path / name).open("wb").truncate(1 << 26)

    def target(spec: Spec) -> Target:
        return Target(spec, FakeConfigfs(), record_path=tmp_path / "record", missing=list)

    def host(spec: Spec, name: str) -> LocalHost:
        return LocalHost(spec, name, DirectoryTree(tmp_path), missing=list)

    assert main([words[0], str(file), *words[1:]], Machine(target, host)) == 0
    said = capsys.readouterr().out.replace(f"{tmp_path}/", BY_ID)
    shown = " ".join(["nvmf-setup", words[0], "pool.yaml", *words[1:]])
    assert block(rf"console\n\$ {re.escape(shown)}\n") == said


def test_the_page_names_every_setting_with_its_default() -> None:
    for name, value in vars(Connection()).items():
        assert f"`{name}` {value}" in PAGE


def test_the_page_names_every_verb() -> None:
    help_text = build_parser().format_help()
    for verb in ("plan", "target", "host", "check", "pool", "persist"):
        assert verb in help_text
        assert f"`{verb} " in PAGE


def test_the_file_on_the_page_is_complete() -> None:
    assert set(yaml.safe_load(block("yaml\n"))) == {"subsystems", "ports", "hosts"}
