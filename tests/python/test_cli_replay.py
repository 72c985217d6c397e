# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""kvstore replay: what it prints, what it refuses, and that its numbers follow from each other.

Method: ``main()`` in this process, on a seeded trace; formulas checked against figures worked out elsewhere.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from replay_support import conversations, write_mooncake

from kvstore.bench.shapes import load_shape, shape_names
from kvstore.cli import main
from kvstore.replay import MODELS, POLICIES

ROOT = Path(__file__).resolve().parents[2]
BLOCK_BYTES = 1 << 20
TTFT = "--block-bytes", "1MiB", "--compute", "qwen2.5-32b"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(write_mooncake(conversations(seed=2, requests=150), tmp_path / "trace.jsonl"))


def replayed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["replay", *arguments, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_reports_hits_with_its_write_amplification(
    trace: str, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = replayed(capsys, trace, "--policy", policy, "--capacity", "20%")
    assert 0 < report["prefix_hit"] <= report["block_hit"] < 1
    assert report["writes_per_lookup"] > 0
    assert report["write_amplification"] >= 1
    assert report["capacity_blocks"] == report["blocks_unique"] // 5
    assert (report["blocks_per_region"] == 8) == POLICIES[policy].by_region


def test_bytes_follow_from_blocks_and_time(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = replayed(capsys, trace, *TTFT, "--capacity", "128MiB", "--policy", "lru")
    assert report["capacity_blocks"] == 128
    assert report["bytes_written"] == pytest.approx(report["writes_per_lookup"] * report["lookups"] * BLOCK_BYTES)
    assert report["bytes_written_per_day"] == pytest.approx(report["bytes_written"] / report["seconds"] * 86400)
    assert report["drive_writes_per_day"] == pytest.approx(report["bytes_written_per_day"] / (128 * BLOCK_BYTES))
    assert report["read_gb_per_s_peak"] >= report["read_gb_per_s"] > 0
    read = report["prefix_hit"] * report["lookups"] * BLOCK_BYTES
    assert report["read_gb_per_s"] == pytest.approx(read / report["seconds"] / 1e9)
    assert 0 < report["ttft_saved_s"] < report["ttft_computed_s"]


def test_the_busiest_window_of_a_short_trace_is_the_whole_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = '{"timestamp": %d, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}\n'
    (tmp_path / "short.jsonl").write_text(request % 0 + request % 5000)
    report = replayed(capsys, str(tmp_path / "short.jsonl"), "--block-bytes", "1MiB", "--capacity", "100%")
    assert report["read_gb_per_s_peak"] == pytest.approx(report["read_gb_per_s"]) == 2 * BLOCK_BYTES / 5 / 1e9


def test_a_load_slower_than_computing_saves_nothing(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    slow = replayed(capsys, trace, *TTFT, "--read-bytes-per-s", "1")
    fast = replayed(capsys, trace, *TTFT, "--read-bytes-per-s", "1e15")
    assert slow["ttft_saved_s"] == 0
    assert slow["loads_declined"] > 50
    assert fast["loads_declined"] == 0
    assert fast["ttft_saved_s"] > 0


# Bytes per token, floating-point operations a second, GB/s from which loading 2, 8, 32 and 128 Ki tokens wins.
BREAK_EVEN = {
    "qwen2.5-32b": (262_144, 312e12 * 0.5, (0.62, 0.58, 0.47, 0.27)),
    "llama-2-7b": (524_288, 989e12 * 0.45, (16.6, 14.9, 10.6, 4.9)),
    "llama-3-70b": (327_680, 8 * 989e12 * 0.4, (7.2, 6.8, 5.6, 3.3)),
    "qwen3-coder-480b": (253_952, 8 * 989e12 * 0.4, (11.0, 9.7, 6.7, 3.0)),
    "deepseek-v3": (70_272, 8 * 989e12 * 0.4, (2.8, 2.4, 1.4, 0.55)),
}


@pytest.mark.parametrize("model", BREAK_EVEN)
def test_the_break_even_bandwidth_is_what_others_worked_out(model: str) -> None:
    bytes_per_token, operations_per_s, expected = BREAK_EVEN[model]
    for tokens, gb_per_s in zip((2048, 8192, 32768, 131072), expected, strict=True):
        found = MODELS[model].break_even_bytes_per_s(tokens, bytes_per_token, operations_per_s) / 1e9
        assert found == pytest.approx(gb_per_s, rel=0.04), tokens


@pytest.mark.parametrize("shape", shape_names())
def test_a_shape_gives_the_block_of_all_ranks_and_the_prefill(
    trace: str, shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = replayed(capsys, trace, "--shape", shape)
    loaded = load_shape(shape)
    assert report["block_bytes"] == loaded.bytes_per_token * 512 * loaded.tp_size
    assert report["prefill"]["layers"] == loaded.layers
    assert report["operations_per_s"] == 445e12 * loaded.tp_size


def test_the_store_is_run_beside_its_simulation(
    trace: str, pool_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = replayed(capsys, trace, "--store", str(pool_file), "--block-bytes", "1MiB", "--capacity", "20%")
    assert report["store"]["prefix_hit"] == pytest.approx(report["prefix_hit"], abs=0.02)
    assert report["store"]["bytes_wrong"] == 0
    assert 1 < report["store"]["write_amplification"] < 1.02
    assert main(["replay", trace, "--store", str(pool_file)]) == 2  # nothing is overwritten


def test_people_get_the_same_in_words(trace: str, pool_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", trace, *TTFT, "--store", str(pool_file)]) == 0
    text = capsys.readouterr().out
    for words in ("prefix hit", "write amplification", "drive writes a day", "first token", "all as put"):
        assert words in text


@pytest.mark.parametrize(
    "arguments",
    [("--capacity", "0%"), ("--capacity", "1GiB"), ("--compute", "llama-3-70b"), ("--block-bytes", "0")],
)
def test_what_cannot_be_is_refused(trace: str, arguments: tuple[str, ...]) -> None:
    assert main(["replay", trace, *arguments]) == 2


def test_rates_of_a_single_moment_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_mooncake(conversations(seed=2, requests=1), tmp_path / "trace.jsonl"))
    assert main(["replay", path, "--capacity", "100%"]) == 0
    assert main(["replay", path, "--capacity", "100%", "--block-bytes", "1MiB"]) == 2
    assert "at one time" in capsys.readouterr().err


def test_a_trace_that_is_not_there_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path / "none.jsonl")]) == 3
    assert "none.jsonl" in capsys.readouterr().err


def test_every_field_and_policy_is_documented(trace: str, pool_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = replayed(capsys, trace, *TTFT, "--store", str(pool_file))
    named = set(re.findall(r"`([\w.-]+)`", (ROOT / "docs/replay.md").read_text()))
    fields = (
        set(report) | {f"store.{name}" for name in report["store"]} | {f"prefill.{name}" for name in report["prefill"]}
    )
    assert fields - named == set()
    assert set(POLICIES) - named == set()
