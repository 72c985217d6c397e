# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""In the guest: who is let in, and who is no more."""

from __future__ import annotations

import json
from pathlib import Path

import fabrics
from fabrics import FILE, do, setup
from support import wait_for

from kvstore.nvmf.sysfs import controllers
from kvstore.nvmf.tree import DirectoryTree

OTHER = fabrics.host("other", 0x40)
BOTH = Path("/run/both.yaml")


def cuts_off_who_is_taken_out(transport: str) -> tuple[int, int]:
    """Two hosts are connected, one is taken out of the file. How often it was and is connected."""
    fabrics.prepare()
    whole = json.loads(FILE.read_text())
    whole["hosts"].append(OTHER)
    for subsystem in whole["subsystems"]:
        if subsystem["nqn"] == fabrics.nqn(transport):
            subsystem["hosts"].append(OTHER["name"])
    BOTH.write_text(json.dumps(whole))
    mine = [str(BOTH), "--host", fabrics.host_name(transport)]
    do("target", "apply", str(BOTH))
    do("host", "connect", *mine)
    do("host", "connect", str(BOTH), "--host", OTHER["name"])
    before = _states()
    do("target", "apply", str(FILE))
    wait_for("the other host is cut off", lambda: "live" not in _states())
    wait_for("this one is back", lambda: setup("host", "status", *mine)[0] == 0)
    after = _states()
    setup("host", "disconnect", str(BOTH), "--host", OTHER["name"])
    fabrics.disconnect(transport)
    return before.count("live"), after.count("live")


def _states() -> list[str]:
    """Of the other host's controllers."""
    return [one.state for one in controllers(DirectoryTree(Path("/sys"))) if one.host_nqn == OTHER["nqn"]]
