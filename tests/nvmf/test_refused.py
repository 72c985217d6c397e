# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: who is not let in is refused with a message that helps; drives that were exchanged are refused and not written.

Method: the kernel's own target refuses, nvmf-setup says why; the drives' own counters say what was written.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from laboratory import Machine

TRANSPORTS = ("tcp", "rdma")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_host_that_is_not_on_the_allow_list_is_told_so(alone: Machine, transport: str) -> None:
    assert "does not let this host in" in alone.call("refusals.stranger", transport)


def test_a_wrong_key_is_refused_and_told_as_that(alone: Machine) -> None:
    said, is_stuck = alone.call("refusals.wrong_key", "tcp")
    assert (is_stuck, "key is wrong" in said) == (False, True)


def test_exchanged_drives_are_refused_and_nothing_is_written(alone: Machine) -> None:
    said = alone.call("refusals.swapped_drives")
    assert said[1::2] == ["other_store"] * 2
    assert all("another namespace" in message or "drives swapped" in message for message in said[::2])


def test_namespaces_that_change_names_in_dev_are_found_by_what_they_are(alone: Machine) -> None:
    assert alone.call("refusals.swapped_names") == {
        "exchanged": True,
        "pools": True,
        "paths": True,
        "both": "invalid",
        "by the other's name": ["miss"],
    }


def test_what_the_readme_calls_absent_is_absent(alone: Machine) -> None:
    told = alone.call("refusals.what_is_absent")
    assert told == dict.fromkeys(told, 0)


def test_a_wrong_key_over_rdma_is_told_also_where_the_refusal_gets_lost(
    alone: Machine, note: Callable[[str, object], None]
) -> None:
    """The last in this guest, whose kernel may be stuck with it: see the README."""
    said, is_stuck = alone.call("refusals.wrong_key", "rdma", timeout_s=240)
    note("the kernel", "is stuck" if is_stuck else "has heard the refusal")
    alone.is_broken |= is_stuck
    assert "A wrong key may be why" in said or (not is_stuck and "key is wrong" in said)
