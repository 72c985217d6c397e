# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: who is not let in is refused with a message that helps; drives that were exchanged are refused and not written.

Method: the kernel's own target refuses, nvmf-setup says why; the drives' own counters say what was written.
"""

from __future__ import annotations

import pytest
from laboratory import Machine

TRANSPORTS = ("tcp", "rdma")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_host_that_is_not_on_the_allow_list_is_told_so(alone: Machine, transport: str) -> None:
    assert "does not let this host in" in alone.call("refusals.stranger", transport)


def test_a_wrong_key_is_refused_and_told_as_that(alone: Machine) -> None:
    assert "key is wrong" in alone.call("refusals.wrong_key", "tcp")


def test_exchanged_drives_are_refused_and_nothing_is_written(alone: Machine) -> None:
    said = alone.call("refusals.swapped_drives")
    assert said[1::2] == ["other_store"] * 2
    assert all("another namespace" in message or "drives swapped" in message for message in said[::2])


def test_what_the_readme_calls_absent_is_absent(alone: Machine) -> None:
    told = alone.call("refusals.what_is_absent")
    assert told == dict.fromkeys(told, 0)
