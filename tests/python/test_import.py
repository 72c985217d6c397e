# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What ``import kvstore`` says when it is not ours that is imported, or not a whole one; and what it costs.

Method: copies of the package in folders of their own, with made-up metadata of a foreign distribution beside them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvstore

PACKAGE = Path(kvstore.__file__).parent


@pytest.fixture
def copied(tmp_path):
    """A site folder with a copy of the package's Python files, and the compiled core."""
    shutil.copytree(PACKAGE, tmp_path / "kvstore", ignore=shutil.ignore_patterns("__pycache__"), symlinks=False)
    return tmp_path


def imported(site: Path, source: str = "import kvstore") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", source], env={"PYTHONPATH": str(site)}, cwd=site, capture_output=True, text=True
    )


def test_a_foreign_distribution_in_our_place_is_named_with_the_mend(copied):
    info = copied / "kvstore-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvstore\nVersion: 1.2.3\n")
    (info / "RECORD").write_text("kvstore/__init__.py,,\nkvstore-1.2.3.dist-info/METADATA,,\n")
    done = imported(copied)
    assert done.returncode == 1
    assert "ImportError" in done.stderr
    assert "'kvstore 1.2.3' is another project" in done.stderr
    assert "pip uninstall kvstore" in done.stderr


def test_a_foreign_distribution_elsewhere_is_no_matter(copied, tmp_path):
    info = copied / "kvstore-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvstore\nVersion: 1.2.3\n")
    (info / "RECORD").write_text("other_package/__init__.py,,\n")
    assert imported(copied).returncode == 0


def test_a_package_that_was_not_built_says_how_to_build_it(copied):
    for core in (copied / "kvstore").glob("_core*.so"):
        core.unlink()
    done = imported(copied)
    assert done.returncode == 1
    assert "kvstore._core is not built" in done.stderr
    assert "pip install nvme-kvstore" in done.stderr


def test_a_core_of_another_python_is_named(copied):
    for core in (copied / "kvstore").glob("_core*.so"):
        core.rename(core.with_name("_core.cpython-30-x86_64-linux-gnu.so"))
    done = imported(copied)
    assert done.returncode == 1
    assert "built for another Python" in done.stderr


def test_import_brings_in_nothing_heavy(copied):
    done = imported(
        copied, "import kvstore, sys; print([m for m in ('numpy', 'torch', 'asyncio', 'rich') if m in sys.modules])"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_version_is_that_of_the_distribution():
    assert kvstore.__version__.count(".") == 2
