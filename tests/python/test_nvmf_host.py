# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""nvmf-setup on a host: every path connected with just the options of the file, or none; others' are never touched.

Method: a fake of the kernel's /dev/nvme-fabrics and /sys that refuses as the kernel does, with its errno and its log.
"""

from __future__ import annotations

import errno
import os
import shlex
import tty
import uuid
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from nvmf_host_support import OPTIONS, FakeHostKernel

from kvstore.errors import BusyError, ConfigError, WaitTimeout
from kvstore.nvmf.fabrics import ConnectRefused, KernelFabrics, StillConnecting
from kvstore.nvmf.host import ConnectFailed, LocalHost
from kvstore.nvmf.host_plan import host_paths
from kvstore.nvmf.spec import Connection, Host, Namespace, Port, Spec, Subsystem

NQN = "nqn.2026-11.com.example:pool"
KEYS = {"/keys/a": "DHHC-1:00:aaaa:", "/keys/b": "DHHC-1:00:bbbb:"}
NAMESPACES = tuple(
    Namespace(
        number, f"/dev/disk/by-id/nvme-{number}", f"0000000{number}-0000-4000-8000-000000000000", f"{number:032x}"
    )
    for number in (1, 2)
)
SPEC = Spec(
    "pool.yaml",
    (Subsystem(NQN, "pool0", NAMESPACES, ("decode1", "decode2"), (1, 2)),),
    (Port(1, "rdma", "10.0.0.1", 4420), Port(2, "tcp", "10.0.1.1", 4420)),
    (
        Host("decode1", "nqn.2026-11.com.example:decode1", "11111111-0000-4000-8000-000000000000", "/keys/a"),
        Host("decode2", "nqn.2026-11.com.example:decode2", "22222222-0000-4000-8000-000000000000"),
    ),
    Connection(io_queues=4),
)


class Clock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.s = 0.0

    def now_s(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        self.s += seconds


def host_of(kernel: FakeHostKernel, spec: Spec = SPEC, name: str = "decode1", **more: object) -> LocalHost:
    clock = Clock()
    given: dict[str, Any] = {"load": lambda names: None, "key": KEYS.__getitem__, "holder": lambda path: ""}
    given |= {"cpus": lambda: 8, "now_s": clock.now_s, "sleep": clock.sleep, **more}
    return LocalHost(spec, name, kernel, kernel, **given)


@pytest.fixture
def kernel(tmp_path: Path) -> FakeHostKernel:
    return FakeHostKernel(tmp_path, SPEC)


def test_every_path_is_connected_with_each_option_and_its_key(kernel: FakeHostKernel) -> None:
    host_of(kernel).connect()
    assert kernel.lines[0] == (
        f"transport=rdma,traddr=10.0.0.1,trsvcid=4420,nqn={NQN},hostnqn=nqn.2026-11.com.example:decode1,"
        "hostid=11111111-0000-4000-8000-000000000000,nr_io_queues=4,queue_size=128,keep_alive_tmo=5,reconnect_delay=2,"
        "ctrl_loss_tmo=600,fast_io_fail_tmo=5,dhchap_secret=DHHC-1:00:aaaa:"
    )
    assert [line.split(",")[:2] for line in kernel.lines[1:]] == [["transport=tcp", "traddr=10.0.1.1"]]
    assert all(state.is_as_wanted for state in host_of(kernel).states())
    assert [[device.node for device in found] for _, _, found in host_of(kernel).namespaces()] == [
        ["/dev/nvme9n1"],
        ["/dev/nvme9n2"],
    ]


def test_a_second_run_changes_nothing(kernel: FakeHostKernel) -> None:
    assert host_of(kernel).connect()
    kernel.written.clear()
    assert host_of(kernel).connect() == []
    assert (len(kernel.lines), kernel.written) == (2, [])


@pytest.mark.parametrize(
    ("number", "log", "mend"),
    [
        (errno.ECONNREFUSED, "", "nothing listens there: nvmf-setup target apply on the target"),
        (errno.ECONNREFUSED, "nvme nvme2: failed to connect socket: -111", r"apply on the target \("),
        (errno.ECONNRESET, "nvme nvme2: rdma connection establishment failed (-104)", "a ping, and listen for tcp"),
        (errno.ECONNRESET, "nvme nvme2: Connect rejected: status 8 (invalid service ID).", "nothing listens there"),
        (errno.EHOSTUNREACH, "", r"cannot be reached: ip route get 10\.0\.1\.1, ping 10\.0\.1\.1"),
        (errno.ETIMEDOUT, "", "a firewall may drop tcp port 4420"),
        (errno.ENODEV, "", "no RDMA device has a way there: rdma link"),
        (errno.EALREADY, "", "connected already"),
        (errno.ENOENT, "", f"the target has no subsystem {NQN}"),
        (errno.EIO, f'nvme nvme2: Connect Invalid Data Parameter, subsysnqn "{NQN}"', "the target has no subsystem"),
        (errno.EIO, f"nvme nvme2: Connect for subsystem {NQN} is not allowed, hostnqn: x", "does not let this host in"),
        (errno.EIO, "", "is nqn.2026-11.com.example:decode1 under hosts of"),
        (errno.EACCES, "", "does not let this host in, or its key is wrong"),
        (errno.EKEYREJECTED, "", "the key is wrong"),
        (errno.ECONNREFUSED, "nvme nvme2: qid 0: authentication failed", "the key is wrong"),
        (errno.EIO, "nvme nvme2: Connect command failed: authentication required", "give .*decode1 a key_file"),
        (errno.EPERM, "", "run it as root"),
        (errno.EMLINK, "", "see dmesg here and on the target"),
    ],
)
def test_a_refused_path_says_why_and_leaves_none_behind(
    kernel: FakeHostKernel, number: int, log: str, mend: str
) -> None:
    kernel.refuse["10.0.1.1"] = ConnectRefused(number, (log,) if log else ())
    with pytest.raises(
        ConnectFailed, match=f"tcp 10.0.1.1:4420 .*{mend}.*{os.strerror(number)}.*All is as it was"
    ) as told:
        host_of(kernel).connect()
    assert len(kernel.lines) == 2
    assert kernel.names("class/nvme") == []
    assert "DHHC" not in str(told.value)


def test_a_kernel_that_does_not_answer_is_told_and_the_other_path_taken_back(kernel: FakeHostKernel) -> None:
    kernel.refuse["10.0.1.1"] = WaitTimeout("the kernel has not connected within 30 s")
    with pytest.raises(ConnectFailed, match=r"not connected within 30 s\. All is as it was before"):
        host_of(kernel).connect()
    assert kernel.names("class/nvme") == []


def test_a_path_that_the_kernel_connects_after_the_deadline_is_taken_back(kernel: FakeHostKernel) -> None:
    class Late(FakeHostKernel):
        def connect(self, line: str, within_s: float) -> str:
            super().connect(line, within_s)
            raise WaitTimeout("the kernel has not connected within 30 s")

    late = Late(kernel.root / "late", SPEC)
    with pytest.raises(ConnectFailed, match="not connected within 30 s"):
        host_of(late).connect()
    assert late.names("class/nvme") == []


def test_after_a_time_out_of_a_kernel_that_goes_on_nothing_is_said_to_be_as_before(kernel: FakeHostKernel) -> None:
    kernel.refuse["10.0.1.1"] = StillConnecting("the kernel has not connected within 30 s, and cannot be stopped")
    with pytest.raises(ConnectFailed, match=r"That path may still come: nvmf-setup host status") as told:
        host_of(kernel).connect()
    assert "as it was before" not in str(told.value)
    assert kernel.names("class/nvme") == []


def test_where_keys_are_a_kernel_that_does_not_answer_may_have_got_a_wrong_one(kernel: FakeHostKernel) -> None:
    kernel.refuse["10.0.0.1"] = StillConnecting("the kernel has not connected within 30 s, and cannot be stopped")
    with pytest.raises(ConnectFailed, match=r"A wrong key may be why.*'host response mismatch' put the same key into"):
        host_of(kernel).connect()
    with pytest.raises(ConnectFailed) as without:
        host_of(kernel, name="decode2").connect()
    assert "key" not in str(without.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ConfigError("it answered '?'"), StillConnecting("ended")])
def test_a_controller_whose_name_was_never_told_is_taken_back(kernel: FakeHostKernel, error: BaseException) -> None:
    class Untold(FakeHostKernel):
        def connect(self, line: str, within_s: float) -> str:
            super().connect(line, within_s)
            raise error

    untold = Untold(kernel.root / "untold", SPEC)
    with pytest.raises((KeyboardInterrupt, ConnectFailed)):
        host_of(untold).connect()
    assert (len(untold.lines), untold.names("class/nvme")) == (1, [])


def test_what_is_left_of_a_run_that_was_ended_is_told(kernel: FakeHostKernel) -> None:
    clock, interrupts = Clock(), iter([KeyboardInterrupt()])

    def ended(seconds: float) -> None:
        clock.sleep(seconds)
        for interrupt in interrupts:
            raise interrupt

    kernel.grants, kernel.stuck = {"state": "connecting"}, {"nvme2"}
    with pytest.raises(ConnectFailed, match=r"^The run was ended\. Still connected, disconnect by hand: nvme2\.$"):
        host_of(kernel, sleep=ended, now_s=clock.now_s).connect()


def test_times_of_a_connection_that_was_there_are_put_back_when_another_path_fails(kernel: FakeHostKernel) -> None:
    one = replace(SPEC, subsystems=(replace(SPEC.subsystems[0], ports=(1,)),))
    host_of(kernel, one).connect()
    kernel.refuse["10.0.1.1"] = ConnectRefused(errno.ECONNREFUSED)
    changed = replace(
        SPEC, connection=replace(SPEC.connection, reconnect_delay_s=3, controller_loss_s=90, fast_io_fail_s=9)
    )
    with pytest.raises(ConnectFailed, match="All is as it was before"):
        host_of(kernel, changed).connect()
    assert ("class/nvme/nvme2/fast_io_fail_tmo", "9") in kernel.written
    assert [state.is_as_wanted for state in host_of(kernel, one).states()] == [True]


def test_a_time_that_cannot_be_put_back_is_told(kernel: FakeHostKernel) -> None:
    host_of(kernel).connect()
    kernel.refused = {"class/nvme/nvme2/fast_io_fail_tmo"}
    changed = replace(SPEC, connection=replace(SPEC.connection, fast_io_fail_s=9))
    with pytest.raises(ConnectFailed, match=r"Not put back: printf %s 5 > /sys/class/nvme/nvme2/fast_io_fail_tmo \("):
        host_of(kernel, changed).connect()


def test_what_cannot_be_taken_back_is_named(kernel: FakeHostKernel) -> None:
    kernel.refuse["10.0.1.1"], kernel.stuck = ConnectRefused(errno.ECONNREFUSED), {"nvme2"}
    with pytest.raises(ConnectFailed, match=r"Still connected, disconnect by hand: nvme2\."):
        host_of(kernel).connect()


def test_paths_that_were_there_before_a_failure_stay(kernel: FakeHostKernel) -> None:
    host_of(kernel, replace(SPEC, subsystems=(replace(SPEC.subsystems[0], ports=(1,)),))).connect()
    kernel.refuse["10.0.1.1"] = ConnectRefused(errno.ECONNREFUSED)
    with pytest.raises(ConnectFailed):
        host_of(kernel).connect()
    assert kernel.names("class/nvme") == ["nvme2"]


def test_times_are_mended_while_connected(kernel: FakeHostKernel) -> None:
    host_of(kernel).connect()
    changed = replace(SPEC, connection=replace(SPEC.connection, reconnect_delay_s=3, fast_io_fail_s=9))
    assert host_of(kernel, changed).connect() == [
        f"{name}: {attribute} set to {value}"
        for name in ("nvme2", "nvme3")
        for attribute, value in (("reconnect_delay", "3"), ("ctrl_loss_tmo", "600"), ("fast_io_fail_tmo", "9"))
    ]
    assert len(kernel.lines) == 2
    assert host_of(kernel, changed).connect() == []


def test_a_kernel_that_ignores_fast_io_fail_gets_it_by_sysfs(kernel: FakeHostKernel) -> None:
    kernel.grants = {"fast_io_fail_tmo": "off"}
    assert "nvme2: fast_io_fail_tmo set to 5" in host_of(kernel).connect()


def test_the_loss_time_is_compared_as_the_kernel_rounds_it(kernel: FakeHostKernel) -> None:
    spec = replace(SPEC, connection=replace(SPEC.connection, reconnect_delay_s=7, controller_loss_s=30))
    host_of(kernel, spec).connect()
    assert kernel.written == []
    assert host_of(kernel, spec).connect() == []


@pytest.mark.parametrize(
    ("attribute", "found", "told"),
    [
        ("queue_count", "3", "nr_io_queues is 2, not 4.*write what it gives in the file"),
        ("sqsize", "31", "queue_size is 32, not 128"),
        ("kato", "120", "keep_alive_tmo is 120, not 5"),
    ],
)
def test_options_that_the_kernel_did_not_take_fail_the_run(
    kernel: FakeHostKernel, attribute: str, found: str, told: str
) -> None:
    kernel.grants = {attribute: found}
    with pytest.raises(ConnectFailed, match=told):
        host_of(kernel).connect()
    assert kernel.names("class/nvme") == []


def test_an_option_that_cannot_be_read_is_not_as_the_file_says(kernel: FakeHostKernel) -> None:
    host_of(kernel).connect()
    (kernel.root / "class/nvme/nvme2/kato").write_text("?\n")
    assert str(host_of(kernel).states()[0]).endswith("keep_alive_tmo is not told, not 5")


@pytest.mark.parametrize(("attribute", "is_as_wanted"), [("sqsize", True), ("fast_io_fail_tmo", False)])
def test_an_option_that_the_kernel_tells_nobody_counts_but_for_that_without_which_requests_hang(
    kernel: FakeHostKernel, attribute: str, is_as_wanted: bool
) -> None:
    host_of(kernel).connect()
    (kernel.root / "class/nvme/nvme2" / attribute).unlink()
    assert host_of(kernel).states()[0].is_as_wanted is is_as_wanted


def test_a_connection_with_other_fixed_options_is_told_and_left_alone(kernel: FakeHostKernel) -> None:
    host_of(kernel).connect()
    changed = replace(SPEC, connection=replace(SPEC.connection, keep_alive_s=30))
    kernel.written.clear()
    with pytest.raises(ConfigError, match=r"connected as nvme2 .*keep_alive_tmo is 5, not 30.*host disconnect"):
        host_of(kernel, changed).connect()
    assert (len(kernel.lines), kernel.written) == (2, [])
    assert [state.is_as_wanted for state in host_of(kernel, changed).states()] == [False, False]


def test_a_name_in_a_command_is_no_command_of_a_shell(kernel: FakeHostKernel) -> None:
    nqn = "nqn.2026-11.com.example:$(reboot)'"
    host = host_of(kernel, replace(SPEC, subsystems=(replace(SPEC.subsystems[0], nqn=nqn),)))
    (command,) = host.commands(host.states()[0])
    assert f"nqn={nqn}," in shlex.split(command)[2]


def test_no_more_queues_are_wanted_than_there_are_processors(kernel: FakeHostKernel) -> None:
    kernel.grants = {"queue_count": "3"}
    host_of(kernel, cpus=lambda: 2).connect()
    assert all(state.is_as_wanted for state in host_of(kernel, cpus=lambda: 2).states())


def test_an_option_that_the_kernel_lacks_is_named_before_anything_is_connected(kernel: FakeHostKernel) -> None:
    kernel.known = OPTIONS - {"dhchap_secret"}
    with pytest.raises(ConfigError, match=r"knows no option dhchap_secret .*CONFIG_NVME_HOST_AUTH"):
        host_of(kernel).connect()
    assert kernel.lines == []


def test_no_key_is_given_to_a_kernel_that_does_not_say_what_it_knows(kernel: FakeHostKernel) -> None:
    kernel.known = frozenset()
    with pytest.raises(ConfigError, match=r"knows no keys of hosts: take 6\.0 or later"):
        host_of(kernel).connect()
    assert kernel.lines == []


def test_a_namespace_that_does_not_come_fails_the_run(kernel: FakeHostKernel) -> None:
    kernel.spec = replace(SPEC, subsystems=(replace(SPEC.subsystems[0], namespaces=NAMESPACES[:1]),))
    with pytest.raises(ConnectFailed, match=f"namespace 2 of {NQN} .* is not seen after 30 s: is it enabled"):
        host_of(kernel).connect()
    assert kernel.names("class/nvme") == []


def test_a_path_that_is_reconnecting_is_waited_for_and_not_taken_away(kernel: FakeHostKernel) -> None:
    host_of(kernel).connect()
    (kernel.root / "class/nvme/nvme2/state").write_text("connecting\n")
    with pytest.raises(ConnectFailed, match="nvme2 is connecting after 30 s: does the target answer"):
        host_of(kernel).connect()
    assert kernel.names("class/nvme") == ["nvme2", "nvme3"]


def test_only_the_files_own_connections_are_disconnected(kernel: FakeHostKernel) -> None:
    host_of(kernel).connect()
    host_of(kernel, name="decode2").connect()
    assert host_of(kernel).disconnect() == ["nvme2", "nvme3"]
    assert kernel.names("class/nvme") == ["nvme4", "nvme5"]
    assert host_of(kernel).disconnect() == []


def test_a_namespace_in_use_is_disconnected_only_by_its_name(kernel: FakeHostKernel) -> None:
    host_of(kernel).connect()
    used = host_of(kernel, holder=lambda path: "process 7 has it open" if path == "/dev/nvme9n2" else "")
    first, second = (one.nguid for subsystem in SPEC.subsystems for one in subsystem.namespaces)
    with pytest.raises(BusyError, match=f"/dev/nvme9n2 is in use: process 7 .*--force {second}"):
        used.disconnect([first])
    assert kernel.names("class/nvme") == ["nvme2", "nvme3"]
    assert used.disconnect([str(uuid.UUID(second)).upper()]) == ["nvme2", "nvme3"]


@pytest.mark.parametrize("name", ["nvme9n2", "/dev/nvme9n2", "0" * 32, ""])
def test_no_namespace_is_forced_by_its_name_in_dev(kernel: FakeHostKernel, name: str) -> None:
    host_of(kernel).connect()
    with pytest.raises(ConfigError, match=r"is no namespace that is connected: name it by its NGUID, or its path"):
        host_of(kernel, holder=lambda path: "somebody").disconnect([name])
    assert kernel.names("class/nvme") == ["nvme2", "nvme3"]


def test_a_namespace_is_forced_by_its_lasting_path(kernel: FakeHostKernel, tmp_path: Path) -> None:
    host_of(kernel).connect()
    for number in (1, 2):
        (tmp_path / f"nvme-eui.{number}").symlink_to(f"../../nvme9n{number}")
    host = host_of(kernel, holder=lambda path: "somebody", by_id=tmp_path)
    with pytest.raises(BusyError, match="/dev/nvme9n2 is in use"):
        host.disconnect([str(tmp_path / "nvme-eui.1")])
    assert host.disconnect([str(tmp_path / f"nvme-eui.{number}") for number in (1, 2)]) == ["nvme2", "nvme3"]


def test_a_controller_that_does_not_go_is_named(kernel: FakeHostKernel) -> None:
    host_of(kernel).connect()
    kernel.stuck = {"nvme3"}
    with pytest.raises(WaitTimeout, match="not gone within 30 s: nvme3"):
        host_of(kernel).disconnect()


def test_a_host_that_the_file_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no host gpu1: there are decode1, decode2"):
        host_paths(SPEC, "gpu1")


@pytest.fixture
def door(tmp_path: Path) -> tuple[int, KernelFabrics]:
    """The other side of a terminal in the place of /dev/nvme-fabrics, which is read and written like it."""
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    log = tmp_path / "kmsg"
    log.touch()
    return ours, KernelFabrics(Path(os.ttyname(theirs)), log)


def test_the_kernel_gets_one_line_and_tells_the_controller(door: tuple[int, KernelFabrics]) -> None:
    ours, fabrics = door
    got = []

    def kernel() -> None:
        got.append(os.read(ours, 4096))
        os.write(ours, b"instance=7,cntlid=3\n")

    thread = Thread(target=kernel)
    thread.start()
    assert fabrics.connect("transport=tcp,dhchap_secret=DHHC-1:00:aaaa:", 20) == "nvme7"
    thread.join()
    assert got == [b"transport=tcp,dhchap_secret=DHHC-1:00:aaaa:"]


def test_a_kernel_that_says_nothing_is_left_at_the_deadline(door: tuple[int, KernelFabrics]) -> None:
    with pytest.raises(WaitTimeout, match=r"has not connected within 0\.2 s: does the target answer a ping"):
        door[1].connect("transport=tcp", 0.2)


@pytest.fixture
def controllers(tmp_path: Path) -> Path:
    """A kernel that waits: a FIFO, which nobody reads, in the place of an attribute."""
    (tmp_path / "nvme2").mkdir()
    os.mkfifo(tmp_path / "nvme2/delete_controller")
    return tmp_path


def test_a_disconnect_that_the_kernel_waits_in_ends_at_the_deadline(controllers: Path) -> None:
    with pytest.raises(WaitTimeout, match=r"has not disconnected nvme2 within 0\.2 s"):
        KernelFabrics(controllers=controllers).disconnect("nvme2", 0.2)


def test_a_disconnect_is_one_write_and_a_refusal_is_told(controllers: Path) -> None:
    reader = os.open(controllers / "nvme2/delete_controller", os.O_RDONLY | os.O_NONBLOCK)
    KernelFabrics(controllers=controllers).disconnect("nvme2", 20)
    assert os.read(reader, 100) == b"1"
    os.close(reader)
    with pytest.raises(FileNotFoundError):
        KernelFabrics(controllers=controllers).disconnect("nvme3", 20)


def test_a_refusal_comes_with_what_the_kernel_logged_meanwhile_and_no_key(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("6,1,1,-;nvme nvme1: before\n")
    from kvstore.nvmf.fabrics import _LogReader

    reader = _LogReader(log)
    with log.open("a") as file:
        file.write("3,2,2,-;nvme_fabrics: unknown parameter or missing value 'dhchap_secret=DHHC-1:00:aaaa:' in it\n")
    assert reader.since() == ("nvme_fabrics: unknown parameter or missing value 'dhchap_secret=KEY in it",)


def test_a_kernel_without_fabrics_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory: modprobe nvme-fabrics"):
        KernelFabrics(tmp_path / "nvme-fabrics").options()


def test_what_the_kernel_knows_is_read_and_not_waited_for_without_end(tmp_path: Path) -> None:
    device = tmp_path / "nvme-fabrics"
    device.write_text("transport=%s,traddr=%s,dhchap_secret=%s\n")
    assert KernelFabrics(device).options() == {"transport", "traddr", "dhchap_secret"}
    device.unlink()
    os.mkfifo(device)  # whose opening waits, as reading does while the kernel connects somebody for ever
    with pytest.raises(
        WaitTimeout, match=r"does not answer within 0\.2 s: the kernel is at work on another connection"
    ):
        KernelFabrics(device).options(0.2)
