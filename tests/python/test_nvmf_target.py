# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""nvmf-setup on a target: a second run changes nothing, one that fails leaves all as it was, nobody else's is touched.

Method: a fake of the kernel's configfs that refuses what the kernel refuses, and fails at every single change in turn.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from nvmf_support import FakeConfigfs

from kvstore.errors import ConfigError, ForeignDataError
from kvstore.nvmf.record import Record, read_record, write_record
from kvstore.nvmf.spec import Connection, Host, Namespace, Port, Spec, Subsystem
from kvstore.nvmf.steps import Step, StepFailed, apply
from kvstore.nvmf.target_plan import record_of, removal_plan, target_plan
from kvstore.nvmf.tree import NVMET, DirectoryTree

NQN = "nqn.2026-11.com.example:pool"
KEYS = {"/keys/a": "DHHC-1:00:aaaa:", "/keys/b": "DHHC-1:00:bbbb:"}


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    drives = []
    for number in (1, 2):
        (tmp_path / f"drive{number}").touch()
        drives.append(Namespace(number, f"{tmp_path}/drive{number}", f"0000000{number}-0000-4000-8000-000000000000",
                                f"{number:032x}"))  # fmt: skip
    hosts = (
        Host("decode1", "nqn.2026-11.com.example:decode1", "11111111-0000-4000-8000-000000000000", "/keys/a"),
        Host("decode2", "nqn.2026-11.com.example:decode2", "22222222-0000-4000-8000-000000000000"),
    )
    ports = (Port(1, "rdma", "10.0.0.1", 4420), Port(2, "tcp", "10.0.0.1", 4420))
    one = Subsystem(NQN, "pool0", tuple(drives), ("decode1", "decode2"), (1, 2))
    return Spec("pool.yaml", (one,), ports, hosts, Connection())


def plan(spec: Spec, tree: FakeConfigfs, ours: Record | None = None) -> list[Step]:
    return target_plan(spec, tree, Record() if ours is None else ours, KEYS.__getitem__)


def do(steps: list[Step], tree: FakeConfigfs) -> None:
    apply(steps, tree, NVMET, lambda step, error: "Mend it.")


def set_up(spec: Spec) -> FakeConfigfs:
    tree = FakeConfigfs()
    do(plan(spec, tree), tree)
    return tree


def test_everything_of_the_file_is_there_and_nobody_else_is_let_in(spec: Spec) -> None:
    tree = set_up(spec)
    subsystem = f"subsystems/{NQN}"
    assert tree.read(f"{subsystem}/attr_allow_any_host") == "0"
    assert tree.names(f"{subsystem}/allowed_hosts") == [host.nqn for host in spec.hosts]
    assert [tree.read(f"{subsystem}/namespaces/{nsid}/enable") for nsid in (1, 2)] == ["1", "1"]
    assert tree.names("ports/1/subsystems") == tree.names("ports/2/subsystems") == [NQN]
    assert tree.read(f"hosts/{spec.hosts[0].nqn}/dhchap_key") == KEYS["/keys/a"]


def test_a_second_run_changes_nothing(spec: Spec) -> None:
    assert plan(spec, set_up(spec), record_of(spec)) == []


def test_no_host_sees_a_subsystem_before_it_is_complete(spec: Spec) -> None:
    steps = plan(spec, FakeConfigfs())
    first_link = next(i for i, step in enumerate(steps) if step.action == "link" and step.path.startswith("ports/"))
    assert not [step for step in steps[first_link:] if step.path.startswith(("subsystems/", "hosts/"))]


def test_what_was_made_is_removed_and_nothing_else(spec: Spec) -> None:
    tree = FakeConfigfs()
    for path in ("subsystems/nqn.2020-01.org.other:x", "ports/9", "hosts/nqn.2020-01.org.other:h"):
        tree.mkdir(path)
    before = tree.state()
    do(plan(spec, tree), tree)
    do(removal_plan(tree, record_of(spec)), tree)
    assert tree.state() == before
    assert removal_plan(tree, record_of(spec)) == []


