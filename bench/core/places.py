# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Where the benchmark runs: a loop device over memory, or a plain file on disk. Both are removed afterwards."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


def run(*command: str) -> str:
    """Standard output of a command that must succeed."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def loop_on_memory(size_bytes: int) -> Iterator[str]:
    """A loop device with direct I/O over a tmpfs file: the cost of software, with almost no device. Needs root."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="kvstore-bench-") as image:
        image.truncate(size_bytes)
        device = run("losetup", "-f", "--show", "--direct-io=on", image.name).strip()
        try:
            # Touched once: the first write to a tmpfs page pays for its allocation, and must not be charged to
            # whoever happens to run first.
            run("dd", "if=/dev/zero", f"of={device}", "bs=4M", f"count={size_bytes >> 22}", "oflag=direct")
            yield device
        finally:
            run("losetup", "-d", device)


@contextlib.contextmanager
def file_on_disk(size_bytes: int, folder: str) -> Iterator[str]:
    """A preallocated and written file: the device is the limit."""
    handle, path = tempfile.mkstemp(dir=folder, prefix="kvstore-bench-")
    os.close(handle)
    try:
        run("dd", "if=/dev/urandom", f"of={path}", "bs=4M", f"count={size_bytes >> 22}", "oflag=direct")
        yield path
    finally:
        Path(path).unlink(missing_ok=True)


def machine() -> dict[str, str]:
    """Facts that every number needs beside it."""
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown",
    )
    memory = Path("/proc/meminfo").read_text().splitlines()[0].split()[1]
    revision = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=False,
    ).stdout.strip()
    return {
        "kernel": os.uname().release,
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "memory_gib": f"{int(memory) / 2**20:.1f}",
        "revision": revision,
        "fio": run("fio", "--version").strip(),
        "load": " ".join(f"{x:.1f}" for x in os.getloadavg()),
    }
