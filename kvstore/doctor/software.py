# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of what is installed: this package, LMCache, CUDA, cuFile.

Nothing here loads a library or imports an engine: `cuFileDriverOpen` of libcufile 1.16 to 1.20 spins for ever where
there is no /proc/modules, so presence is told from files and from the loader's cache alone.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path

import kvstore
from kvstore._shadow import FOREIGN, OURS
from kvstore.doctor.finding import Finding
from kvstore.doctor.machine import Machine

__all__ = ["check_cuda", "check_cufile", "check_lmcache", "check_package"]

_PACKAGE = Path(kvstore.__file__).parent


def check_package(machine: Machine) -> Finding:
    """Whether `import kvstore` can only mean this package."""
    foreign = machine.package_version(FOREIGN)
    if foreign is not None:
        return Finding(
            "package",
            "fail",
            f"the distribution '{FOREIGN}' {foreign} is another project with the same import name",
            f"pip uninstall {FOREIGN} && pip install --force-reinstall {OURS}",
        )
    others = [folder for folder in machine.python_path if _holds_another(Path(folder))]
    if others:
        places = ", ".join(others)
        return Finding("package", "warn", f"another 'kvstore' can be imported from {places}", "move it out of the way")
    version, python = kvstore.__version__, ".".join(map(str, sys.version_info[:3]))
    installed = machine.package_version(OURS)
    if installed not in (None, version):
        return Finding(
            "package",
            "warn",
            f"{version} is imported, but {OURS} {installed} is installed",
            f"pip install --force-reinstall {OURS}, or scripts/setup in a source tree",
        )
    return Finding("package", "ok", f"kvstore {version} in {_PACKAGE}, Python {python}")


def _holds_another(folder: Path) -> bool:
    if not folder.is_dir() or (folder / "kvstore").resolve() == _PACKAGE.resolve():
        return False
    return (folder / "kvstore" / "__init__.py").exists() or (folder / "kvstore.py").exists()


def check_lmcache(machine: Machine) -> Finding:
    """Whether the installed LMCache is one that the doors of kvstore.lmcache work with."""
    version = machine.package_version("lmcache")
    if version is None:
        return Finding("lmcache", "ok", "not installed; needed only for its own doors")
    complaint = _version_complaint()(version)
    if complaint:
        return Finding("lmcache", "fail", complaint.partition(": pip ")[0], _command_in(complaint))
    if machine.package_version("torch") is None:
        return Finding("lmcache", "fail", f"{version}, but torch is not installed", "pip install torch")
    return Finding("lmcache", "ok", f"{version}, supported")


def _version_complaint() -> Callable[[str | None], str | None]:
    """``kvstore.lmcache.compat.version_complaint``, from its file: importing that package imports LMCache and torch."""
    spec = importlib.util.spec_from_file_location("kvstore_lmcache_compat", _PACKAGE / "lmcache" / "compat.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    complaint: Callable[[str | None], str | None] = module.version_complaint
    return complaint


def _command_in(sentence: str) -> str:
    command = re.search(r"pip install .*", sentence)
    return command[0] if command else ""


def check_cuda(machine: Machine) -> Finding:
    """Whether an NVIDIA driver is there. Not needed: blocks travel through host memory."""
    libraries = _libraries(machine, "libcuda.so.1")
    has_device = machine.exists("/dev/nvidiactl")
    driver = re.search(r"Module\s+([\d.]+)", machine.read("/proc/driver/nvidia/version"))
    if has_device and libraries:
        return Finding("cuda", "ok", f"driver {driver[1] if driver else 'of unknown version'}, {libraries[0]}")
    if has_device:
        return Finding("cuda", "warn", "a GPU, but no libcuda.so.1", "install the driver's libraries (libcuda1)")
    if libraries:
        return Finding(
            "cuda",
            "warn",
            f"{libraries[0]}, but no /dev/nvidiactl",
            "load the driver; start the container with --gpus all",
        )
    return Finding("cuda", "ok", "none; not needed, blocks travel through host memory")


def check_cufile(machine: Machine) -> Finding:
    """Whether cuFile is there, and whether it would hang."""
    libraries = _libraries(machine, "libcufile.so.0")
    if not libraries:
        return Finding("cufile", "ok", "none; not needed, blocks travel through host memory")
    if not machine.exists("/proc/modules"):
        return Finding(
            "cufile",
            "warn",
            f"{libraries[0]}, but no /proc/modules: its cuFileDriverOpen never returns on such a kernel",
            "do not use GPUDirect Storage here; kvstore does not call it",
        )
    if "nvidia_fs" not in machine.read("/proc/modules"):
        return Finding(
            "cufile", "warn", f"{libraries[0]}, but no nvidia-fs: it copies through host memory", "modprobe nvidia-fs"
        )
    return Finding("cufile", "ok", f"{libraries[0]}, nvidia-fs loaded")


def _libraries(machine: Machine, name: str) -> list[str]:
    """Where a library is: from the loader's cache and from NVIDIA's wheels. Opens none of them."""
    cached = re.findall(rf"^\s*{re.escape(name)} .*=> (\S+)$", machine.loader_cache(), re.MULTILINE)
    wheels = [
        str(path)
        for folder in machine.python_path
        if folder
        for path in sorted(Path(folder).glob(f"nvidia/*/lib/{name}"))
    ]
    return cached + wheels
