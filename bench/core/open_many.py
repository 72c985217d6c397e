# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""How long a store of many blocks takes to open after its process was killed, what it reads, what it holds in memory.

The store is a sparse file with real metadata and holes for payload (bench/cpp/fill_metadata.cpp). Every opening is a
process of its own that ends without closing, so that each finds what a SIGKILL leaves; O_DIRECT, so that the page
cache serves nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.facts import facts

ROOT = Path(__file__).resolve().parents[2]
CHILD = """
import json, os, sys, time
import kvstore
def bytes_read():
    return int(open("/proc/self/io").read().split("read_bytes: ")[1].split()[0])
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
memory, read, start = resident(), bytes_read(), time.perf_counter()
pool = kvstore.open(sys.argv[1])
seconds = time.perf_counter() - start
stats = pool.stats()
print(json.dumps({"seconds": seconds, "blocks": stats["blocks"], "read_bytes": bytes_read() - read,
                  "recovery_bytes_read": stats["recovery_bytes_read"], "resident_bytes": resident() - memory,
                  "index_bytes": stats["index_bytes"], "open_regions": stats["recovery_regions_open_found"]}),
      flush=True)
os.kill(os.getpid(), 9)
"""


def build_filler() -> Path:
    """The C++ tool that makes the file."""
    folder = ROOT / "build" / "bench"
    subprocess.run(
        ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DKVSTORE_BUILD_BENCH=ON"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(
        ["cmake", "--build", folder, "--target", "kvstore_fill_metadata"], check=True, stdout=subprocess.DEVNULL
    )
    return folder / "kvstore_fill_metadata"


def open_once(path: str) -> dict[str, float]:
    """In a process that is killed then; what it found.

    Raises
    ------
    RuntimeError : it did not open it; with what it said.
    """
    child = subprocess.run([sys.executable, "-c", CHILD, path], capture_output=True, text=True, check=False)
    if not child.stdout:
        raise RuntimeError(f"opening {path} ended with {child.returncode}: {child.stderr.strip()}")
    run: dict[str, float] = json.loads(child.stdout)
    return run


def main(argv: list[str]) -> int:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(prog="bench-core open", description=__doc__.split("\n\n")[0])
    parser.add_argument("--blocks", type=int, default=10_000_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--folder", default=".", help="on a file system whose files may be sparse and 10 TB long")
    parser.add_argument("--check", type=int, default=10_000, help="blocks that `kvstore check --sample` verifies")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    filler = build_filler()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="kvstore-bench-") as folder:
        path = str(Path(folder) / "many.img")
        subprocess.run([filler, path, str(arguments.blocks)], check=True)
        runs = []
        for _ in range(arguments.repetitions):
            run = open_once(path)
            runs.append(run)
            print(
                f"open {run['seconds']:.2f} s  {run['blocks']:.0f} blocks  read {run['read_bytes'] / 1e9:.2f} GB  "
                f"index {run['index_bytes'] / run['blocks']:.1f} bytes/block  "
                f"resident {run['resident_bytes'] / run['blocks']:.1f} bytes/block",
                flush=True,
            )
        print(f"median {statistics.median(run['seconds'] for run in runs):.2f} s")
        if arguments.check:
            subprocess.run(
                [sys.executable, "-m", "kvstore", "check", path, "--sample", str(arguments.check)], check=True
            )
    if arguments.json:
        found = {"machine": facts("scripts/bench-core"), "blocks": arguments.blocks, "runs": runs}
        arguments.json.write_text(json.dumps(found, indent=1))
    return 0
