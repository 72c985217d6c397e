# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""CPU time that counts for an engine: of its processes, of their children, of those that are gone.

Method: a known amount of work is done by this process, by a child, and by a child's child.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from kvstore.bench.cpu import CpuTime, cpu_of_children, cpu_time

BURN_S = 0.1
BURN = f"""
import time
while time.process_time() < {BURN_S}:
    pass
"""


def total(used: CpuTime) -> float:
    return used.usr + used.sys


def test_of_this_process() -> None:
    before, begun = cpu_time([os.getpid()]), time.process_time()
    while time.process_time() - begun < BURN_S:
        pass
    assert total(cpu_time([os.getpid()]) - before) >= BURN_S * 0.9


def test_of_a_child_that_is_gone() -> None:
    before, before_children = cpu_time([os.getpid()]), cpu_of_children()
    subprocess.run([sys.executable, "-S", "-c", BURN], check=True)
    assert total(cpu_time([os.getpid()]) - before) >= BURN_S * 0.9
    assert total(cpu_of_children() - before_children) >= BURN_S * 0.9


def test_of_a_server_and_its_child_that_lives() -> None:
    waits = f"{BURN}\nprint('burnt', flush=True)\ninput()"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', {waits!r}])"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-S", "-c", parent], text=True, **pipes) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "burnt\n"
        of_server = total(cpu_time([server.pid]))
        server.communicate("\n", timeout=30)
    assert of_server >= BURN_S * 0.8  # in the kernel's ticks of 10 ms


def test_of_nobody() -> None:
    assert cpu_time([]) == (0.0, 0.0)
