# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: whatever happens between host and drive, no call hangs, no bytes are wrong, and all works afterwards.

Method: real faults under a connected namespace, while blocks of known content are read and put (guest/faults.py); each
row says what must have been heard while the fault lasted, so that one which did nothing is noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from laboratory import Machine

TRANSPORTS = ("tcp", "rdma")
# Of each fault what gets and puts must have said, one of it at least; a hit or a miss, and what is stored, are always
# legal. Anything else, "late" first of all, is not.
FINE = ({"hit"}, {"stored"})
FAILING = ({"io"}, {"io", "fenced"})
FAULTS = {
    "short_outage": FINE,
    "no_port": FAILING,
    "reset": FINE,
    "no_namespace": FAILING,
    "bad_drive": FAILING,
    "bad_writes": ({"hit"}, {"io"}),
    "slow_drive": FINE,
    "gone": FAILING,
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_no_call_hangs_no_bytes_are_wrong_and_all_works_afterwards(
    alone: Machine, fault: str, transport: str, told_by: Callable[[dict[str, Any]], None]
) -> None:
    told = alone.call("faults.endure_alone", transport, fault, timeout_s=400)
    told_by(told)
    gets, puts = FAULTS[fault]
    assert told["longest_s"] < told["allowed_s"]
    assert set(told["gets"]) & gets
    assert set(told["puts"]) & puts
    assert set(told["gets"]) <= gets | {"hit", "miss"}
    assert set(told["puts"]) <= puts | {"stored"}
    if FAULTS[fault] == FINE:
        assert (set(told["gets"]), set(told["puts"])) == FINE


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_who_waits_three_seconds_for_a_stuck_drive_waits_no_longer(
    alone: Machine, transport: str, told_by: Callable[[dict[str, Any]], None]
) -> None:
    told = alone.call("faults.endure_alone", transport, "stuck_drive", wait_s=3, timeout_s=400)
    told_by(told)
    assert told["longest_s"] < told["allowed_s"]
    assert set(told["gets"]) == {"late"}
    assert set(told["puts"]) <= {"late", "fenced"}
