# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Loading modules: a modprobe of the tests' own that does what real ones do, hanging included."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kvstore.errors import ConfigError
from kvstore.nvmf.modules import load_modules, missing_modules

NAME = "kvstore-no-such-module"


@pytest.fixture
def modprobe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where its script is to be; it comes before the system's."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    program = tmp_path / "modprobe"
    program.touch(0o755)
    return program


def test_a_modprobe_that_hangs_with_a_child_that_holds_its_output_is_told_in_time(modprobe: Path) -> None:
    modprobe.write_text("#!/bin/sh\n(trap '' HUP; exec setsid sleep 30) &\nsleep 30\n")
    started = time.monotonic()
    with pytest.raises(ConfigError, match=rf"modprobe did not end within 0\.2 s.*modprobe {NAME}, see dmesg"):
        load_modules([NAME], within_s=0.2)
    assert time.monotonic() - started < 20


def test_what_modprobe_says_is_told_once_and_with_the_package(modprobe: Path) -> None:
    modprobe.write_text(
        '#!/bin/sh\necho "modprobe: FATAL: Module $1 not found in directory /lib/modules" >&2\nexit 1\n'
    )
    with pytest.raises(ConfigError, match=rf"^modprobe {NAME}: FATAL: Module {NAME} not found .*linux-modules-extra"):
        load_modules([NAME])


def test_a_module_that_is_there_is_not_loaded_again(modprobe: Path) -> None:
    there = sorted(path.name for path in Path("/sys/module").iterdir())[:1]
    modprobe.write_text("#!/bin/sh\nexit 1\n")
    load_modules(there)
    assert missing_modules([*there, NAME]) == [NAME]
