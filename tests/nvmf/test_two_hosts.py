# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: two hosts at one target: one owner at a time, who sees what the other wrote; and what a bad network does.

Method: three guests on one virtual network; each case over TCP and over RoCEv2.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
from laboratory import Machine

TRANSPORTS = ("tcp", "rdma")
Three = tuple[Machine, Machine, Machine]
FINE = ["hit"] * 12


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_of_two_owners_the_earlier_is_refused_and_the_later_has_all_the_blocks(three: Three, transport: str) -> None:
    """Between hosts nobody can tell a living owner from a dead one: docs/nvmf.md, one owner at a time."""
    _, one, two = three
    made = one.call("hosts.pool", transport)
    again = one.call("hosts.pool", transport)
    assert (again["pool_uuid"], again["line"]) == (made["pool_uuid"], made["line"])
    assert two.call("hosts.owner", transport) == ""
    one.call("hosts.hold", transport, "first", worker=transport)
    first = two.call("hosts.owner", transport)
    assert first != ""
    two.call("hosts.hold", transport, "second", worker=transport)
    assert one.call("hosts.owner", transport) not in ("", first)
    assert "owned by epoch" in one.call("hosts.refusal", transport, worker=transport)
    assert one.call("hosts.put_again", transport, "never", worker=transport) == ["fenced"]
    assert one.call("hosts.reads", transport, "first", worker=transport) == ["miss"] * len(FINE)
    seen = [host.call("hosts.superblock", transport) for host in (one, two)]
    assert seen[0] == seen[1]
    assert seen[0]["pool_uuid"] == made["pool_uuid"]
    one.kill(transport)
    assert two.call("hosts.reads", transport, "first", worker=transport) == FINE
    assert two.call("hosts.reads", transport, "never", worker=transport) == ["miss"] * len(FINE)
    two.call("hosts.release", transport, worker=transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_one_host_stored_the_other_reads_when_it_has_closed(three: Three, transport: str) -> None:
    _, one, two = three
    one.call("hosts.pool", transport)
    for writer, reader, prefix in ((one, two, "there"), (two, one, "back")):
        writer.call("hosts.hold", transport, prefix, worker=transport)
        writer.call("hosts.release", transport, worker=transport)
        reader.call("hosts.hold", transport, "reader", worker=transport)
        assert reader.call("hosts.reads", transport, prefix, worker=transport) == FINE
        reader.call("hosts.release", transport, worker=transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_a_killed_owner_had_stored_the_other_host_reads(three: Three, transport: str) -> None:
    _, one, two = three
    one.call("hosts.pool", transport)
    one.call("hosts.hold", transport, "killed", worker=transport)
    one.kill(transport)
    two.call("hosts.hold", transport, "heir", worker=transport)
    assert two.call("hosts.reads", transport, "killed", worker=transport) == FINE
    two.call("hosts.release", transport, worker=transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_lost_packets_cost_time_only(three: Three, transport: str, told_by: Callable[[dict[str, Any]], None]) -> None:
    one = three[1]
    told = one.call("faults.endure", transport, "lossy_network", timeout_s=300)
    told_by(told)
    assert (set(told["gets"]), set(told["puts"])) == ({"hit"}, {"stored"})


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_twelve_seconds_without_a_network_are_errors_or_waits_and_end(
    three: Three, transport: str, told_by: Callable[[dict[str, Any]], None]
) -> None:
    one = three[1]
    told = one.call("faults.endure", transport, "no_network", timeout_s=300)
    told_by(told)
    assert told["longest_s"] < told["allowed_s"]
    assert set(told["gets"]) | set(told["puts"]) <= {"hit", "stored", "io", "fenced", "late"}
    assert told["longest_s"] > 2, "nobody noticed"


def test_lmcaches_own_benchmark_verifies_before_and_after_an_outage(three: Three) -> None:
    if importlib.util.find_spec("lmcache") is None:
        pytest.skip("lmcache is not installed: scripts/setup --lmcache")
    one = three[1]
    line = one.call("hosts.pool_line", "rdma")
    for outage in (True, False):
        said = one.call("hosts.bench", line, worker="rdma", timeout_s=450)
        print(said)
        assert "All 16 keys data verified OK" in said
        if outage:
            one.call("hosts.outage", "rdma", timeout_s=300)
