# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Findings as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvstore.nvmf.check.finding import Finding

__all__ = ["report"]


def report(found: Sequence[Finding]) -> Iterator[str]:
    """A line for each, one more for its mend, and the counts."""
    width = max((len(one.subject) for one in found), default=0)
    for one in found:
        source = f"  ({one.source})" if one.source else ""
        yield f"{one.verdict:<4}  {one.subject:<{width}}  {one.told}{source}"
        if one.mend:
            yield f"{'':<{width + 6}}  mend: {one.mend}"
    verdicts = [one.verdict for one in found]
    yield f"{verdicts.count('ok')} ok, {verdicts.count('warn')} warnings, {verdicts.count('fail')} failed"
