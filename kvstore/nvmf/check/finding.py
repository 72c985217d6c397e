# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Finding: one line of what `nvmf-setup check` has to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Verdict"]

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """What was found about one subject.

    Parameters
    ----------
    subject : what it is about, the same for every verdict: ``"mlx5_0/1 MTU"``.
    verdict : ``"warn"``: works, but slower or less safely, or nobody could tell; ``"fail"``: does not work.
    told : what was found, with the numbers.
    mend : what to do about it; empty exactly when the verdict is ok.
    source : where the answer came from: ``"pyverbs"``, ``"sysfs"``, a command's name.
    """

    subject: str
    verdict: Verdict
    told: str
    mend: str = ""
    source: str = ""
