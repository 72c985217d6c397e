# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Breaks the store's rules one clause at a time and asks of each whether a test notices.

The clauses are the ``KVS_RULE(...)`` of csrc; tests/cpp/store/mutations.txt names for each the test that must fail
without it. Those tests must pass as the store is; then each clause is switched off in a process of its own. A mutant
is killed when its test fails, crashes, or runs past the limit, and the clause was really met on the way. Of one that
is not, the rest of the tests are run too, to say whether any of them would have noticed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
EXPECTATIONS = ROOT / "tests/cpp/store/mutations.txt"
LIMIT_S = 60.0
REST_LIMIT_S = 600.0
# What stands on its own feet: the tests of the clause come first, and these take minutes.
SLOW = ["RandomRun.*", "CrashLoop.*", "OnAFile.*", "OnSimulatedDisks.*", "Resources.*", "*Killed*", "*PowerCut*"]


class Outcome(NamedTuple):
    clause: str
    test: str
    how: str  # failed | crashed | timed out | skipped | passed | not reached | no such test
    seconds: float
    noticed_by: str = ""  # of one that its test does not notice

    @property
    def killed(self) -> bool:
        return self.how in {"failed", "crashed", "timed out"}

    @property
    def survived(self) -> bool:
        return not self.killed and self.how != "skipped"  # for want of something that this machine lacks


def clauses() -> list[str]:
    """Every clause of csrc, by rule."""
    found = []
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix in {".cpp", ".h"} and path.name != "mutation.h":
            found += re.findall(r"KVS_RULE\((\w+)\)", path.read_text())
    return sorted(found, key=lambda clause: (clause[0], int(rule_of(clause)[1:])))


def rule_of(clause: str) -> str:
    return clause.partition("_")[0]


def expectations() -> dict[str, str]:
    """Clause -> the test that must fail without it."""
    lines = [line.split() for line in EXPECTATIONS.read_text().splitlines() if line and not line.startswith("#")]
    return dict(lines)


def filter_of(test: str) -> str:
    """Also of one that runs for several implementations."""
    return f"{test}:*/{test}/*"


def run_tests(binary: Path, test_filter: str, limit_s: float, clause: str = "") -> tuple[str, str]:
    """How it ended, and all it said."""
    environment = {**os.environ, "KVS_MUTATE": clause} if clause else os.environ
    command = [str(binary.resolve()), f"--gtest_filter={test_filter}", "--gtest_brief=1", "--gtest_fail_fast"]
    try:
        done = subprocess.run(
            command,
            cwd=binary.parent,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired as expired:
        said = b"".join(part for part in (expired.stdout, expired.stderr) if isinstance(part, bytes))
        return "timed out", said.decode(errors="replace")
    output = done.stdout + done.stderr
    if done.returncode < 0:
        return "crashed", output
    if "0 tests from 0 test suites ran" in output:
        return "no such test", output
    return ("passed" if done.returncode == 0 else "failed"), output


def break_one(binary: Path, clause: str, test: str, with_rest: bool) -> Outcome:
    started = time.monotonic()
    how, output = run_tests(binary, filter_of(test), LIMIT_S, clause)
    if how != "no such test" and f"KVS_MUTATE: {clause} is not kept" not in output:
        how = "skipped" if "[  SKIPPED ]" in output else "not reached"
    seconds = time.monotonic() - started
    outcome = Outcome(clause, test, how, seconds)
    if not outcome.survived or not with_rest:
        return outcome
    rest, output = run_tests(binary, f"*:-{':'.join(SLOW)}", REST_LIMIT_S, clause)
    if rest == "passed":
        return outcome
    failed = re.findall(r"^\[  FAILED  \] ([\w./]+)", output, re.MULTILINE)
    running = re.findall(r"^.*(?:Failure|invariant broken).*$", output, re.MULTILINE)
    return outcome._replace(noticed_by=f"{rest}: {(failed or running or ['?'])[0]}")


def write_junit(path: Path, outcomes: list[Outcome]) -> None:
    suite = ElementTree.Element("testsuite", name="mutate")
    for outcome in outcomes:
        case = ElementTree.SubElement(suite, "testcase", classname="mutate", name=outcome.clause)
        if outcome.survived:
            ElementTree.SubElement(case, "failure", message=f"{outcome.test}: {outcome.how}")
    ElementTree.ElementTree(suite).write(path)


def report(outcomes: list[Outcome]) -> None:
    width = max(len(outcome.clause) for outcome in outcomes)
    print(f"{'clause switched off':<{width}}  seconds  the test that notices")
    for outcome in outcomes:
        how = "" if outcome.how == "failed" else f" ({outcome.how})"
        verdict = f"SURVIVED {outcome.test}: {outcome.how}" if outcome.survived else f"{outcome.test}{how}"
        if outcome.noticed_by:
            verdict += f"; elsewhere {outcome.noticed_by}"
        print(f"{outcome.clause:<{width}}  {outcome.seconds:>7.2f}  {verdict}")


def in_parallel(jobs: int, work: Callable[[str], Outcome], names: list[str]) -> list[Outcome]:
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(work, names))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path, help="kvstore_tests, built with KVSTORE_MUTATIONS")
    parser.add_argument("clauses", nargs="*", help="only clauses that begin so: I4 I12_dead")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--junit", type=Path)
    parser.add_argument("--quick", action="store_true", help="do not run the other tests on a survivor")
    options = parser.parse_args()

    expected = expectations()
    prefixes = tuple(prefix if "_" in prefix else f"{prefix}_" for prefix in options.clauses) or ""
    chosen = [clause for clause in clauses() if clause.startswith(prefixes)]
    if not chosen:
        parser.error("no clause begins so; they are the KVS_RULE(...) of csrc")
    tests = sorted({expected[clause] for clause in chosen if clause in expected})
    how, output = run_tests(options.binary, ":".join(filter_of(test) for test in tests), REST_LIMIT_S)
    if how != "passed":
        print(output[-4000:])
        print(f"the tests have {how} although no rule was broken")
        return 1

    def work(clause: str) -> Outcome:
        return break_one(options.binary, clause, expected.get(clause, "none.named"), not options.quick)

    started = time.monotonic()
    outcomes = in_parallel(options.jobs, work, chosen)
    report(outcomes)
    if options.junit:
        write_junit(options.junit, outcomes)
    killed = sum(outcome.killed for outcome in outcomes)
    survived = sum(outcome.survived for outcome in outcomes)
    skipped = len(outcomes) - killed - survived
    rules = len({rule_of(outcome.clause) for outcome in outcomes})
    print(
        f"\n{len(outcomes)} clauses of {rules} rules broken one at a time in {time.monotonic() - started:.0f} s: "
        f"{killed} noticed, {survived} survived" + (f", {skipped} skipped" if skipped else "")
    )
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
