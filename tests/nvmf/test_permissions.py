# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: a host that is taken out of the file loses what it is connected to, and only that host.

Method: two host NQNs of one guest, connected to one subsystem of the kernel's own target.
"""

from __future__ import annotations

import pytest
from laboratory import Machine


@pytest.mark.parametrize("transport", ["tcp", "rdma"])
def test_a_host_that_is_let_in_no_more_is_cut_off_and_the_others_come_back(alone: Machine, transport: str) -> None:
    assert alone.call("permissions.cuts_off_who_is_taken_out", transport) == [1, 0]
