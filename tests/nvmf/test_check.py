# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: `nvmf-setup check` tells what real verbs and a real kernel say, notices what is broken, and its mends mend.

Method: Soft-RoCE in a guest of its own, since links are removed there; each case begins by making it whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from laboratory import Laboratory, Machine

# What Soft-RoCE over a pair of virtual interfaces cannot have, or what nobody has started: told, never ok.
NOT_THERE = [
    *("abilities of the target", "path to peer", "read", "round trip"),
    *("rxe0/1 DSCP", "rxe0/1 ECN", "rxe0/1 PFC", "rxe0/1 driver"),
]


@pytest.fixture(scope="module")
def bare(laboratory: Laboratory) -> Iterator[Laboratory]:
    yield laboratory
    laboratory.end(["bare"])


@pytest.fixture
def guest(bare: Laboratory) -> Machine:
    return bare.machine("bare", drives=())


def test_the_gid_index_comes_from_pyverbs_and_sysfs_has_the_same(guest: Machine) -> None:
    told = guest.call("readiness.sources")
    assert told["with"][:2] == ["ok", "pyverbs"]
    assert told["without"] == ["ok", "sysfs", told["with"][2]]
    assert told["with"][2].startswith("index 1 of rxe0/1, RoCE v2")
    assert told["mtu"] == ["ok", "pyverbs, sysfs", "rdma0 4200, RDMA 4096"]
    assert told["not ok"] == NOT_THERE


@pytest.mark.parametrize(
    ("subject", "breaking", "told", "mend", "verdicts"),
    [
        (
            "rxe0/1 MTU",
            "ip link set dev rdma0 mtu 1500",
            "rdma0 1500, RDMA 1024",
            "ip link set dev rdma0 mtu 4200",
            ["warn", "ok"],
        ),
        ("rxe0/1 link", "ip link set dev rdma0 down", "DOWN", "ip link set dev rdma0 up", ["fail", "ok"]),
        (
            "RDMA ports",
            "rdma link del rxe0",
            "there are none",
            "rdma link add rxe0 type rxe netdev NETDEV",
            ["fail", "gone"],
        ),
        ("module nvme_rdma", "modprobe -r nvme_rdma", "not loaded, but there", "modprobe nvme-rdma", ["warn", "ok"]),
    ],
    ids=["a small MTU", "a link that is down", "no RDMA link", "a module that is not loaded"],
)
def test_what_is_broken_is_told_and_its_mend_mends(
    guest: Machine, subject: str, breaking: str, told: str, mend: str, verdicts: list[str]
) -> None:
    assert guest.call("readiness.broken_and_mended", subject, breaking, told, mend) == verdicts


def test_a_module_that_the_kernel_has_not_fails(guest: Machine) -> None:
    verdict, told, mend = guest.call("readiness.without_the_module")
    assert (verdict, "not there for Linux 6." in told, "install the package" in mend) == ("fail", True, True)


def test_the_class_is_what_the_mend_has_set(guest: Machine) -> None:
    assert guest.call("readiness.class_as_the_mend_sets_it").startswith("traffic class 106, DSCP 26;")


def test_a_round_trip_is_measured_with_who_answers_and_told_where_nobody_does(guest: Machine) -> None:
    path, trip, alone = guest.call("readiness.round_trips")
    assert path == ["ok", "4200 bytes arrive at 10.77.0.1 in one piece"]
    # Whether that is slow is the emulated processor's affair.
    assert (trip[0] in ("ok", "warn"), trip[1].startswith("100 exchanges came back right")) == (True, True)
    assert (alone[0], "REJECTED" in alone[1]) == ("warn", True)


def test_a_namespace_is_read_against_the_line_nothing_is_written_and_what_lacks_is_told(alone: Machine) -> None:
    told = alone.call("readiness.reads")
    assert (told["found"]["source"], told["written"]) == ("fio, sysfs", 0)
    assert "% of the line's 10" in told["found"]["told"]
    assert told["read"] > 0
    verdict, lacks, mend, source = told["abilities"]
    assert (verdict, source) == ("warn", "nvme-cli")
    for ability in ("persistent reservations", "compare", "fused compare and write", "placement (FDP)"):
        assert f"no {ability}: /dev/nvme" in lacks
    assert "Linux targets have reservations from 6.13 on" in mend
    assert told["of target"] == [
        "no persistent reservations: this kernel's nvmet has none (Linux has from 6.13 on); no compare, no fused "
        "commands, no placement (FDP): nvmet has none"
    ]
    verdict, lacks, mend = told["driver"]
    assert (verdict, "does not survive a link that is taken down" in lacks) == ("warn", True)
    assert "rdma link del rxe0" in mend
