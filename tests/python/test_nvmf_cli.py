# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""nvmf-setup as it is called: what each verb prints, its exit status, that looking changes nothing, and no key is told.

Method: the whole command line on a machine whose configfs, /dev/nvme-fabrics and /sys are fakes.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nvmf_cli_support import BYTES, CHANGING, HOST, SIZE, VERBS, Fake
from nvmf_support import FakeConfigfs

import kvstore
from kvstore.nvmf.connected import connected_hosts
from kvstore.nvmf.fabrics import ConnectRefused
from kvstore.nvmf.record import only_one
from kvstore.nvmf.spec import read_spec

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


def test_from_two_drives_to_a_pool_and_back_every_verb_says_what_it_did(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in VERBS:
        assert fake.run(*words, "--json") == 0, words
        assert isinstance(json.loads(capsys.readouterr().out), dict), words
    assert fake.configfs.state() == FakeConfigfs().state()
    assert fake.kernel.names("class/nvme") == []


@pytest.mark.parametrize("more", [(), ("--json",), ("--dry-run",), ("--dry-run", "--json")], ids=" ".join)
def test_no_verb_tells_a_key(fake: Fake, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]) -> None:
    for words in VERBS:
        fake.run(*words, *more)
    for address in ("10.0.0.1",):
        fake.kernel.refuse[address] = ConnectRefused(5, (f"nvme nvme2: {address} refuses",))
    fake.run("host", "connect", *HOST, *more)
    fake.configfs.fail_at = fake.configfs.changes + 9
    fake.run("target", "apply", "{file}", *more)
    said = capsys.readouterr()
    assert fake.key[10:40] not in said.out + said.err
    assert "nqn.2026-11.com.example:decode1" in said.out
    written = [path for path in (fake.folder / "root").rglob("*") if path.is_file()]
    assert not [path for path in written if fake.key[10:40] in path.read_text()]


