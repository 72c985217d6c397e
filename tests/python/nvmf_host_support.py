# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""FakeHostKernel: /dev/nvme-fabrics and /sys of a host, as far as nvmf-setup sees them (drivers/nvme/host/fabrics.c,
sysfs.c). Folders are real, so what is read is read as on a real one; what it is told to refuse it refuses.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from kvstore.errors import WaitTimeout
from kvstore.nvmf.fabrics import ConnectRefused, Fabrics
from kvstore.nvmf.spec import Spec
from kvstore.nvmf.tree import DirectoryTree

OPTIONS = frozenset(
    "transport traddr trsvcid nqn hostnqn hostid nr_io_queues queue_size keep_alive_tmo reconnect_delay ctrl_loss_tmo "
    "fast_io_fail_tmo dhchap_secret dhchap_ctrl_secret".split()
)


class FakeHostKernel(Fabrics, DirectoryTree):
    """Both doors. ``spec`` says what its targets export; ``refuse`` what it answers for an address."""

    def __init__(self, root: Path, spec: Spec, *, multipath: bool = True) -> None:
        DirectoryTree.__init__(self, root)
        self.spec, self.multipath = spec, multipath
        self.known = OPTIONS
        self.refuse: dict[str, Exception] = {}
        self.grants: dict[str, str] = {}  # attributes that are not as they were asked for
        self.lines: list[str] = []
        self.written: list[tuple[str, str]] = []
        self.stuck: set[str] = set()  # controllers that do not go
        self.refused: set[str] = set()  # attributes that do not take what is written
        (root / "class/nvme").mkdir(parents=True)
        (root / "block").mkdir()

    # ---- Fabrics ----

    def options(self, within_s: float = 0.0) -> frozenset[str]:
        return self.known

    def connect(self, line: str, within_s: float) -> str:
        self.lines.append(line)
        given = dict(part.split("=", 1) for part in line.split(","))
        if given["traddr"] in self.refuse:
            raise self.refuse[given["traddr"]]
        if unknown := set(given) - self.known:
            raise ConnectRefused(errno.EINVAL, (f"nvme_fabrics: unknown parameter or missing value '{unknown.pop()}'",))
        name = f"nvme{len(self.lines) + 1}"  # 0 and 1 are drives of its own
        attributes = {
            "transport": given["transport"],
            "address": f"traddr={given['traddr']},trsvcid={given['trsvcid']},src_addr=10.0.0.9",
            "subsysnqn": given["nqn"],
            "hostnqn": given["hostnqn"],
            "hostid": given["hostid"],
            "state": "live",
            "queue_count": str(int(given["nr_io_queues"]) + 1),
            "sqsize": str(int(given["queue_size"]) - 1),
            "kato": given["keep_alive_tmo"],
            "reconnect_delay": given["reconnect_delay"],
            "ctrl_loss_tmo": _whole_attempts(given["ctrl_loss_tmo"], given["reconnect_delay"]),
            "fast_io_fail_tmo": given.get("fast_io_fail_tmo", "off"),
            **self.grants,
        }
        self._add(f"class/nvme/{name}", attributes)
        (self.root / f"class/nvme/{name}/delete_controller").touch()
        self._show_namespaces(name, given["nqn"], given["hostnqn"])
        return name

    def disconnect(self, name: str, within_s: float) -> None:
        if name in self.stuck:
            raise WaitTimeout(f"the kernel has not disconnected {name} within {within_s:g} s")
        self.write(f"class/nvme/{name}/delete_controller", "1")

    # ---- Tree ----

    def write(self, path: str, value: str) -> None:
        self.written.append((path, value))
        folder, _, name = path.rpartition("/")
        if not self.exists(path):
            raise OSError(errno.ENOENT, "No such file or directory", path)
        if name == "ctrl_loss_tmo":
            value = _whole_attempts(value, self.read(f"{folder}/reconnect_delay"))
        if path in self.refused:
            raise OSError(errno.EINVAL, "Invalid argument", path)
        if name == "reconnect_delay":  # the loss time is kept as a number of attempts
            delay, loss = (int(self.read(f"{folder}/{one}")) for one in (name, "ctrl_loss_tmo"))
            (self.root / folder / "ctrl_loss_tmo").write_text(f"{-(-loss // delay) * int(value)}\n")
        if name != "delete_controller":
            (self.root / path).write_text(value + "\n")
        else:
            nqn = self.read(f"{folder}/subsysnqn")
            for device in (self.root / "block").iterdir():
                links = device / "device"
                (links / folder.rpartition("/")[2]).unlink(missing_ok=True)
                last = not any(child.is_symlink() for child in links.iterdir())
                if (links / "subsysnqn").read_text().strip() == nqn and last:
                    shutil.rmtree(device)
            shutil.rmtree(self.root / folder)

    # ---- what is there ----

    def add_device(self, name: str, attributes: dict[str, str], controllers: list[str], nqn: str) -> None:
        """A namespace, reached by some controllers."""
        self._add(f"block/{name}", attributes)
        self._add(f"block/{name}/device", {"subsysnqn": nqn})
        for one in controllers:
            (self.root / f"block/{name}/device/{one}").symlink_to(self.root / f"class/nvme/{one}")

    def _show_namespaces(self, controller: str, nqn: str, host: str) -> None:
        for subsystem in self.spec.subsystems:
            for namespace in subsystem.namespaces:
                name = f"{'nvme9' if self.multipath else controller}n{namespace.nsid}"
                if subsystem.nqn != nqn:
                    continue
                if (self.root / f"block/{name}").exists():
                    link = self.root / f"block/{name}/device/{controller}"
                    link.symlink_to(self.root / f"class/nvme/{controller}")
                    continue
                digits = namespace.nguid
                parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
                self.add_device(name, {"nguid": "-".join(parts), "uuid": namespace.uuid}, [controller], nqn)

    def _add(self, path: str, attributes: dict[str, str]) -> None:
        (self.root / path).mkdir()
        for name, value in attributes.items():
            (self.root / path / name).write_text(value + "\n")


def _whole_attempts(loss_s: str, delay_s: str) -> str:
    """As the kernel keeps the time: rounded up to a number of attempts."""
    delay = int(delay_s)
    return str(-(-int(loss_s) // delay) * delay)
