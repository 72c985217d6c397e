# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What nvmf-setup says of a step that the kernel of a target refused: the mend is that of the step, not of the errno.

Method: the refusals of drivers/nvme/target/configfs.c, step by step.
"""

from __future__ import annotations

import errno
import re
from typing import Literal

import pytest

from kvstore.nvmf.steps import Step
from kvstore.nvmf.target_errors import mend

SUBSYSTEM = "subsystems/nqn.2026-11.com.example:pool"


@pytest.mark.parametrize(
    ("action", "path", "number", "told"),
    [
        ("link", "ports/1/subsystems/x", errno.ENODEV, "no RDMA device, or not yet: see rdma link"),
        ("mkdir", SUBSYSTEM, errno.EEXIST, "made it meanwhile: nvmf-setup plan"),
        ("mkdir", SUBSYSTEM, errno.ENOENT, "modprobe nvmet"),
        ("mkdir", f"{SUBSYSTEM}/namespaces/1", errno.ENOENT, "gone meanwhile: nvmf-setup plan"),
        ("rmdir", SUBSYSTEM, errno.ENOTEMPTY, "nvmf-setup did not make: take that away first"),
        ("write", f"{SUBSYSTEM}/attr_serial", errno.EINVAL, "keeps its serial number.*target remove, and apply"),
        ("write", f"{SUBSYSTEM}/attr_model", errno.EINVAL, "keeps its serial number.*target remove, and apply"),
        ("write", "ports/1/addr_traddr", errno.EINVAL, "does not take that value"),
        ("write", "hosts/a/dhchap_key", errno.ENOENT, "CONFIG_NVME_TARGET_AUTH"),
        ("write", f"{SUBSYSTEM}/namespaces/1/enable", errno.ENOENT, "drive is not there"),
        ("write", f"{SUBSYSTEM}/namespaces/1/enable", errno.EIO, "See dmesg"),
    ],
)
def test_a_refusal_comes_with_its_mend(
    action: Literal["mkdir", "rmdir", "write", "link"], path: str, number: int, told: str
) -> None:
    said = mend(Step(action, path), OSError(number, "refused"))
    assert re.search(told, said)
