# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What a build says and makes: the hint when headers are missing, the libraries the module needs, its version.

Method: setup.py is run as pip runs it, with CMake told to look for headers in an empty folder; the installed module is
looked at with ldd.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

INSTALL_HINTS = ["apt-get install -y liburing-dev libxxhash-dev", "dnf install -y liburing-devel xxhash-devel"]


def test_missing_headers_end_in_the_command_that_installs_them(tmp_path: Path) -> None:
    nothing = tmp_path / "empty"
    nothing.mkdir()
    environment = os.environ | {
        "KVSTORE_BUILD_DIR": str(tmp_path / "build"),
        "CMAKE_ARGS": f"-DCMAKE_FIND_ROOT_PATH={nothing} -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY",
    }
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(tmp_path), "--build-temp", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    for hint in INSTALL_HINTS:
        # At the end of a line, so that it can be copied.
        assert re.search(rf" {re.escape(hint)}$", done.stderr, re.MULTILINE), done.stderr
    assert "Traceback" not in done.stderr


def installed_module() -> Path:
    core = pytest.importorskip("kvstore._core", reason="kvstore is not built")
    return Path(core.__file__)


def test_the_module_links_nothing_of_nvidia_and_little_else() -> None:
    output = subprocess.run(["ldd", installed_module()], capture_output=True, text=True, check=True).stdout
    needed = {Path(line.split()[0]).name.split(".so")[0] for line in output.splitlines()}
    allowed = {"linux-vdso", "liburing", "libstdc++", "libgcc_s", "libc", "libm", "libpthread", "ld-linux-x86-64"}
    sanitizers = {"libasan", "libubsan", "libtsan"}
    assert needed - sanitizers <= allowed


def test_the_module_cannot_be_told_to_break_its_rules() -> None:
    assert b"KVS_MUTATE" not in installed_module().read_bytes()


def test_the_version_is_that_of_pyproject() -> None:
    import kvstore

    (line,) = [line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version = ")]
    assert line == f'version = "{kvstore.__version__}"'
