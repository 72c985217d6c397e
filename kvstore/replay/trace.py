# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Request traces: which blocks each request asked for, in which order. docs/replay.md has both forms of a file."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kvstore.errors import ConfigError

__all__ = ["Request", "Trace", "read_trace"]

_MOONCAKE_BLOCK_TOKENS = 512
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt: its blocks from the first on, each standing for itself and all before it."""

    time_s: float
    tokens: int
    output_tokens: int
    blocks: tuple[int, ...]

    def full_blocks(self, block_tokens: int) -> int:
        """How many of the blocks are not partial; only the last one can be."""
        return min(self.tokens // block_tokens, len(self.blocks))


@dataclass(frozen=True)
class Trace:
    """Requests in order of time. Blocks are numbers, equal where the trace names the same block."""

    name: str
    requests: list[Request] = field(repr=False)
    block_tokens: int

    @cached_property
    def lookups(self) -> int:
        """Blocks asked for, over all requests."""
        return sum(len(request.blocks) for request in self.requests)

    @cached_property
    def blocks_unique(self) -> int:
        """Blocks asked for at least once: what an infinite cache would hold."""
        return len(set(itertools.chain.from_iterable(request.blocks for request in self.requests)))

    @property
    def seconds(self) -> float:
        """From the first request to the last."""
        return self.requests[-1].time_s - self.requests[0].time_s


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace.

    Parameters
    ----------
    path : JSON lines, of Mooncake's form or the generic one.

    Raises
    ------
    ConfigError : it is none; the message names the line.
    OSError : the file cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as file:
            block_tokens, requests = _read(os.fspath(path), file)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{os.fspath(path)} is no text in UTF-8: {error}") from error
    return Trace(Path(path).name, requests, block_tokens)


def _read(name: str, file: Iterable[str]) -> tuple[int, list[Request]]:
    lines = ((number, _object(name, number, line)) for number, line in enumerate(file, 1) if line.strip())
    first = next(lines, None)
    if first is None:
        raise ConfigError(f"{name} has no request")
    number, record = first
    if "kvstore_trace" in record:
        block_tokens = _header(name, number, record)
        requests = list(_requests(name, lines, block_tokens, ("time_s", "blocks", "tokens", "output_tokens"), 1))
    elif "hash_ids" in record:
        block_tokens = _MOONCAKE_BLOCK_TOKENS
        fields = ("timestamp", "hash_ids", "input_length", "output_length")
        requests = list(_requests(name, itertools.chain([first], lines), block_tokens, fields, 1000))
    else:
        raise ConfigError(f"{name}, line {number}: neither a request of Mooncake's nor a header with kvstore_trace")
    if not requests:
        raise ConfigError(f"{name} has no request")
    return block_tokens, requests


def _object(name: str, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{name}, line {number} is no JSON: {error}") from error
    if not isinstance(record, dict):
        raise ConfigError(f"{name}, line {number} is no JSON object")
    return record


def _header(name: str, number: int, record: dict[str, Any]) -> int:
    if record["kvstore_trace"] != _VERSION:
        raise ConfigError(f"{name}, line {number}: kvstore_trace is {record['kvstore_trace']!r}, known is {_VERSION}")
    return int(_number(name, number, record, "block_tokens", 1))


def _requests(
    name: str,
    lines: Iterator[tuple[int, dict[str, Any]]],
    block_tokens: int,
    fields: tuple[str, str, str, str],
    units_per_second: float,
) -> Iterator[Request]:
    time_field, blocks_field, tokens_field, output_field = fields
    numbers: dict[int | str, int] = {}
    latest = float("-inf")
    for number, record in lines:
        named = record.get(blocks_field)
        if not isinstance(named, list) or not named or not all(isinstance(one, (int, str)) for one in named):
            raise ConfigError(f"{name}, line {number}: {blocks_field} is no list of one or more numbers or texts")
        if len(set(named)) != len(named):
            raise ConfigError(
                f"{name}, line {number}: {blocks_field} names a block twice; each stands for its place too"
            )
        blocks = tuple([numbers.setdefault(one, len(numbers)) for one in named])
        time_s = _number(name, number, record, time_field, 0) / units_per_second
        if time_s < latest:
            raise ConfigError(f"{name}, line {number}: {time_field} is earlier than the one before")
        latest = time_s
        tokens = int(_number(name, number, record, tokens_field, 1, len(named) * block_tokens))
        if not (len(named) - 1) * block_tokens < tokens <= len(named) * block_tokens:
            raise ConfigError(
                f"{name}, line {number}: {tokens_field} is {tokens}, that is not {len(named)} blocks of {block_tokens}"
            )
        yield Request(time_s, tokens, int(_number(name, number, record, output_field, 0, 0)), blocks)


def _number(
    name: str, number: int, record: dict[str, Any], field_name: str, least: float, default: float | None = None
) -> float:
    value = record.get(field_name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < 1 << 53:
        raise ConfigError(f"{name}, line {number}: {field_name} is {value!r}, not a number of {least:g} or more")
    return value
