# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What stands beside every figure that is measured here: the machine, when, and by which command."""

from __future__ import annotations

import shlex
import sys
import time
from typing import Any

from kvstore.bench.machine import machine


def facts(command: str) -> dict[str, Any]:
    """JSON values. ``command`` is what is typed before the arguments that this process was given."""
    return machine() | {"date": time.strftime("%Y-%m-%d %H:%M"), "command": f"{command} {shlex.join(sys.argv[1:])}"}
