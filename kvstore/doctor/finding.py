# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What one check of the doctor has to say."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

__all__ = ["Finding", "Level"]

Level: TypeAlias = Literal["ok", "warn", "fail"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    Parameters
    ----------
    check : a word, the same for every outcome of a check.
    level : ``"ok"``, ``"warn"`` (works, but slower or less comfortably) or ``"fail"`` (does not work).
    text : what was found, with the numbers.
    mend : what to do about it; empty when there is nothing to do.
    path : the device it is about; empty when it is about the machine.
    """

    check: str
    level: Level
    text: str
    mend: str = ""
    path: str = ""
