# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Traces are read in both forms, and what is no trace is refused with the line that says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from replay_support import conversations, write_mooncake

from kvstore.errors import ConfigError
from kvstore.replay import read_trace

HEADER = {"kvstore_trace": 1, "block_tokens": 256}


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_mooncakes_form_comes_back_as_it_was_written(tmp_path: Path) -> None:
    trace = conversations(seed=3, requests=50)
    read = read_trace(write_mooncake(trace, tmp_path / "trace.jsonl"))
    assert read.requests == trace.requests
    assert read.block_tokens == 512
    assert read.lookups == sum(len(request.blocks) for request in trace.requests)


def test_the_generic_form_has_names_of_any_kind_and_defaults(tmp_path: Path) -> None:
    path = written(
        tmp_path / "trace.jsonl",
        HEADER,
        {"time_s": 1.5, "blocks": ["a", "b"], "tokens": 300, "output_tokens": 7},
        "",
        {"time_s": 2, "blocks": ["a", "c", "b"]},
    )
    trace = read_trace(path)
    first, second = trace.requests
    assert trace.block_tokens == 256
    assert (first.tokens, first.output_tokens, second.tokens, second.output_tokens) == (300, 7, 768, 0)
    assert second.blocks == (first.blocks[0], 2, first.blocks[1])
    assert (first.full_blocks(256), second.full_blocks(256)) == (1, 3)
    assert trace.seconds == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "no request"),
        ([HEADER], "no request"),
        (["not json"], "line 1"),
        ([{"time_s": 0, "blocks": [1]}], "line 1"),
        ([HEADER, {"time_s": 0}], "line 2.*blocks"),
        ([HEADER, {"time_s": 0, "blocks": []}], "line 2.*blocks"),
        ([HEADER, {"time_s": 0, "blocks": [1, 1]}], "line 2.*twice"),
        ([HEADER, {"time_s": 0, "blocks": [1], "tokens": 257}], "line 2.*tokens"),
        ([HEADER, {"time_s": 0, "blocks": [1, 2], "tokens": 256}], "line 2.*tokens"),
        ([HEADER, {"time_s": 5, "blocks": [1]}, {"time_s": 4, "blocks": [1]}], "line 3.*time"),
        ([HEADER, {"time_s": "x", "blocks": [1]}], "line 2.*time_s"),
        ([{"kvstore_trace": 2, "block_tokens": 256}], "line 1"),
        ([{"kvstore_trace": 1, "block_tokens": 0}], "line 1.*block_tokens"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_line(tmp_path: Path, lines: list[object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_trace(written(tmp_path / "trace.jsonl", *lines))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_trace(path)
