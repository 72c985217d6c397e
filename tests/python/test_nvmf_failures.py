# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Every verb of nvmf-setup: has --json and --dry-run, and says the mend when it fails, in both forms.

Method: the verbs are the parser's own, so that one which is added later is missed here until it has a row of each.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from nvmf_check_support import PORT
from nvmf_cli_support import BYTES, HOST, SIZE, VERBS, Fake

from kvstore.errors import WaitTimeout
from kvstore.nvmf.cli import build_parser
from kvstore.nvmf.fabrics import ConnectRefused

PERSIST = ("--root", "{folder}/root", "--program", "nvmf-setup")


def verbs(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Each verb, as words, and its options."""
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for group in groups:
        for name, child in group.choices.items():
            yield from verbs(child, (*words, name))
    if not groups:
        yield words, {option for one in parser._actions for option in one.option_strings}


ALL = dict(verbs(build_parser()))


def verb_of(words: tuple[str, ...]) -> tuple[str, ...]:
    return words[:2] if words[:2] in ALL else words[:1]


def test_every_verb_has_json_and_dry_run_and_is_walked() -> None:
    assert len(ALL) >= 11
    assert [words for words, options in ALL.items() if not {"--json", "--dry-run", "--help"} <= options] == []
    assert {verb_of(words) for words in VERBS} == set(ALL)


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_every_verb_reports_in_json_dry_or_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    fake = Fake(tmp_path)
    for earlier in VERBS[: VERBS.index(words)]:
        fake.run(*earlier)
    capsys.readouterr()
    for more in (("--dry-run",), ()):
        assert fake.run(*words, "--json", *more) == 0
        said = capsys.readouterr()
        assert isinstance(json.loads(said.out), dict)
        assert said.err == ""


# ---- what can go wrong, and what is said then ----


def nothing(fake: Fake) -> None:
    pass


def edit(fake: Fake, there: str, instead: str) -> None:
    text = fake.file.read_text()
    assert there in text
    fake.file.write_text(text.replace(there, instead))


def no_drive(fake: Fake) -> None:
    (fake.folder / "drive1").unlink()


def a_file_system(fake: Fake) -> None:
    (fake.folder / "drive1").write_bytes(b"XFSB" + bytes(BYTES - 4))


def one_drive_twice(fake: Fake) -> None:
    (fake.folder / "drive2").unlink()
    (fake.folder / "drive2").symlink_to("drive1")


def exported(fake: Fake) -> None:
    assert fake.run("target", "apply", "{file}") == 0


def connected(fake: Fake) -> None:
    exported(fake)
    assert fake.run("host", "connect", *HOST) == 0


def pooled(fake: Fake) -> None:
    connected(fake)
    assert fake.run("pool", *HOST, *SIZE) == 0


def hosts_at_work(fake: Fake) -> None:
    exported(fake)
    fake.connected = ["nqn.2026-11.com.example:decode1"]


def used(fake: Fake) -> None:
    connected(fake)
    fake.holder = "process 7 (fio) has it open"


def no_key(fake: Fake) -> None:
    (fake.folder / "decode1.key").unlink()


def open_key(fake: Fake) -> None:
    (fake.folder / "decode1.key").chmod(0o644)


def key_gone_from_the_file(fake: Fake) -> None:
    exported(fake)
    edit(fake, f"    key_file: {fake.folder}/decode1.key\n", "")


def no_address(fake: Fake) -> None:
    def wait(address: str, seconds: float) -> None:
        raise WaitTimeout(f"{address} is not this machine's after {seconds:g} s: see `ip address`")

    fake.wait = wait  # type: ignore[method-assign]


def a_step_fails(fake: Fake) -> None:
    fake.configfs.fail_at = 7


def somebody_elses(fake: Fake) -> None:
    fake.configfs.mkdir("ports/1")


def not_root(fake: Fake) -> None:
    def refused(*arguments: object) -> list[str]:
        raise PermissionError(13, "Permission denied", "/sys/kernel/config/nvmet/ports")

    fake.configfs.names = refused  # type: ignore[method-assign]
    fake.kernel.names = refused  # type: ignore[method-assign]


def a_broken_record(fake: Fake) -> None:
    (fake.folder / "state").mkdir()
    (fake.folder / "state/target.json").write_text("{")


def nobody_listens(fake: Fake) -> None:
    fake.kernel.refuse["10.0.0.1"] = ConnectRefused(111)


def not_let_in(fake: Fake) -> None:
    fake.kernel.refuse["10.0.0.1"] = ConnectRefused(5, ("nvme nvme2: Connect Invalid Host",))


def silent(fake: Fake) -> None:
    fake.kernel.refuse["10.0.0.1"] = WaitTimeout("the kernel has not connected within 30 s: does the target answer")


def fewer_queues(fake: Fake) -> None:
    fake.kernel.grants["queue_count"] = "2"


def stuck(fake: Fake) -> None:
    connected(fake)
    fake.kernel.stuck = {"nvme2"}


def swapped(fake: Fake) -> None:
    pooled(fake)
    one, two = (fake.folder / f"dev/nvme9n{number}" for number in (1, 2))
    targets = [two.readlink(), one.readlink()]
    for link, to in zip((one, two), targets, strict=True):
        link.unlink()
        link.symlink_to(to)


def foreign_namespace(fake: Fake) -> None:
    connected(fake)
    a_file_system(fake)


def foreign_unit(fake: Fake) -> None:
    for name in ("target", "host"):
        unit = fake.folder / f"root/etc/systemd/system/kvstore-nvmf-{name}.service"
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.write_text("[Unit]\n")


def an_arrays(fake: Fake) -> None:
    fake.file.write_text(re.sub(r"device: \S+, uuid: \S+,", "", fake.file.read_text()))


def link_down(fake: Fake) -> None:
    (fake.checked.root / PORT.lstrip("/") / "state").write_text("1: DOWN")


def one_port_twice(fake: Fake) -> None:
    edit(fake, "ports: [1]", "ports: [1, 1]")


@dataclass(frozen=True)
class Failure:
    words: tuple[str, ...]
    prepare: Callable[[Fake], None]
    mend: str
    status: int = 1


FAILURES = [
    Failure(("plan", "{file}"), no_drive, "see ls -l /dev/disk/by-id"),
    Failure(("plan", "{file}"), one_port_twice, "name it once", 2),
    Failure(("plan", "{folder}/none.yaml"), nothing, "No such file", 2),
    Failure(("plan", "{file}", "--host", "gpu1"), nothing, "there are decode1, decode2", 2),
    Failure(("target", "apply", "{file}"), a_file_system, "If that may go: --force .*/drive1"),
    Failure(("target", "apply", "{file}"), one_drive_twice, "name it once"),
    Failure(("target", "apply", "{file}"), no_key, "No such file"),
    Failure(("target", "apply", "{file}"), open_key, "chmod 600 .*, and make a new key"),
    Failure(("target", "apply", "{file}"), key_gone_from_the_file, "or nvmf-setup target remove, then apply"),
    Failure(("target", "apply", "{file}"), no_address, "see `ip address`"),
    Failure(("target", "apply", "{file}"), a_step_fails, "See dmesg. All is as it was before"),
    Failure(("target", "apply", "{file}"), somebody_elses, "take another name in .*, or remove it"),
    Failure(("target", "apply", "{file}"), an_arrays, "name the drive"),
    Failure(("target", "apply", "{file}"), not_root, "run it as root"),
    Failure(("target", "status", "{file}"), nothing, "nvmf-setup plan .*nvmf-setup target apply makes it so"),
    Failure(("target", "status", "{file}"), not_root, "run it as root"),
    Failure(("target", "remove"), hosts_at_work, "host disconnect there, or --force nqn"),
    Failure(("target", "remove"), a_broken_record, "remove"),
    Failure(("host", "connect", *HOST), nobody_listens, "nvmf-setup target apply on the target"),
    Failure(("host", "connect", *HOST), not_let_in, "name .* under hosts of"),
    Failure(("host", "connect", *HOST), silent, "does the target answer"),
    Failure(("host", "connect", *HOST), fewer_queues, "write what it gives in the file"),
    Failure(("host", "connect", "{file}", "--host", "gpu1"), nothing, "there are decode1", 2),
    Failure(("host", "status", *HOST), nothing, "nvmf-setup plan .* --host decode1 .*host connect makes it so"),
    Failure(("host", "status", "{file}", "--host", "gpu1"), nothing, "there are decode1", 2),
    Failure(("host", "disconnect", *HOST), used, f"End that, or: --force {'1' * 32}"),
    Failure(("host", "disconnect", *HOST, "--force", "nvme9n1"), connected, "name it by its NGUID"),
    Failure(("host", "disconnect", *HOST), stuck, "See dmesg"),
    Failure(("pool", *HOST), nothing, "nvmf-setup host connect"),
    Failure(("pool", *HOST), foreign_namespace, f"if that may go: --force {'1' * 32}"),
    Failure(("pool", *HOST), swapped, "Put the drives in the target's file right|If that is meant, remove"),
    Failure(("pool", *HOST, "--force", "nvme9n1"), connected, "name it by its NGUID"),
    Failure(("persist", "target", "{file}", *PERSIST), foreign_unit, "--force /etc/systemd/system/kvstore-nvmf-target"),
    Failure(("persist", "target", "{file}", *PERSIST), an_arrays, "name the drive"),
    Failure(("persist", "host", *HOST, *PERSIST), foreign_unit, "--force /etc/systemd/system/kvstore-nvmf-host"),
    Failure(("check", "{file}"), link_down, "ip link set dev eth0 up"),
    Failure(("check", "{file}", "--host", "gpu1"), nothing, "there are decode1", 2),
    Failure(("check", "--host", "gpu1"), nothing, "name that, too", 2),
]


def test_each_verb_has_a_way_to_fail_here() -> None:
    assert {verb_of(one.words) for one in FAILURES} == set(ALL)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda one: f"{' '.join(one.words[:2])}, {one.prepare.__name__}")
def test_whoever_fails_says_the_mend_to_people_and_to_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], failure: Failure
) -> None:
    fake = Fake(tmp_path)
    failure.prepare(fake)
    capsys.readouterr()
    assert fake.run(*failure.words) == failure.status
    said = capsys.readouterr()
    assert re.search(failure.mend, said.out + said.err), said
    fake.configfs.changes = 0  # which step is to fail is counted from there
    assert fake.run(*failure.words, "--json") == failure.status
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert re.search(failure.mend, json.dumps(told, ensure_ascii=False)), told
    assert said.err.count("\n") <= 1
