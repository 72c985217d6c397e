# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Sums up a run of scripts/test: seconds of each stage, skips with their reasons, the counts.

Reads ``stages.tsv`` (name, exit status, seconds), ``<stage>.skipped`` (why a whole stage did not run) and the JUnit XML
that ctest and pytest left in the folder. With ``--strict-skips`` a test that was skipped for want of something this
machine has is a failure: a check that quietly stops running is worse than one that fails.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]


class Skip(NamedTuple):
    test: str
    reason: str


def has_loop_devices() -> bool:
    """`losetup --find` needs root, the module and a free device; any of them may be missing in a container."""
    if os.geteuid() != 0 or not has_program("losetup"):
        return False
    return subprocess.run(["losetup", "--find"], capture_output=True).returncode == 0


def has_io_uring() -> bool:
    """Asks for a ring with a bad pointer: EFAULT when io_uring is there, ENOSYS or EPERM when it is not."""
    io_uring_setup = 425
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(io_uring_setup, 1, None)
    return os.strerror(ctypes.get_errno()) == "Bad address"


def has_program(name: str) -> bool:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


def has_module(name: str) -> bool:
    return importlib.util.find_spec(name.lower()) is not None


def has_engine(name: str) -> bool:
    """Whether scripts/test engines has made its environment: what that can be had for must not be skipped in it."""
    return (ROOT / "build" / f"venv-{name.lower()}" / ".installed").exists()


# The words of a skip's reason that name a need, and how to see whether this machine meets it.
CAPABILITIES: dict[str, Callable[[str], bool]] = {
    r"\bloop\b|\blosetup\b": lambda _: has_loop_devices(),
    r"\broot\b": lambda _: os.geteuid() == 0,
    r"\bio_uring\b": lambda _: has_io_uring(),
    r"\b(fio-plot|fio|blkid|sfdisk|mkswap|mkfs\.\w+|etcd\b|openssl|systemd-analyze)": has_program,
    r"\b(lmcache|torch|etcd3gw)\b": has_module,
    r"\b(vllm|sglang)\b": has_engine,
    r"\b(gpu|cuda)\b": lambda _: Path("/dev/nvidiactl").exists(),
}


def met_need(reason: str) -> str | None:
    """The first need a reason names, if this machine meets all that it names; None when one is really missing."""
    named = {pattern: found[0] for pattern in CAPABILITIES if (found := re.search(pattern, reason, re.IGNORECASE))}
    if not named or not all(CAPABILITIES[pattern](name) for pattern, name in named.items()):
        return None
    return next(iter(named.values()))


def skip_reason(skipped: ElementTree.Element, case: ElementTree.Element) -> str:
    """pytest gives the reason; of GoogleTest's output it is the line after `file:line: Skipped`."""
    output = case.findtext("system-out") or ""
    found = re.search(r": Skipped\n(.+)", output)
    return found[1] if found else skipped.get("message", "no reason given")


def read_junit(path: Path) -> tuple[Counter[str], list[Skip]]:
    counts: Counter[str] = Counter()
    skips = []
    for case in ElementTree.parse(path).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
        elif skipped is not None and skipped.get("type") != "pytest.xfail":
            counts["skipped"] += 1
            skips.append(Skip(f"{case.get('classname')}.{case.get('name')}", skip_reason(skipped, case)))
        else:
            counts["passed"] += 1
    return counts, skips


def stages(results: Path) -> Iterator[tuple[str, bool, int]]:
    for line in (results / "stages.tsv").read_text().splitlines():
        name, status, seconds = line.split("\t")
        yield name, status == "0", int(seconds)


def stage_results(results: Path, stage: str) -> tuple[Counter[str], list[Skip]]:
    """All that a stage left behind; nothing when it counts as one check."""
    whole_skip = results / f"{stage}.skipped"
    if whole_skip.exists():
        return Counter(skipped=1), [Skip(f"stage {stage}", whole_skip.read_text().strip())]
    total: Counter[str] = Counter()
    skips = []
    for path in sorted(results.glob(f"{stage}*.xml")):
        counts, found = read_junit(path)
        total += counts
        skips += found
    return total, skips


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--strict-skips", action="store_true")
    options = parser.parse_args(arguments)

    total: Counter[str] = Counter()
    skips: list[Skip] = []
    print("\nstage       seconds")
    for name, passed, seconds in stages(options.results):
        counts, found = stage_results(options.results, name)
        if not passed and not counts["failed"]:
            counts["failed"] = 1  # it broke before or beside its tests
        total += counts or Counter(passed=1)
        skips += found
        print(f"{name:<12}{seconds:>7}  {'ok' if passed else 'FAILED'}")

    if skips:
        print("\nskipped:")
    for skip in skips:
        need = met_need(skip.reason) if options.strict_skips else None
        if need:
            total["failed"] += 1
            total["skipped"] -= 1
        print(f"  {skip.test}: {skip.reason}" + (f"  <- FAILED: this machine has {need}" if need else ""))

    print(f"\n{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