def changes_of(spec: Spec) -> dict[str, Spec]:
    """Files that an operator may write after the first one."""
    (subsystem,) = spec.subsystems
    first, second = subsystem.namespaces
    return {
        "the same": spec,
        "another address": replace(spec, ports=(replace(spec.ports[0], address="10.0.0.2"), spec.ports[1])),
        "another drive": replace(
            spec, subsystems=(replace(subsystem, namespaces=(replace(first, device=second.device),)),)
        ),
        "a host less": replace(spec, hosts=spec.hosts[:1], subsystems=(replace(subsystem, hosts=("decode1",)),)),
        "a port less": replace(spec, ports=spec.ports[:1], subsystems=(replace(subsystem, ports=(1,)),)),
        "another key": replace(spec, hosts=(replace(spec.hosts[0], key_file="/keys/b"), spec.hosts[1])),
        "first keys": replace(
            spec,
            hosts=(
                replace(spec.hosts[0], key_file="/keys/b", controller_key_file="/keys/a"),
                replace(spec.hosts[1], key_file="/keys/a", controller_key_file="/keys/b"),
            ),
        ),
        "another subsystem": replace(spec, subsystems=(replace(subsystem, nqn=NQN + "2", serial="pool2"),)),
    }


def test_only_identities_are_compared_whatever_their_dashes_and_case(spec: Spec, tmp_path: Path) -> None:
    def with_(device: str, serial: str, nguid: str) -> Spec:
        (tmp_path / device).touch()
        namespace = replace(spec.subsystems[0].namespaces[0], device=f"{tmp_path}/{device}", nguid=nguid)
        return replace(spec, subsystems=(replace(spec.subsystems[0], namespaces=(namespace,), serial=serial),))

    before = with_("vg-DATA", "POOL-1", "A" * 32)
    tree = set_up(before)
    path = f"subsystems/{NQN}"
    for device, serial, nguid, changed in [
        ("vg-DATA", "POOL-1", "a" * 32, None),
        ("vgdata", "POOL-1", "A" * 32, f"{path}/namespaces/1/device_path"),
        ("vg-DATA", "pool1", "A" * 32, f"{path}/attr_serial"),
    ]:
        steps = plan(with_(device, serial, nguid), tree, record_of(before))
        assert [step.path for step in steps if not step.path.endswith("/enable")] == ([changed] if changed else [])


CHANGES = ["the same", "another address", "another drive", "a host less", "a port less", "another key", "first keys",
           "another subsystem"]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_leads_to_the_same_as_a_fresh_start(spec: Spec, change: str) -> None:
    tree, wanted = set_up(spec), changes_of(spec)[change]
    do(plan(wanted, tree, record_of(spec)), tree)
    assert tree.state() == set_up(wanted).state()
    assert plan(wanted, tree, record_of(wanted)) == []


@pytest.mark.parametrize("change", ["from nothing", "to nothing", *CHANGES[1:]])
def test_whichever_step_fails_all_is_as_it_was(spec: Spec, change: str) -> None:
    def steps_and_tree() -> tuple[list[Step], FakeConfigfs]:
        tree = FakeConfigfs() if change == "from nothing" else set_up(spec)
        if change == "to nothing":
            return removal_plan(tree, record_of(spec)), tree
        wanted = changes_of(spec).get(change, spec)
        return plan(wanted, tree, Record() if change == "from nothing" else record_of(spec)), tree

    steps, _ = steps_and_tree()
    assert steps
    for failing in range(1, len(steps) + 1):
        steps, tree = steps_and_tree()
        before, tree.changes, tree.fail_at = tree.state(), 0, failing
        with pytest.raises(StepFailed, match=r"Input/output error\. Mend it\. All is as it was before"):
            do(steps, tree)
        assert tree.state() == before, f"step {failing}: {steps[failing - 1].command(NVMET)}"


