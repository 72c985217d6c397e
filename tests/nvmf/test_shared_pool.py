# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: two hosts put and get in one pool at once, on one namespace over RoCEv2 and over TCP, with etcd.

Method: three guests; the target exports the namespace and runs etcd. One of the hosts' processes is killed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from laboratory import Machine

TRANSPORTS = ("rdma", "tcp")
FINE = ["hit"] * 12


@pytest.fixture(scope="module")
def has_etcd() -> None:
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    pytest.importorskip("etcd3gw", reason="etcd3gw is missing: pip install 'nvme-kvstore[etcd]'")


@pytest.fixture(params=TRANSPORTS)
def hosts(
    request: pytest.FixtureRequest, has_etcd: None, three: tuple[Machine, Machine, Machine]
) -> Iterator[tuple[str, Machine, Machine]]:
    """Two that share a pool; afterwards it is a pool of one owner again, as other tests want it."""
    transport, (target, one, two) = request.param, three
    target.call("shared.serve_engine", timeout_s=180)
    one.call("hosts.pool", transport)
    for host in (one, two):
        host.call("shared.share", transport, worker=transport, timeout_s=180)
    yield transport, one, two
    for host in (one, two):
        host.kill(transport)
    one.call("shared.format_anew", transport)


def test_what_each_of_two_hosts_puts_both_get_also_after_one_was_killed(
    hosts: tuple[str, Machine, Machine],
) -> None:
    transport, one, two = hosts
    one.call("shared.puts", "of-one", worker=transport)
    two.call("shared.puts", "of-two", worker=transport)
    both = {"of-one": FINE, "of-two": FINE}
    assert [host.call("shared.reads", *both, worker=transport) for host in (one, two)] == [both, both]
    assert two.call("shared.openers", worker=transport) == 2
    assert "shared" in one.call("shared.refusal", transport)
    one.kill(transport)
    assert two.call("shared.reads", *both, worker=transport) == both
    two.call("shared.puts", "afterwards", worker=transport)
    one.call("shared.share", transport, worker=transport, timeout_s=180)
    all_three = both | {"afterwards": FINE}
    assert one.call("shared.reads", *all_three, worker=transport) == all_three
