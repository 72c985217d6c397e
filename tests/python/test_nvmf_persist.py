# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""nvmf-setup persist: files that bring a machine up at boot, below any root; nobody else's file is overwritten.

Method: files written below a temporary root and read back as systemd, nvmetcli and libnvme would.
"""

from __future__ import annotations

import configparser
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from test_nvmf_host import NQN, SPEC

from kvstore.errors import ConfigError, ForeignDataError
from kvstore.nvmf.persist import (
    HOST_UNIT,
    LIBNVME,
    NVMETCLI,
    TARGET_UNIT,
    Persistence,
    absent_files,
    host_files,
    nvmetcli_document,
    target_files,
)
from kvstore.nvmf.persist import (
    SPEC as SPEC_PATH,
)
from kvstore.nvmf.spec import Spec

UNITS = "/etc/systemd/system/"


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    """Without keys."""
    file = tmp_path / "pool.yaml"
    file.write_text("the file, with comments\n")
    return replace(SPEC, path=str(file), hosts=tuple(replace(host, key_file=None) for host in SPEC.hosts))


def unit(text: str | None) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text or "")
    return parser


def test_a_targets_unit_applies_the_copy_of_the_file_after_the_network(spec: Spec) -> None:
    files = target_files(spec, "/opt/bin/nvmf-setup")
    assert files[SPEC_PATH] == "the file, with comments\n"
    made = unit(files[UNITS + TARGET_UNIT])
    assert made["Service"]["ExecStart"] == f"/opt/bin/nvmf-setup target apply {SPEC_PATH}"
    assert made["Unit"]["After"] == "network-online.target sys-kernel-config.mount"
    assert (made["Service"]["Type"], made["Service"]["Restart"]) == ("oneshot", "on-failure")
    assert made["Install"]["WantedBy"] == "multi-user.target"


def test_a_unit_looks_for_its_records_where_this_run_does(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVSTORE_STATE_DIR", raising=False)
    assert "Environment" not in unit(target_files(spec, "x")[UNITS + TARGET_UNIT])["Service"]
    monkeypatch.setenv("KVSTORE_STATE_DIR", '/srv/100% "kv"')
    for files, name in ((target_files(spec, "x"), TARGET_UNIT), (host_files(spec, "decode1", "x"), HOST_UNIT)):
        made = unit(files[UNITS + name])["Service"]
        assert made["Environment"] == r'"KVSTORE_STATE_DIR=/srv/100%% \"kv\""'
        assert made["ExecStart"].startswith("x ")


def test_a_hosts_unit_connects_as_that_host(spec: Spec) -> None:
    made = unit(host_files(spec, "decode2", "nvmf-setup")[UNITS + HOST_UNIT])
    assert made["Service"]["ExecStart"] == f"nvmf-setup host connect {SPEC_PATH} --host decode2"
    assert made["Service"]["ExecStop"] == f"nvmf-setup host disconnect {SPEC_PATH} --host decode2"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("folder", ["", '/srv/100% "kv"'], ids=["as it is", "with a state folder"])
def test_systemd_takes_the_units_without_a_complaint(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("KVSTORE_STATE_DIR", folder)
    for files, name in (
        (target_files(spec, "/bin/true"), TARGET_UNIT),
        (host_files(spec, "decode1", "/bin/true"), HOST_UNIT),
    ):
        (tmp_path / name).write_text(files[UNITS + name] or "")
        done = subprocess.run(
            ["systemd-analyze", "verify", tmp_path / name], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_complains_of_a_unit_that_it_would_not_start(spec: Spec, tmp_path: Path) -> None:
    text = target_files(spec, "/bin/true")[UNITS + TARGET_UNIT] or ""
    (tmp_path / TARGET_UNIT).write_text(text.replace("Restart=on-failure", "Restart=always"))
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / TARGET_UNIT], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0


def test_nvmetcli_gets_what_its_restore_reads(spec: Spec) -> None:
    document = nvmetcli_document(spec)
    assert json.loads(target_files(spec, "x")[NVMETCLI] or "") == document
    assert document["ports"][0]["addr"] == {
        "adrfam": "ipv4", "traddr": "10.0.0.1", "treq": "not specified", "trsvcid": "4420", "trtype": "rdma",
    }  # fmt: skip
    (subsystem,) = document["subsystems"]
    assert subsystem["attr"]["allow_any_host"] == "0"
    assert subsystem["allowed_hosts"] == [host["nqn"] for host in document["hosts"]]
    assert [one["device"]["nguid"] for one in subsystem["namespaces"]] == [f"{1:032x}", f"{2:032x}"]
    assert [port["subsystems"] for port in document["ports"]] == [[NQN], [NQN]]


def test_libnvme_gets_every_option_of_every_path(spec: Spec) -> None:
    (host,) = json.loads(host_files(spec, "decode1", "x")[LIBNVME] or "")
    assert (host["hostnqn"], host["hostid"]) == (spec.hosts[0].nqn, spec.hosts[0].host_id)
    (subsystem,) = host["subsystems"]
    assert [(port["transport"], port["traddr"], port["trsvcid"]) for port in subsystem["ports"]] == [
        ("rdma", "10.0.0.1", "4420"),
        ("tcp", "10.0.1.1", "4420"),
    ]
    assert subsystem["ports"][0]["fast_io_fail_tmo"] == 5
    assert subsystem["ports"][0]["nr_io_queues"] == 4


def test_with_keys_there_is_no_file_that_would_need_them(spec: Spec) -> None:
    keyed = replace(spec, hosts=SPEC.hosts)
    assert target_files(keyed, "x")[NVMETCLI] is None
    assert host_files(keyed, "decode1", "x")[LIBNVME] is None
    assert host_files(keyed, "decode2", "x")[LIBNVME] is not None


def paths_below(root: Path) -> set[str]:
    return {f"/{path.relative_to(root)}" for path in (root / "etc").rglob("*") if path.is_file()}


def test_a_file_that_would_let_hosts_in_without_their_keys_goes_when_they_get_some(spec: Spec, tmp_path: Path) -> None:
    record = Path("/var/record.json")
    Persistence(target_files(spec, "x"), tmp_path, record).write()
    keyed = Persistence(target_files(replace(spec, hosts=SPEC.hosts), "x"), tmp_path, record)
    assert keyed.plan() == keyed.write() == [NVMETCLI]
    assert paths_below(tmp_path) == {SPEC_PATH, UNITS + TARGET_UNIT}
    assert keyed.write() == []


def test_a_file_that_is_not_wanted_and_somebody_elses_stays(spec: Spec, tmp_path: Path) -> None:
    record, theirs = Path("/var/record.json"), tmp_path / NVMETCLI[1:]
    theirs.parent.mkdir(parents=True)
    theirs.write_text("{}")
    keyed = Persistence(target_files(replace(spec, hosts=SPEC.hosts), "x"), tmp_path, record)
    assert NVMETCLI not in keyed.write()
    Persistence(target_files(spec, "x"), tmp_path, record).write([NVMETCLI])
    theirs.write_text("{}")  # edited since: it may be needed, and lets hosts in without keys
    with pytest.raises(ForeignDataError, match=f"to remove it: --force {NVMETCLI}"):
        keyed.write()
    assert keyed.write([NVMETCLI]) == [NVMETCLI]


def test_what_was_written_is_taken_back_but_not_under_another_unit(spec: Spec, tmp_path: Path) -> None:
    record = Path("/var/record.json")
    for files in (target_files(spec, "x"), host_files(spec, "decode1", "x")):
        Persistence(files, tmp_path, record).write()
    Persistence(absent_files(TARGET_UNIT, tmp_path), tmp_path, record).write()
    assert paths_below(tmp_path) == {SPEC_PATH, UNITS + HOST_UNIT, LIBNVME}
    Persistence(absent_files(HOST_UNIT, tmp_path), tmp_path, record).write()
    assert paths_below(tmp_path) == set()
    assert Persistence(absent_files(HOST_UNIT, tmp_path), tmp_path, record).write() == []


def test_a_unit_that_is_enabled_is_not_removed(tmp_path: Path) -> None:
    wants = tmp_path / UNITS[1:] / "multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / HOST_UNIT).symlink_to(UNITS + HOST_UNIT)
    with pytest.raises(ConfigError, match=f"is enabled: systemctl --root={tmp_path} disable {HOST_UNIT} first"):
        absent_files(HOST_UNIT, tmp_path)


def test_a_second_run_writes_nothing_and_a_changed_file_is_written_again(spec: Spec, tmp_path: Path) -> None:
    root = tmp_path / "root"
    files = target_files(spec, "nvmf-setup")
    made = Persistence(files, root, Path("/var/record.json"))
    assert made.write() == list(files)
    assert made.write() == []
    changed = files | {SPEC_PATH: "another\n"}
    assert Persistence(changed, root, Path("/var/record.json")).write() == [SPEC_PATH]
    assert (root / SPEC_PATH[1:]).read_text() == "another\n"


def test_somebody_elses_file_is_overwritten_only_by_its_name(spec: Spec, tmp_path: Path) -> None:
    root = tmp_path / "root"
    made = Persistence(host_files(spec, "decode2", "x"), root, Path("/var/record.json"))
    theirs = root / LIBNVME[1:]
    theirs.parent.mkdir(parents=True)
    theirs.write_text("[]\n")
    with pytest.raises(ForeignDataError, match=rf"config\.json is there and not as .*--force {LIBNVME}"):
        made.write()
    assert [path for path in root.rglob("*") if path.is_file()] == [theirs]
    assert LIBNVME in made.write([LIBNVME])


def test_a_file_that_was_edited_since_is_not_overwritten(spec: Spec, tmp_path: Path) -> None:
    made = Persistence(target_files(spec, "x"), tmp_path / "root", Path("/var/record.json"))
    made.write()
    (tmp_path / "root" / SPEC_PATH[1:]).write_text("edited\n")
    with pytest.raises(ForeignDataError, match=SPEC_PATH):
        made.write()
