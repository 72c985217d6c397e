# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A result as rows of text, for the terminal and for Markdown, from the document that is also written as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvstore.sizes import format_size

__all__ = ["CALL_COLUMNS", "COLUMNS", "call_rows", "crossover_lines", "markdown", "rows", "trouble"]

COLUMNS = (
    "pass", "tokens", "at a time", "requests", "TTFT p50 ms", "p90", "p99", "tokens/s", "prompt tokens/s",
    "cached tokens", "read from the store", "differing",
)  # fmt: skip
CALL_COLUMNS = (
    "pass",
    "tokens",
    "at a time",
    "lookups",
    "load jobs",
    "blocks",
    "bytes",
    "store jobs",
    "blocks",
    "bytes",
)
_CALLS = (
    "lookups", "load_jobs", "blocks_loaded", "bytes_loaded", "store_jobs", "blocks_stored", "bytes_stored",
)  # fmt: skip


def rows(document: Mapping[str, Any]) -> list[list[str]]:
    """One for each pass over a point."""
    return [
        [
            row["pass"], f"{row['tokens']:,}", str(row["concurrency"]), str(row["requests"]),
            *(f"{row['ttft_s'][name] * 1e3:,.1f}" for name in ("p50", "p90", "p99")),
            f"{row['output_tokens_per_s']:,.1f}", f"{row['prompt_tokens_per_s']:,.0f}",
            "unknown" if row["cached_tokens"] is None else f"{row['cached_tokens']:,.0f}",
            format_size(row["bytes_read"]), str(row["differing"]),
        ]
        for row in document["rows"]
    ]  # fmt: skip


def call_rows(document: Mapping[str, Any]) -> list[list[str]]:
    """What each request asked of the store; nothing where the engine does not tell."""
    return [
        [row["pass"], f"{row['tokens']:,}", str(row["concurrency"])]
        + [_number(row["counters"].get(name, 0) / row["requests"]) for name in _CALLS]
        for row in document["rows"]
        if row["counters"]
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) or value >= 1000 else f"{value:.2f}"


def trouble(document: Mapping[str, Any]) -> list[str]:
    """Why a pass is not what it is called."""
    told = []
    for row in document["rows"]:
        name = f"{row['pass']}, {row['tokens']} tokens, {row['concurrency']} at a time"
        if row["pass"] == "kvstore" and row["counters"] and not row["bytes_read"]:
            told.append(f"{name}: nothing was read from the store; are the prompts longer than a block?")
        if row["pass"] in ("gpu", "host") and row["bytes_read"]:
            told.append(
                f"{name}: {format_size(row['bytes_read'])} came from the store; the engine's cache is too small"
            )
        if row["pass"] == "cold" and row["bytes_read"]:
            told.append(f"{name}: not cold, the store had blocks of it; use an empty pool or another --randseed")
        if row["pass"] == "kvstore" and not row["counters"]:
            told.append(f"{name}: the engine does not tell what was read from the store")
    return told


def crossover_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """What the formulas said and what was measured; nothing where there were too few lengths."""
    found = document.get("crossover")
    if found is None:
        return
    predicted, measured = found["predicted_tokens"], found["measured_tokens"]
    low, high = found["measured_between"]
    where = f"at {measured:,.0f} tokens" if measured else "at no length" if low else "below the shortest prompt"
    yield (
        f"loading is quicker than computing from {predicted:,} tokens on, predicted; measured {where}"
        if predicted
        else f"loading is predicted to be slower up to the longest prompt; measured: crossing {where}"
    )
    if low and high:
        yield f"(computing was quicker up to {low:,} tokens, loading from {high:,} on)"
    yield (
        f"computing: {found['compute_base_s'] * 1e3:.1f} ms + operations / "
        f"{found['operations_per_s'] / 1e9:.1f} GFLOP/s; "
        f"loading: {found['load_base_s'] * 1e3:.1f} ms + bytes / {found['bytes_per_s'] / 1e9:.2f} GB/s, "
        f"{format_size(found['bytes_per_token'])} a token"
    )
    if found["deviations"]:
        parts = [f"{one['tokens']:,}: {one['computed']:+.0%} {one['loaded']:+.0%}" for one in found["deviations"]]
        yield "measured beside predicted, computing and loading: " + "; ".join(parts)


def markdown(document: Mapping[str, Any]) -> str:
    """Everything, to quote from."""
    lines = ["# Time to the first token", "", f"`{document['command']}`, {document['time']}", ""]
    lines += _table(COLUMNS, rows(document))
    calls = call_rows(document)
    if calls:
        lines += ["", "Of one request:", "", *_table(CALL_COLUMNS, calls)]
    lines += ["", *crossover_lines(document), *trouble(document)]
    return "\n".join(lines) + "\n"


def _table(columns: tuple[str, ...], listed: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (list(columns), ["---"] * len(columns), *listed)]
