# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the laboratory's tests: the guests; and the transcript at the end: boots, cases, outcomes, seconds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


from laboratory import BUILT, DRIVES, Drive, Laboratory, Machine, has_kvm

BEGIN = time.monotonic()
BOOTS = pytest.StashKey[list[tuple[str, float]]]()
CASE_S = 600
#: Of all that is done in guests, at most: far more than it takes on two emulated processors where nothing else runs.
WHOLE_S = float(os.environ.get("KVSTORE_NVMF_SECONDS", "2400"))
#: Runs that are side by side have one each.
TRANSCRIPT = f"transcript{os.environ.get('KVSTORE_NVMF_TRANSCRIPT', '')}.md"


@pytest.fixture(autouse=True)
def _in_time() -> None:
    if time.monotonic() - BEGIN > WHOLE_S:
        pytest.fail(f"the laboratory has run for more than {WHOLE_S:g} s: KVSTORE_NVMF_SECONDS allows more")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.nvmf)
            item.add_marker(pytest.mark.timeout(CASE_S))
            if "alone" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.alone)


@pytest.fixture(scope="session")
def laboratory(request: pytest.FixtureRequest) -> Iterator[Laboratory]:
    if not (BUILT / "initrd").exists():
        pytest.skip("the laboratory is not built: scripts/vm/build --packages")
    made = Laboratory()
    request.config.stash[BOOTS] = made.boots
    yield made
    made.end()
    if request.session.testsfailed:
        made.remove_drives()
        print(f"consoles of the guests: {made.folder}")
    else:
        made.remove()


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Puts something into the transcript. Not record_property, of which JUnit's current form complains."""
    return lambda what, value: request.node.user_properties.append((what, value))


@pytest.fixture
def told_by(note: Callable[[str, object], None]) -> Callable[[dict[str, Any]], None]:
    """Puts what callers were told while a fault lasted into the transcript."""

    def record(told: dict[str, Any]) -> None:
        for what in ("gets", "puts"):
            note(what, ", ".join(f"{said} {count}" for said, count in sorted(told[what].items())))
        note("longest call", f"{told['longest_s']} s")

    return record


@pytest.fixture
def alone(laboratory: Laboratory) -> Machine:
    """One guest that is target and host."""
    drives = (*DRIVES, Drive("UNDER-TCP", block_bytes=512), Drive("UNDER-RDMA"))
    return laboratory.machine("alone", drives=drives, kernel_arguments="nvme.poll_queues=1", memory_mib=3072)


@pytest.fixture
def three(laboratory: Laboratory) -> Iterator[tuple[Machine, Machine, Machine]]:
    """A target and two hosts, connected by TCP and by RoCEv2. A test may leave workers named by a transport."""
    guests = laboratory.three((Drive("UNDER-TCP"), Drive("UNDER-RDMA")))
    if not guests[0].is_prepared:  # no test changes what the target serves
        guests[0].call("hosts.serve")
        guests[0].is_prepared = True
    for host in guests[1:]:
        host.call("hosts.join")
    yield guests
    for host in guests[1:]:
        for transport in ("tcp", "rdma"):
            host.kill(transport)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Also as a page, which tests/nvmf/README.md has in it."""
    boots = config.stash.get(BOOTS, [])
    if not boots:
        return
    rows = [(f"boot of {name}", "", f"{seconds:.1f}", "") for name, seconds in boots]
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.getreports(outcome):
            if "tests/nvmf/" in report.nodeid and (report.when == "call" or outcome != "passed"):
                name = report.nodeid.partition("tests/nvmf/")[2].removeprefix("test_").replace(".py::test_", ": ")
                said = "; ".join(f"{key} {value}" for key, value in report.user_properties)
                rows.append((name.replace("_", " "), outcome, f"{report.duration:.1f}", said))
    whole = f"{time.monotonic() - BEGIN:.0f} s for all of it, {'with KVM' if has_kvm() else 'emulated'}, "
    whole += f"load {os.getloadavg()[2]:.1f} on {os.cpu_count()} processors, {time.strftime('%Y-%m-%d', time.gmtime())}"
    terminalreporter.section("the laboratory")
    for name, outcome, seconds, said in rows:
        terminalreporter.write_line(f"{seconds:>7} s  {outcome:<7} {name}  {said}".rstrip())
    terminalreporter.write_line(whole)
    lines = [f"{whole}.", "", "| case | outcome | seconds | what was said |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    (BUILT / TRANSCRIPT).write_text("\n".join(lines) + "\n")
