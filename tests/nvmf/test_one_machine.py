# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: nvmf-setup makes a target and connects a host, over TCP and RoCEv2; kvstore lives on what it connected.

Method: the kernel's own target and initiator in one guest, Soft-RoCE; fio and the drive under the target as witnesses.
"""

from __future__ import annotations

import pytest
from laboratory import Machine

TRANSPORTS = ("tcp", "rdma")


def test_a_file_becomes_a_target_and_a_second_run_changes_nothing(alone: Machine) -> None:
    alone.call("one_machine.from_nothing_to_a_target")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_host_connects_with_the_options_of_the_file(alone: Machine, transport: str) -> None:
    assert alone.call("one_machine.connects", transport) == [64, 10, 5, 120]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_fio_verifies_and_the_drive_has_the_same_bytes(alone: Machine, transport: str) -> None:
    alone.call("one_machine.verifies", transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_blocks_survive_a_disconnect_which_is_refused_while_the_pool_is_open(alone: Machine, transport: str) -> None:
    assert "in use" in alone.call("one_machine.survives_a_new_connection", transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nvme_cli_connects_by_the_file_that_persist_writes(alone: Machine, transport: str) -> None:
    """All but one option, of which nvme-cli 2.3 takes its own default whatever the file says."""
    assert alone.call("persisted.connects_by_nvme_cli", transport) == ["ctrl_loss_tmo set to 120"]


def test_an_address_in_use_leaves_the_target_as_it_was(alone: Machine) -> None:
    assert "already" in alone.call("one_machine.rollback_of_an_address_in_use")


def test_only_what_nvmf_setup_made_is_removed(alone: Machine) -> None:
    alone.call("one_machine.removes_what_it_made")
