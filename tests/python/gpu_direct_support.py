# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A process in which blocks get into GPU memory by cuFile: the fakes of tests/fakes, and /proc/modules where the kernel
has none. It is a process of its own, because the first driver and the first cuFile of a process stay.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from gpu_support import build_fake, build_fake_cufile, build_proc_modules

_PRELUDE = """
import json, os, sys
sys.path[:0] = {paths!r}
from gpu_support import FakeGpu
gpu = FakeGpu(os.environ["KVSTORE_LIBCUDA"])
"""


def direct_environment(folder: Path) -> dict[str, str]:
    """The environment of such a process; the libraries are made in ``folder``."""
    cuda, cufile, modules = build_fake(folder), build_fake_cufile(folder), build_proc_modules(folder)
    if cuda is None or cufile is None or modules is None:
        pytest.skip("a C++ compiler is missing")
    made = {
        **os.environ,
        "KVSTORE_LIBCUDA": cuda,
        "KVSTORE_LIBCUFILE": cufile,
        "FAKE_CUFILE_SAYS_DIRECT": "1",
    }
    if not Path("/proc/modules").exists():
        made["LD_PRELOAD"] = modules
    return made


def run_direct(environment: dict[str, str], body: str, *paths: Path) -> Any:
    """Run Python that knows ``gpu``, a fake one, and prints JSON at the end, with ``paths`` to import from."""
    prelude = _PRELUDE.format(paths=[str(path) for path in (Path(__file__).parent, *paths)])
    child = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(body)],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    told = json.loads(child.stdout.splitlines()[-1])
    if "nvcc" in json.dumps(told):
        pytest.skip("nvcc was missing when this was built: what is read directly cannot be verified")
    return told