def test_a_run_that_was_killed_midway_is_finished_or_undone_by_the_next(spec: Spec) -> None:
    def killed(after: int) -> FakeConfigfs:
        tree = FakeConfigfs()
        for step in plan(spec, tree)[:after]:
            step.do(tree)
        return tree

    for after in range(len(plan(spec, FakeConfigfs()))):
        tree = killed(after)
        do(plan(spec, tree, record_of(spec)), tree)
        assert tree.state() == set_up(spec).state()
        tree = killed(after)
        before = tree.state()
        steps = plan(spec, tree, record_of(spec))
        tree.fail_at = tree.changes + len(steps)
        with pytest.raises(StepFailed, match="All is as it was before"):
            do(steps, tree)
        assert tree.state() == before


@pytest.mark.parametrize("change", ["to nothing", "another subsystem", "a port less"])
def test_what_was_set_by_hand_is_back_when_a_later_step_fails(spec: Spec, change: str) -> None:
    def set_up_by_hand() -> FakeConfigfs:
        tree = set_up(spec)
        tree.nodes |= {
            "ports/2/addr_tsas": "tls1.3",
            "ports/2/addr_treq": "required",
            "ports/2/ana_groups/1/ana_state": "inaccessible",
            f"subsystems/{NQN}/attr_cntlid_min": "50",
            f"hosts/{spec.hosts[0].nqn}/dhchap_hash": "hmac(sha512)",
        }
        return tree

    def steps_on(tree: FakeConfigfs) -> list[Step]:
        if change == "to nothing":
            return removal_plan(tree, record_of(spec))
        return plan(changes_of(spec)[change], tree, record_of(spec))

    for failing in range(1, len(steps_on(set_up_by_hand())) + 1):
        tree = set_up_by_hand()
        before, tree.changes, tree.fail_at = tree.state(), 0, failing
        with pytest.raises(StepFailed, match="All is as it was before"):
            do(steps_on(tree), tree)
        assert tree.state() == before


@pytest.mark.parametrize("child", ["ports/1/referrals/x", "ports/1/ana_groups/2"])
def test_a_port_with_parts_that_would_not_come_back_is_not_removed(spec: Spec, child: str) -> None:
    tree = set_up(spec)
    tree.mkdir(child)
    with pytest.raises(ForeignDataError, match=f"somebody else put {child} into"):
        removal_plan(tree, record_of(spec))


def test_a_host_that_is_let_in_no_more_is_cut_off_and_the_others_come_back(spec: Spec) -> None:
    tree = set_up(spec)
    assert len(tree.live) == 2
    do(plan(changes_of(spec)["a host less"], tree, record_of(spec)), tree)
    assert tree.live == {(NQN, "nqn.2026-11.com.example:decode1")}


@pytest.mark.parametrize(
    "changed", ["hosts/nqn.2026-11.com.example:decode1/dhchap_key", f"subsystems/{NQN}/attr_allow_any_host"]
)
def test_whoever_came_by_another_key_or_by_none_is_cut_off(spec: Spec, changed: str) -> None:
    tree = set_up(spec)
    tree.nodes[changed] = "1"
    steps = plan(spec, tree, record_of(spec))
    links = [f"ports/{port}/subsystems/{NQN}" for port in (1, 2)]
    ends = [(action, link) for link in links for action in ("unlink", "link")]
    # Nothing is between: a host that comes to a port that listens without the subsystem gives up for good.
    assert [(step.action, step.path) for step in steps] == [("write", changed), *ends]


def test_what_cannot_be_undone_is_told_as_commands(spec: Spec) -> None:
    class Stubborn(FakeConfigfs):
        def rmdir(self, path: str) -> None:
            self._refuse(16, path)

    tree = Stubborn()
    steps = plan(spec, tree)
    tree.fail_at = 5
    with pytest.raises(StepFailed, match=r"Not undone, do it by hand: rmdir /sys/kernel/config/nvmet/.*resource busy"):
        do(steps, tree)


