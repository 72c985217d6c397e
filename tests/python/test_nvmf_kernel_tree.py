# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""KernelTree: changes configfs as one would oneself, and comes back from what the kernel does not end.

Method: a folder, and in the place of an attribute that waits a FIFO, which nobody reads.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvstore.nvmf.kernel_tree import KernelTree
from kvstore.nvmf.tree import KernelWaits


def test_every_change_is_done_and_a_refusal_has_its_errno(tmp_path: Path) -> None:
    tree = KernelTree(tmp_path)
    tree.mkdir("ports")
    tree.mkdir("ports/1")
    (tmp_path / "ports/1/addr_traddr").touch()
    tree.write("ports/1/addr_traddr", "10.0.0.1 'é")
    assert tree.read("ports/1/addr_traddr") == "10.0.0.1 'é"
    tree.link("ports/link", "ports/1")
    assert (tmp_path / "ports/link").readlink() == tmp_path / "ports/1"
    with pytest.raises(FileExistsError):
        tree.mkdir("ports/1")
    with pytest.raises(FileNotFoundError):
        tree.write("ports/1/enable", "1")
    tree.unlink("ports/link")
    tree.mkdir("ports/2")
    tree.rmdir("ports/2")
    assert tree.names("ports") == ["1"]


def test_a_change_that_the_kernel_does_not_end_is_left_and_the_next_one_is_done(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "enable")
    tree = KernelTree(tmp_path, within_s=0.2)
    with pytest.raises(KernelWaits, match=r"not ended this within 0\.2 s, and may yet"):
        tree.write("enable", "0")
    tree._within_s = 60
    tree.mkdir("hosts")
    assert tree.names("") == ["enable", "hosts"]


def test_a_key_is_on_no_command_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dhchap_key")
    tree = KernelTree(tmp_path)
    tree.mkdir("hosts")
    assert tree._child is not None
    command = Path(f"/proc/{tree._child.pid}/cmdline").read_text()
    tree.rmdir("hosts")
    assert str(tmp_path) not in command
