# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""A guest under QEMU: this machine's own root, read-only, emulated NVMe drives, one command, its exit code.

Guarantees: QEMU ends with the guest's command, at the deadline, on :meth:`Guest.kill`, or with this process, whatever
kills it; the host is not changed but for the guest's folder. Does not check that what the command needs is installed:
``scripts/vm/build --packages`` does.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "vm"
GUEST_DIED = 125
DEADLINE_PASSED = 124

# Nothing here changes what is tested; most of it saves emulated instructions. An oops ends the guest at once.
KERNEL = (
    "console=ttyS0 quiet loglevel=4 panic=-1 oops=panic nokaslr nopti mitigations=off init_on_alloc=0 apparmor=0"
    " audit=0 cryptomgr.notests random.trust_cpu=on rcupdate.rcu_expedited=1 no_timer_check"
)


@dataclass(frozen=True)
class Drive:
    """An emulated NVMe drive. Found by its serial: the kernel numbers drives differently at each boot."""

    serial: str
    mib: int = 512
    block_bytes: int = 4096
    write_cache: bool = True


@dataclass(frozen=True)
class Link:
    """One end of a network of two: a socket that the one QEMU listens on and the other connects to."""

    number: int
    socket: Path
    listens: bool


DRIVES = (Drive("LBA4K"), Drive("LBA512", block_bytes=512), Drive("NOCACHE", write_cache=False))
MTU = 4200  # a RoCE MTU of 4096 and its headers


def has_kvm() -> bool:
    """A /dev/kvm alone proves nothing: without vmx or svm it is a nested one that cannot run an ordinary kernel."""
    return Path("/dev/kvm").exists() and re.search(r"\b(vmx|svm)\b", Path("/proc/cpuinfo").read_text()) is not None


class Guest:
    """A guest that was started; ``folder`` holds its console, its drives, and what it left in /run/out."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        deadline_s: float,
        name: str = "guest",
        drives: Sequence[Drive] = DRIVES,
        links: Sequence[Link] = (),
        memory_mib: int = 2048,
        processors: int = 2,
        kernel_arguments: str = "",
        agent: Path | None = None,
        folder: Path | None = None,
    ) -> None:
        for built in ("vmlinux", "initrd"):
            if not (BUILT / built).exists():
                raise FileNotFoundError(f"{BUILT / built} is missing: run scripts/vm/build")
        self.name = name
        self.folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder or BUILT))
        self.out = self.folder / "out"
        self.out.mkdir()
        self.console = self.folder / "console.log"
        self._deadline = time.monotonic() + deadline_s
        (self.out / "command").write_text(f"cd {shlex.quote(str(Path.cwd()))} || cd /\n{shlex.join(command)}\n")
        shutil.copy(ROOT / "scripts" / "vm" / "start", self.out / "start")
        arguments = [
            *("qemu-system-x86_64", "-accel", "kvm" if has_kvm() else "tcg", "-cpu", "host" if has_kvm() else "max"),
            *("-smp", str(processors), "-machine", "q35", "-m", str(memory_mib)),
            *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-monitor", "none"),
            *("-serial", "stdio", "-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"),
            *("-object", "rng-random,filename=/dev/urandom,id=rng", "-device", "virtio-rng-pci,rng=rng"),
            *_share("root", Path("/"), ",readonly=on"),
            *_share("out", self.out, ""),
            *(word for drive in drives for word in self._drive(drive)),
            *_network(links),
            *_agent(agent),
            *("-kernel", str(BUILT / "vmlinux"), "-initrd", str(BUILT / "initrd")),
            *("-append", f"{KERNEL} vm.name={name} {kernel_arguments}"),
        ]
        # The parent's death signal: no guest outlives a test run that is killed.
        with open(self.folder / "qemu.log", "wb") as complaints, open(self.console, "wb") as console:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=complaints,
            )

    def _drive(self, drive: Drive) -> list[str]:
        image = self.folder / f"{drive.serial}.img"
        with open(image, "wb") as file:
            file.truncate(drive.mib << 20)
        cache = "on" if drive.write_cache else "off"
        return [
            "-drive",
            f"if=none,id={drive.serial},format=raw,cache=unsafe,discard=unmap,file={image}",
            "-device",
            f"nvme,serial={drive.serial},drive={drive.serial},write-cache={cache},"
            f"logical_block_size={drive.block_bytes},physical_block_size={drive.block_bytes}",
        ]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> int:
        """The command's exit code; DEADLINE_PASSED after which it was killed, GUEST_DIED without one."""
        try:
            status = self._process.wait(self.seconds_left)
        except subprocess.TimeoutExpired:
            self.kill()
            return DEADLINE_PASSED
        # isa-debug-exit: 2v + 1, where v is the code plus one.
        return (status - 3) // 2 if status >= 3 and status % 2 else GUEST_DIED

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def told(self, lines: int = 40) -> str:
        """The end of the console, and QEMU's own complaints."""
        text = self.console.read_text(errors="replace").replace("\r", "").splitlines()[-lines:]
        return "\n".join([*text, (self.folder / "qemu.log").read_text(errors="replace")])

    def remove(self) -> None:
        """Its folder; that of a guest that failed is worth keeping."""
        shutil.rmtree(self.folder)

    def remove_drives(self) -> None:
        for image in self.folder.glob("*.img"):
            image.unlink()


def _share(tag: str, folder: Path, flags: str) -> list[str]:
    return [
        *("-fsdev", f"local,id={tag},path={folder},security_model=none,multidevs=remap{flags}"),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    ]


def _network(links: Sequence[Link]) -> list[str]:
    """An interface for each link, known in the guest by its hardware address: 52:54:00:00:NUMBER:END."""
    arguments = []
    for link in links:
        number, server, end = link.number, "on" if link.listens else "off", 1 if link.listens else 2
        arguments += ["-netdev", f"stream,id=link{number},server={server},addr.type=unix,addr.path={link.socket}"]
        mac = f"52:54:00:00:{number:02x}:{end:02x}"
        arguments += ["-device", f"virtio-net-pci,netdev=link{number},mac={mac},host_mtu={MTU}"]
    return arguments


def _agent(socket: Path | None) -> list[str]:
    """A channel to who works in the guest: /dev/vport0p1 there, a socket here."""
    if socket is None:
        return []
    return [
        *("-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,server=on,wait=off,path={socket}"),
        *("-device", "virtserialport,chardev=agent,name=agent"),
    ]
