# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of kvbench share: running it on a small file, and an engine that does wrong on purpose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hdrh", reason="hdrhistogram is missing: pip install 'nvme-kvstore[bench]'")
pytest.importorskip("yaml", reason="PyYAML is missing: pip install 'nvme-kvstore[bench]'")

from kvstore.bench.content import Buffers
from kvstore.bench.engines.base import Engine, Op, Work
from kvstore.cli import main


def bench(folder: Path, *arguments: str, status: int = 0) -> dict[str, Any]:
    """The document of ``kvstore bench``, on a file of its own; 32 blocks of 64 KiB where nothing else is said."""
    output = folder / "result.json"
    small = ["--filename", str(folder / "bench.img"), "--size=2m", "--bs=64k"]
    sizes = [option for option in small[2:] if not any(a.startswith(("--bs", "--shape", "--size")) for a in arguments)]
    found = main(
        ["bench", "--eta=never", "--output", str(output), "--output-format=json", *small[:2], *sizes, *arguments]
    )
    assert found == status
    document: dict[str, Any] = json.loads(output.read_text())
    return document


def one_job(folder: Path, *arguments: str, status: int = 0) -> dict[str, Any]:
    """The only job of such a run."""
    (job,) = bench(folder, *arguments, status=status)["jobs"]
    return dict(job)


class MemoryEngine(Engine):
    """A dict. Knows what it was asked for; subclasses spoil what it brings."""

    name = "memory"
    operations = frozenset({"get", "put", "lookup"})

    def __init__(self) -> None:
        self.blocks: dict[int, bytes] = {}
        self.asked: list[tuple[Op, list[int]]] = []

    def open(self, work: Work) -> None:
        self.work = work

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        self.asked.append((op, list(numbers)))
        for row, number in enumerate(numbers):
            view = buffers.view(row, self.work.bytes_of(number))
            if op == "put":
                self.blocks[number] = bytes(view)
                self.blocks.pop(number - self.work.population, None)
            elif op == "get":
                view[:] = self.blocks[number]
        return None

    def close(self) -> None:
        self.blocks.clear()
