# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""``kvstore bench order``: requests that ask at once, in order and with fair sharing.

Method: small files; how requests are served is told from a store that takes a second for each block on a clock of its
own.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench_support import MemoryEngine

from kvstore.bench import order
from kvstore.bench.content import Buffers
from kvstore.bench.engines.base import Engine, Op, Work
from kvstore.bench.engines.kvstore_engine import KvStoreEngine
from kvstore.bench.order import OrderSpec, Served, measure_order
from kvstore.cli import main
from kvstore.errors import ConfigError, ForeignDataError


def _small(folder: Path, **changes: object) -> OrderSpec:
    spec = {"filename": str(folder / "o.img"), "requests": 6, "blocks": 8, "block_bytes": 1 << 20, "repetitions": 1}
    return OrderSpec(**{**spec, **changes})  # type: ignore[arg-type]


def _with(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = order.make_engine
    monkeypatch.setattr(order, "make_engine", lambda name: engine if name == engine.name else made(name))


class _Serial(KvStoreEngine):
    """In the place of this store: a block takes a second, and jobs are served as they come."""

    def open(self, work: Work) -> None:
        self.work, self.blocks, self.served_s = work, dict[bytes, bytes](), 0.0
        self.space: Any = self

    def buffers(self) -> Buffers:
        return Engine.buffers(self)

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        for row, number in enumerate(numbers):
            self.blocks[self.key(number)] = bytes(buffers.view(row, self.work.block_bytes))
        return None

    def get_many(self, keys: Sequence[bytes], views: Sequence[memoryview]) -> Any:
        for key, view in zip(keys, views, strict=True):
            view[:] = self.blocks[key]
        self.served_s += len(keys)
        hits = [SimpleNamespace(status="hit")] * len(keys)
        return SimpleNamespace(elapsed_s=self.served_s, wait=lambda: hits)

    def flush(self) -> None:
        """Nothing is kept back."""

    def facts(self) -> dict[str, Any]:
        return {"path": "none"}


def test_in_order_is_a_job_a_request_and_fair_sharing_a_block_of_each_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with(_Serial(), monkeypatch)
    ours, fair = measure_order(_small(tmp_path, block_bytes=4096))
    assert ours.completions_s[0] == pytest.approx([8, 16, 24, 32, 40, 48], abs=0.5)
    assert fair.completions_s[0] == pytest.approx([48 + n for n in (43, 44, 45, 46, 47, 48)], abs=0.5)


def test_every_block_is_verified_and_nothing_is_left_behind(tmp_path: Path) -> None:
    ours, fair = measure_order(_small(tmp_path))
    assert (ours.verified, fair.verified, ours.wrong, fair.wrong) == (48, 48, [], [])
    assert list(tmp_path.iterdir()) == []


def test_means_are_of_requests_and_medians_of_repetitions() -> None:
    served = Served("a", "in order", [[1.0, 3.0], [2.0, 6.0], [9.0, 11.0]], fair_mean_s=8.0)
    assert (served.mean_s, served.last_s, served.ratio) == (4.0, 6.0, 0.5)
    assert served.mean_of_last == pytest.approx(4 / 6)


class _Confused(MemoryEngine):
    """Brings the block beside the one that is asked for."""

    name = "preadv"

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        return super().batch(op, [number ^ 1 for number in numbers] if op == "get" else numbers, buffers)


def test_what_a_rival_brings_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _with(_Confused(), monkeypatch)
    output = tmp_path / "result.json"
    arguments = ["--requests=3", "--blocks=4", "--bs=64k", "--repetitions=1", f"--output={output}", "--engine=preadv"]
    assert main(["bench", "order", f"--filename={tmp_path / 'o.img'}", *arguments]) == 1
    served = json.loads(output.read_text())["served"]
    assert [len(one["wrong"]) for one in served] == [0, 0, 12]


class _Broken(MemoryEngine):
    """Is full when it is asked for anything."""

    name = "preadv"

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        if op == "get":
            raise RuntimeError("no more")
        return super().batch(op, numbers, buffers)


def test_a_rival_that_fails_says_so_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _with(_Broken(), monkeypatch)
    results = measure_order(_small(tmp_path, engines=("preadv", "file-per-key"), block_bytes=65536))
    assert [one.engine for one in results] == ["kvstore", "kvstore", "preadv", "file-per-key"]
    assert results[2].failed == "RuntimeError: no more"
    assert not results[2].is_measured
    assert results[3].verified == 48
    assert results[3].ratio == pytest.approx(results[3].mean_s / results[3].fair_mean_s)


class _Panic(BaseException):
    """As of a library in Rust."""


class _Panicking(_Broken):
    """Panics at its first put, or at its first get."""

    def __init__(self, where: Op) -> None:
        super().__init__()
        self.where = where

    def batch(self, op: Op, numbers: Sequence[int], buffers: Buffers) -> Sequence[bool] | None:
        if op == self.where:
            raise _Panic("index out of bounds")
        return MemoryEngine.batch(self, op, numbers, buffers)


@pytest.mark.parametrize("where", ["put", "get"])
def test_a_panic_in_a_rivals_library_is_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Op) -> None:
    _with(_Panicking(where), monkeypatch)
    *_, rival = measure_order(_small(tmp_path, engines=("preadv",), block_bytes=65536))
    assert "_Panic: index out of bounds" in rival.failed
    assert list(tmp_path.iterdir()) == []


def test_every_rival_is_compared_with_the_turns_beside_it(tmp_path: Path) -> None:
    ours, fair, other = measure_order(_small(tmp_path, engines=("preadv",), block_bytes=65536, repetitions=2))
    assert [len(one.completions_s) for one in (ours, fair, other)] == [4, 4, 2]
    assert other.fair_mean_s == statistics.median(statistics.mean(once) for once in fair.completions_s[2:])


def test_somebodys_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "o.img.preadv").write_bytes(b"mine")
    with pytest.raises(ForeignDataError):
        measure_order(_small(tmp_path, engines=("preadv",)))
    assert (tmp_path / "o.img.preadv").read_bytes() == b"mine"


@pytest.mark.parametrize(
    "changes", [{"engines": ("fio",)}, {"engines": ("nobody",)}, {"filename": "a,b,c", "engines": ("preadv",)}]
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        measure_order(_small(tmp_path, **changes))
