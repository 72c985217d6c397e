# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the laboratory's tests: the guests; and the transcript at the end: boots, cases, outcomes, seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from laboratory import BUILT, DRIVES, Drive, Laboratory, Machine

BOOTS = pytest.StashKey[list[tuple[str, float]]]()
CASE_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.nvmf)
            item.add_marker(pytest.mark.timeout(CASE_S))


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
def alone(laboratory: Laboratory) -> Machine:
    """One guest that is target and host."""
    drives = (*DRIVES, Drive("UNDER-TCP", block_bytes=512), Drive("UNDER-RDMA"), Drive("SWAP1"), Drive("SWAP2"))
    return laboratory.machine("alone", drives=drives, kernel_arguments="nvme.poll_queues=1", memory_mib=3072)


@pytest.fixture
def three(laboratory: Laboratory) -> Iterator[tuple[Machine, Machine, Machine]]:
    """A target and two hosts, connected by TCP and by RoCEv2. A test may leave workers named by a transport."""
    guests = laboratory.three((Drive("UNDER-TCP"), Drive("UNDER-RDMA")))
    guests[0].call("hosts.serve")
    for host in guests[1:]:
        host.call("hosts.join")
    yield guests
    for host in guests[1:]:
        for transport in ("tcp", "rdma"):
            host.kill(transport)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    boots = config.stash.get(BOOTS, [])
    if not boots:
        return
    terminalreporter.section("the laboratory")
    for name, seconds in boots:
        terminalreporter.write_line(f"{seconds:7.1f} s  boot of {name}")
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.getreports(outcome):
            if "tests/nvmf/" in report.nodeid and (report.when == "call" or outcome != "passed"):
                name = report.nodeid.partition("tests/nvmf/")[2]
                terminalreporter.write_line(f"{report.duration:7.1f} s  {outcome:<7} {name}")