@pytest.mark.parametrize("words", CHANGING, ids=str)
def test_a_dry_run_changes_nothing_and_tells_what_would_be(
    fake: Fake, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    for earlier in VERBS[: VERBS.index(words)]:
        assert fake.run(*earlier) == 0
    capsys.readouterr()
    before = fake.state()
    assert fake.run(*words, "--dry-run") == 0
    assert fake.state() == before
    assert "nothing to do" not in capsys.readouterr().out
    assert fake.run(*words) == 0
    assert fake.state() != before


def test_the_plan_of_times_that_differ_is_what_connecting_writes(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fake.run("target", "apply", "{file}") == fake.run("host", "connect", *HOST) == 0
    fake.file.write_text(fake.file.read_text().replace("io_queues: 2", "io_queues: 2, reconnect_delay_s: 3"))
    fake.kernel.written.clear()
    capsys.readouterr()
    assert fake.run("plan", *HOST, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["changes"]
    assert fake.run("host", "connect", *HOST) == 0
    assert fake.kernel.written
    written = [f"printf %s {value} > /sys/{path}" for path, value in fake.kernel.written]
    assert [line for path in told["paths"] for line in path["commands"]] == written


def test_the_plan_begins_with_the_modules_that_are_not_loaded(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake.missing = ["nvmet", "nvmet-rdma"]
    for words in (("plan", "{file}"), ("plan", *HOST)):
        assert fake.run(*words) == 0
        assert capsys.readouterr().out.splitlines()[:2] == ["modprobe nvmet", "modprobe nvmet-rdma"]


@pytest.mark.parametrize("words", CHANGING, ids=str)
def test_a_second_run_changes_nothing(fake: Fake, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    for earlier in VERBS[: VERBS.index(words) + 1]:
        assert fake.run(*earlier) == 0
    before = fake.state()
    capsys.readouterr()
    assert fake.run(*words, "--json") == 0
    assert json.loads(capsys.readouterr().out)["changed"] is False
    assert fake.state() == before


def test_the_pools_line_is_all_there_is_on_standard_output(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    for words in VERBS[:6]:
        assert fake.run(*words) == 0
    capsys.readouterr()
    lines = []
    for _ in range(2):
        assert fake.run("pool", *HOST, *SIZE) == 0
        lines.append(capsys.readouterr().out)
    assert lines[0] == lines[1]
    assert lines[0].startswith("--l2-adapter '{")
    assert lines[0].count("\n") == 1


def test_an_owner_that_has_not_closed_the_pool_is_told(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    for words in VERBS[:7]:
        assert fake.run(*words) == 0
    capsys.readouterr()
    with kvstore.open([fake.folder / "drive1", fake.folder / "drive2"]):
        assert fake.run("pool", *HOST) == 0
        said = capsys.readouterr()
        assert re.search(r"not closed: opened by host [0-9a-f-]{36} at 20.* \(epoch \d+\).*takes it over", said.err)
        assert said.out.count("\n") == 1
        assert fake.run("pool", *HOST, "--json") == 0
        assert json.loads(capsys.readouterr().out)["owner"]["epoch"] > 1
    assert fake.run("pool", *HOST) == 0
    assert "not closed" not in capsys.readouterr().err


def test_persist_tells_how_nvme_cli_finds_the_host_in_its_file(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("persist", "host", "{file}", "--root", "{folder}/root", "--program", "nvmf-setup", "--json", "--host")
    told = []
    for host in ("decode2", "decode1"):
        assert fake.run(*words, host) == 0
        told.append(json.loads(capsys.readouterr().out)["nvme_cli"])
    nqn, host_id = "nqn.2026-11.com.example:decode2", "22222222-0000-4000-8000-000000000000"
    assert told == [f"nvme connect-all --hostnqn={nqn} --hostid={host_id}", ""]  # with a key there is no such file


def test_status_is_one_where_a_part_is_not_as_the_file_says(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert fake.run("target", "status", "{file}") == 1
    assert fake.run("host", "status", *HOST) == 1
    assert "fail  rdma 10.0.0.1:4420" in capsys.readouterr().out


def test_a_hosts_status_tells_queues_times_and_identities(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    for words in VERBS[2:5]:
        assert fake.run(*words) == 0
    capsys.readouterr()
    assert fake.run("host", "status", *HOST) == 0
    said = capsys.readouterr().out
    assert "nvme2 live\n" in said
    assert "2 queues of 128, keep-alive 5 s; when lost, reconnects every 2 s, fails requests after 5 s" in said
    assert re.search(rf"/dev/nvme9n1\n +NGUID {'1' * 32}, UUID 00000001-", said)
    (fake.folder / "sys/class/nvme/nvme2/fast_io_fail_tmo").write_text("off")
    assert fake.run("host", "status", *HOST) == 1
    assert "nvme2 live; fast_io_fail_tmo is -1, not 5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("ports/1/addr_traddr", "10.0.0.9", "listens at rdma 10.0.0.9:4420"),
        ("subsystems/nqn.2026-11.com.example:pool/attr_allow_any_host", "1", "and everybody else"),
        ("subsystems/nqn.2026-11.com.example:pool/namespaces/1/enable", "0", "absent"),
        ("subsystems/nqn.2026-11.com.example:pool/attr_serial", "other", "not as the file says"),
        ("hosts/nqn.2026-11.com.example:decode1/dhchap_key", "DHHC-1:00:other:", "not as the file says"),
    ],
)
def test_status_notices_what_somebody_changed(
    fake: Fake, capsys: pytest.CaptureFixture[str], path: str, value: str, told: str
) -> None:
    assert fake.run("target", "apply", "{file}") == 0
    assert fake.run("target", "status", "{file}") == 0
    capsys.readouterr()
    fake.configfs.nodes[path] = value
    assert fake.run("target", "status", "{file}") == 1
    said = capsys.readouterr().out
    assert told in said
    assert "DHHC" not in said


def test_status_notices_a_drive_that_was_pulled_or_exchanged(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert fake.run("target", "apply", "{file}") == 0
    (fake.folder / "drive1").rename(fake.folder / "pulled")
    assert fake.run("target", "status", "{file}") == 1
    assert "exported, but its drive is gone" in capsys.readouterr().out
    (fake.folder / "drive1").open("wb").truncate(BYTES)
    fake.file.write_text(fake.file.read_text().replace("serial: pool0", "serial: pool1"))
    for _ in range(2):  # applying what else has changed does not make it the drive that is exported
        assert fake.run("target", "status", "{file}") == 1
        assert "exported, but its name leads to another one now" in capsys.readouterr().out
        assert fake.run("target", "apply", "{file}") == 0
    assert fake.run("target", "remove") == fake.run("target", "apply", "{file}") == 0
    assert fake.run("target", "status", "{file}") == 0


def test_a_failure_is_one_sentence_on_standard_error(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake.configfs.fail_at = 7
    assert fake.run("target", "apply", "{file}", "--json") == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert json.loads(said.out)["error"]["message"] == said.err[7:-1]
    assert "All is as it was before." in said.err


def test_a_failure_of_the_system_is_one_sentence_too(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*arguments: object) -> list[str]:
        raise PermissionError(13, "Permission denied", "/sys/kernel/config/nvmet/ports")

    fake.configfs.names = refused  # type: ignore[method-assign]
    assert fake.run("target", "status", "{file}") == 1
    assert capsys.readouterr().err == "error: /sys/kernel/config/nvmet/ports: Permission denied: run it as root\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", "is no YAML"),
        ("", "is None, and should have subsystems, ports, hosts"),
        ("subsystems: {}\nsomething: 1", "has no something: there are subsystems"),
        ("subsystems: 7", "subsystems: is missing, or no list"),
        ("\udcff", "is no UTF-8 text"),
    ],
)
def test_a_bad_file_is_one_sentence_and_two(
    fake: Fake, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    fake.file.write_bytes(text.encode(errors="surrogateescape"))
    assert fake.run("plan", "{file}") == 2
    said = capsys.readouterr()
    assert told in said.err
    assert (said.err.count("\n"), said.out) == (1, "")


@pytest.mark.parametrize(
    ("there", "instead", "told"),
    [
        ("nqn: nqn.2026-11.com.example:pool", "nqn: nqn.2026-11.com.example:a/b", "write nqn.2026"),
        ("nqn: nqn.2026-11.com.example:pool", "nqn: 'nqn.2026-11.com.example:a,b'", "write nqn.2026"),
        ("ports: [1]", "ports: [3]", "names port 3: there are"),
        ("hosts: [decode1, decode2]", "hosts: [gpu1]", "names host 'gpu1'"),
        ("transport: rdma", "transport: fc", "allowed are rdma, tcp"),
        ("address: 10.0.0.1", "address: storage", "write an IP address, not a name"),
        ("address: 10.0.0.1", "address: 0.0.0.0", "is every address of the machine"),
        ("io_queues: 2", "fast_io_fail_s: 700", "longer than controller_loss_s"),
        ("io_queues: 2", "io_queues: 0", "allowed are 1 to 1024"),
        ("nsid: 2", "nsid: 1", "is there twice"),
        ('nguid: "22222222222222222222222222222222"', 'nguid: "22"', "write 32 hexadecimal digits"),
        ("/decode1.key", "/../{}", "holds no key|cannot be read"),
    ],
)
def test_what_cannot_be_is_told_with_its_place(
    fake: Fake, capsys: pytest.CaptureFixture[str], there: str, instead: str, told: str
) -> None:
    text = fake.file.read_text()
    assert there in text
    fake.file.write_text(text.replace(there, instead))
    assert fake.run("plan", "{file}") != 0
    said = capsys.readouterr().err
    assert any(part in said for part in told.split("|"))
    assert said.count("\n") == 1


@pytest.mark.parametrize("words", [(), ("host", "connect", "{file}"), ("plan",), ("plan", "{file}", "--host", "gpu1")])
def test_wrong_words_are_not_a_crash(fake: Fake, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    try:
        status = fake.run(*words)
    except SystemExit as ended:
        status = int(str(ended.code))
    assert status in (1, 2)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1", "soon"])
def test_a_time_that_would_never_come_is_refused(fake: Fake, capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    with pytest.raises(SystemExit) as ended:
        fake.run("host", "connect", *HOST, f"--timeout={seconds}")
    assert ended.value.code == 2
    assert f"{seconds} is no time: a number of seconds above 0" in capsys.readouterr().err


def test_without_yaml_it_says_what_to_install(
    fake: Fake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert fake.run("plan", "{file}") == 2
    assert "pip install 'nvme-kvstore[nvmf]'" in capsys.readouterr().err


def test_an_arrays_file_has_no_devices_and_no_target(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    text = fake.file.read_text()
    for number in (1, 2):
        text = text.replace(
            f" device: {fake.folder}/drive{number}, uuid: 0000000{number}-0000-4000-8000-000000000000,", ""
        )
    fake.file.write_text(text)
    fake.kernel.spec = read_spec(fake.file)
    assert fake.run("target", "apply", "{file}") == 1
    assert "has no device: it is an array's" in capsys.readouterr().err
    assert [fake.run(*words) for words in VERBS[4:7]] == [0, 0, 0]


def test_one_drive_under_two_names_is_refused(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    (fake.folder / "drive2").unlink()
    (fake.folder / "drive2").symlink_to(fake.folder / "drive1")
    assert fake.run("target", "apply", "{file}") == 1
    assert "drive2 are one drive" in capsys.readouterr().err
    assert fake.configfs.changes == 0


def test_a_drive_that_somebody_else_exports_is_refused(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    part = "subsystems/nqn.2020-01.org.other:x/namespaces/7"
    fake.configfs.mkdir(part.partition("/namespaces")[0])
    fake.configfs.mkdir(part)
    fake.configfs.nodes |= {f"{part}/device_path": f"{fake.folder}/drive2", f"{part}/enable": "1"}
    before = fake.configfs.state()
    assert fake.run("target", "apply", "{file}") == 1
    assert "subsystem nqn.2020-01.org.other:x exports" in capsys.readouterr().err
    assert fake.configfs.state() == before


def test_a_drive_that_is_taken_while_an_address_is_waited_for_is_refused(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    def wait(address: str, seconds: float) -> None:
        (fake.folder / "drive1").write_bytes(b"XFSB" + bytes(BYTES - 4))

    fake.wait = wait  # type: ignore[method-assign]
    assert fake.run("target", "apply", "{file}") == 1
    assert "drive1 holds" in capsys.readouterr().err
    assert fake.configfs.changes == 0


@pytest.mark.parametrize("at", ["device_nguid", "enable"], ids=["before it is exported", "while it is"])
def test_a_name_that_leads_elsewhere_than_when_looked_at_is_not_exported(
    fake: Fake, capsys: pytest.CaptureFixture[str], at: str
) -> None:
    write = fake.configfs.write

    def moving(path: str, value: str) -> None:
        write(path, value)
        if path.endswith(f"namespaces/1/{at}") and value != "0":
            (fake.folder / "drive1").rename(fake.folder / "pulled")
            (fake.folder / "drive1").write_bytes(b"another's")

    fake.configfs.write = moving  # type: ignore[method-assign]
    assert fake.run("target", "apply", "{file}") == 1
    assert "leads to another drive than a moment ago. See ls -l" in capsys.readouterr().err
    assert fake.configfs.state() == FakeConfigfs().state()


def test_removing_tells_of_subsystems_that_it_leaves_alone(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake.configfs.mkdir("subsystems/nqn.2020-01.org.other:x")
    before = fake.configfs.state()
    assert fake.run("target", "remove") == 0
    said = capsys.readouterr()
    assert said.out == "nothing to do\n"
    assert "there: nqn.2020-01.org.other:x; by " in said.err
    assert fake.configfs.state() == before


def test_no_drive_is_taken_away_under_a_connected_host(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    nqn = "nqn.2026-11.com.example:pool"
    assert fake.run("target", "apply", "{file}") == 0
    (fake.folder / "drive3").open("wb").truncate(BYTES)
    fake.file.write_text(fake.file.read_text().replace("drive2", "drive3"))
    fake.connected = ["nqn.2026-11.com.example:decode1"]
    before = fake.configfs.state()
    for words in (("target", "apply", "{file}"), ("target", "remove")):
        assert fake.run(*words) == 1
        assert f"{nqn} has hosts connected, and this takes drives away under them" in capsys.readouterr().err
        assert fake.configfs.state() == before
    for words in (("target", "apply", "{file}"), ("target", "remove")):
        assert fake.run(*words, "--force", nqn) == 0
    assert fake.configfs.state() == FakeConfigfs().state()


def test_connected_hosts_are_those_of_the_kernels_debugfs(tmp_path: Path) -> None:
    assert connected_hosts("nqn:pool", tmp_path) is None
    (tmp_path / "nqn:pool/ns1").mkdir(parents=True)
    assert connected_hosts("nqn:pool", tmp_path) == []
    for number, host in enumerate(("nqn:b", "nqn:a", "nqn:b")):
        (tmp_path / f"nqn:pool/ctrl{number}").mkdir()
        (tmp_path / f"nqn:pool/ctrl{number}/hostnqn").write_text(f"{host}\n")
    (tmp_path / "nqn:pool/ctrl9").mkdir()  # just going
    assert connected_hosts("nqn:pool", tmp_path) == ["nqn:a", "nqn:b"]


def test_a_failed_run_leaves_no_record_of_what_it_took_back(fake: Fake) -> None:
    fake.configfs.fail_at = 9
    assert fake.run("target", "apply", "{file}") == 1
    record = json.loads((fake.folder / "state/target.json").read_text())
    assert not any(record[name] for name in ("subsystems", "ports", "hosts", "inside", "made", "drives"))


@pytest.mark.parametrize("killed_after", ["the record", "all"])
def test_what_bears_a_name_of_the_record_and_was_not_made_here_stays(
    fake: Fake, capsys: pytest.CaptureFixture[str], killed_after: str
) -> None:
    assert fake.run("target", "apply", "{file}") == 0
    if killed_after == "the record":
        record = fake.folder / "state/target.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"made": {}}))
    fake.configfs.nodes, fake.configfs.links = FakeConfigfs().state()  # as after modprobe -r nvmet
    fake.configfs.mkdir("ports/1")
    before = fake.configfs.state()
    assert fake.run("target", "remove") == 0
    assert fake.run("target", "apply", "{file}") == 1
    assert "1 is there already in ports, and nvmf-setup did not make it" in capsys.readouterr().err
    assert fake.configfs.state() == before


def test_what_a_killed_run_made_is_ours(fake: Fake) -> None:
    tree, record = fake.configfs, fake.folder / "state/target.json"
    write: Callable[[str, str], None] = tree.write
    midway: list[Any] = []

    def watched(path: str, value: str) -> None:
        if path == "ports/1/addr_traddr":
            midway.extend([*tree.state(), record.read_bytes()])
        write(path, value)

    tree.write = watched  # type: ignore[method-assign]
    assert fake.run("target", "apply", "{file}") == 0
    tree.nodes, tree.links, left = midway
    record.write_bytes(left)
    assert fake.run("target", "remove") == 0
    assert tree.state() == FakeConfigfs().state()


@pytest.mark.parametrize("words", [("target", "apply", "{file}"), ("target", "remove")], ids=" ".join)
def test_what_undoing_made_again_is_still_ours(fake: Fake, words: tuple[str, ...]) -> None:
    assert fake.run("target", "apply", "{file}") == 0
    fake.file.write_text(fake.file.read_text().replace("ports: [1]", "ports: [2]").replace("{id: 1,", "{id: 2,"))
    fake.configfs.fail_at = fake.configfs.changes + 8
    assert fake.run(*words) == 1
    record = json.loads((fake.folder / "state/target.json").read_text())
    assert record["made"]["ports/1"] == fake.configfs.identity("ports/1")
    assert fake.run("target", "remove") == 0
    assert fake.configfs.state() == FakeConfigfs().state()


def test_a_host_that_is_interrupted_or_ended_takes_back_what_it_did(fake: Fake) -> None:
    assert fake.run("target", "apply", "{file}") == 0
    fake.file.write_text(fake.file.read_text().replace("ports: [1]", "ports: [1, 2]").replace(
        "ports:\n  - {id: 1", "ports:\n  - {id: 2, transport: tcp, address: 10.0.0.2}\n  - {id: 1"))  # fmt: skip
    connect = fake.kernel.connect

    def ended(line: str, within_s: float) -> str:
        if "transport=tcp" in line:
            signal.raise_signal(signal.SIGTERM)
        return connect(line, within_s)

    fake.kernel.connect = ended  # type: ignore[method-assign]
    assert fake.run("host", "connect", *HOST) == 130
    assert len(fake.kernel.lines) == 1
    assert fake.kernel.names("class/nvme") == []


def test_one_run_waits_for_another_and_looking_does_not(
    fake: Fake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.nvmf.cli.only_one", lambda path: only_one(path, 0.0))
    with only_one(fake.folder / "state/lock"):
        assert fake.run("target", "apply", "{file}") == 1
        assert "another nvmf-setup is at work here" in capsys.readouterr().err
        assert fake.run("target", "apply", "{file}", "--dry-run") == 0
    assert fake.configfs.changes == 0


def test_a_run_that_is_interrupted_takes_back_what_it_did(fake: Fake) -> None:
    write: Callable[[str, str], None] = fake.configfs.write

    def interrupted(path: str, value: str) -> None:
        if path.endswith("/addr_traddr"):
            raise KeyboardInterrupt
        write(path, value)

    fake.configfs.write = interrupted  # type: ignore[method-assign]
    assert fake.run("target", "apply", "{file}") == 130
    assert fake.configfs.state() == FakeConfigfs().state()


def test_a_run_without_a_standard_output_is_a_run(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # nvmf-setup … >&-
    assert fake.run("target", "apply", "{file}") == 0
    assert fake.run("target", "status", "{file}") == 0
