# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What a forked process does: becomes a session of its own, that it can be killed with all it started, and runs."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any


def serve(output: Any, script: str, run: dict[str, Any], environment: dict[str, str]) -> None:
    """Run the ``main`` of a script of this folder, with all it prints in ``output``."""
    os.setsid()
    descriptor = output.detach()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    os.environ.update(environment)
    sys.path.insert(0, str(Path(__file__).parent))
    importlib.import_module(script).main(run)
