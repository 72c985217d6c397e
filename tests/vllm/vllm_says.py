# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""How a process with an engine in it tells a test what it does: lines of JSON among those of vLLM and its libraries."""

from __future__ import annotations

import json
from typing import Any

PREFIX = "STEP "


def say(**what: Any) -> None:
    print(PREFIX + json.dumps(what), flush=True)
