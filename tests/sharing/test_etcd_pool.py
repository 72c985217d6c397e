# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Two processes share a pool through etcd, which is stopped and started in between.

Method: Debian's etcd-server on free ports, killed and started again on the same data.
"""

from __future__ import annotations

import etcd_server
import pytest
from sharing_support import LEASE_S, LEASES_MAX_S, ask_all, wait_until

KEYS = [f"before-{i}" for i in range(12)]


@pytest.fixture
def etcd(tmp_path):
    if problem := etcd_server.missing():
        pytest.skip(problem)
    with etcd_server.EtcdServer(tmp_path) as server:
        yield server


def test_two_openers_share_a_pool_through_etcd_also_after_it_was_away(make_pool, start_all, etcd):
    openers = start_all(2, make_pool(), engine=f"etcd://{etcd.endpoint}")
    assert openers[0].ask("put", KEYS) == ["stored"] * len(KEYS)
    ask_all(openers, "refresh")
    assert openers[1].ask("get", KEYS) == ["hit"] * len(KEYS)
    etcd.kill()
    for opener in openers:
        opener.tell("put_until_refused", opener.name, LEASES_MAX_S)
    refusals = [opener.answer() for opener in openers]
    assert [code for _, code, _ in refusals] == ["busy", "busy"]
    assert all(seconds < 2 * LEASE_S + 2 for *_, seconds in refusals), refusals
    assert ask_all(openers, "get", KEYS) == [["hit"] * len(KEYS)] * 2
    etcd.start()
    everything = [*KEYS, *[key for keys, *_ in refusals for key in keys]]
    for opener in openers:
        opener.ask("put_until_stored", f"{opener.name}-after", LEASES_MAX_S)
        everything.append(f"{opener.name}-after")
    ask_all(openers, "refresh")
    assert ask_all(openers, "get", everything) == [["hit"] * len(everything)] * 2


def test_an_etcd_that_lost_its_data_is_rebuilt_from_the_device(make_pool, start_all, etcd, tmp_path):
    openers = start_all(2, make_pool(), engine=f"etcd://{etcd.endpoint}")
    assert openers[0].ask("put", KEYS) == ["stored"] * len(KEYS)
    etcd.kill()
    (tmp_path / "data").rename(tmp_path / "lost")
    etcd.start()
    for opener in openers:
        wait_until(
            opener, lambda stats: stats["rejoins"] > 0 and stats["openers"] == 2, "an opener of the rebuilt state"
        )
        opener.ask("put_until_stored", f"{opener.name}-after", LEASES_MAX_S)
    ask_all(openers, "refresh")
    everything = [*KEYS, *[f"{opener.name}-after" for opener in openers]]
    assert ask_all(openers, "get", everything) == [["hit"] * len(everything)] * 2