@pytest.mark.parametrize("path", [f"subsystems/{NQN}", "ports/1", "hosts/nqn.2026-11.com.example:decode1"])
def test_somebody_elses_of_the_same_name_is_refused(spec: Spec, path: str) -> None:
    tree = FakeConfigfs()
    tree.mkdir(path)
    with pytest.raises(ForeignDataError, match="nvmf-setup did not make it: take another name in"):
        plan(spec, tree)


def test_what_somebody_else_put_into_ours_is_neither_cut_off_nor_taken_over(spec: Spec) -> None:
    other, host = "subsystems/nqn.2020-01.org.other:x", "hosts/nqn.2020-01.org.other:h"
    (subsystem,) = spec.subsystems
    first, second = subsystem.namespaces
    third = replace(spec, subsystems=(replace(subsystem, namespaces=(first, replace(second, nsid=3))),))
    for path, to, wanted in [
        ("ports/1/subsystems/nqn.2020-01.org.other:x", other, spec),
        (f"subsystems/{NQN}/allowed_hosts/nqn.2020-01.org.other:h", host, spec),
        (f"subsystems/{NQN}/namespaces/3", "", spec),
        (f"subsystems/{NQN}/namespaces/3", "", third),
    ]:
        tree = set_up(spec)
        for made in (other, host):
            tree.mkdir(made)
        if to:
            tree.link(path, to)
        else:
            tree.mkdir(path)
        with pytest.raises(ForeignDataError, match=f"somebody else put {path} into"):
            plan(wanted, tree, record_of(spec))
        with pytest.raises(ForeignDataError, match=f"somebody else put {path} into"):
            removal_plan(tree, record_of(spec))


def test_a_host_that_somebody_elses_subsystem_lets_in_stays(spec: Spec) -> None:
    tree = set_up(spec)
    tree.mkdir("subsystems/nqn.2020-01.org.other:x")
    host = spec.hosts[0].nqn
    tree.link(f"subsystems/nqn.2020-01.org.other:x/allowed_hosts/{host}", f"hosts/{host}")
    do(removal_plan(tree, record_of(spec)), tree)
    assert tree.names("hosts") == [host]


def test_no_command_tells_a_key(spec: Spec) -> None:
    texts = " ".join(step.command(NVMET) for step in plan(spec, FakeConfigfs()))
    assert "dhchap_key" in texts
    assert "DHHC" not in texts


def test_a_key_is_not_taken_off_by_leaving_it_out(spec: Spec) -> None:
    tree = set_up(spec)
    without = replace(spec, hosts=(replace(spec.hosts[0], key_file=None), spec.hosts[1]))
    with pytest.raises(ConfigError, match="decode1 has a key"):
        plan(without, tree, record_of(spec))


def test_a_record_is_what_was_written_and_a_broken_one_is_refused(spec: Spec, tmp_path: Path) -> None:
    path = tmp_path / "state" / "target.json"
    assert read_record(path) == Record()
    write_record(path, record_of(spec))
    assert read_record(path) == record_of(spec)
    assert [file.name for file in path.parent.iterdir()] == ["target.json"]
    path.write_text("{")
    with pytest.raises(ConfigError, match="tells what nvmf-setup made here"):
        read_record(path)


def test_a_record_of_another_boot_says_nothing(spec: Spec, tmp_path: Path) -> None:
    path = tmp_path / "target.json"
    write_record(path, record_of(spec))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"boot": "another"}))
    assert read_record(path) == Record()


def test_a_directory_tree_does_what_configfs_needs(tmp_path: Path) -> None:
    tree = DirectoryTree(tmp_path)
    tree.mkdir("ports")
    tree.mkdir("ports/1")
    (tmp_path / "ports/1/addr").write_text("old one\n")
    tree.write("ports/1/addr", "new one")  # without truncating, as the kernel's attributes are written
    tree.link("link", "ports/1")
    assert (tree.read("link/addr"), tree.names("ports"), tree.names("nothing")) == ("new one", ["1"], [])
    tree.unlink("link")
    assert not tree.exists("link")
    assert tree.exists("ports/1/addr")
