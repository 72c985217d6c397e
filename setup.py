# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the Python module kvstore._core with CMake and Ninja. Everything else is in pyproject.toml.

Switches, all environment variables:

KVSTORE_DEBUG=1            no optimisation, debug symbols
KVSTORE_SANITIZE=address,undefined | thread
KVSTORE_STATIC=1           link liburing and the C++ runtime into the module (wheels)
KVSTORE_WERROR=1           warnings are errors
KVSTORE_CUDA=auto | 0 | 1  compile the CUDA kernels: where nvcc is found, never, or fail without it
KVSTORE_BUILD_JOBS=2       parallel compiler processes
CMAKE_ARGS=...             further arguments for CMake
KVSTORE_BUILD_DIR=...      CMake's folder, kept between builds so that only what changed is compiled
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent


def on(switch: str) -> bool:
    return os.environ.get(switch, "") not in ("", "0")


def tool(name: str) -> str:
    """The tool of the build environment; one beside the interpreter counts when the environment is not activated."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    found = shutil.which(name, path=path)
    if found is None:
        raise CompileError(f"{name} is missing. Install it with: pip install {name}")
    return found


def build_dir() -> Path:
    chosen = os.environ.get("KVSTORE_BUILD_DIR")
    if chosen:
        return Path(chosen).resolve()
    parts = [
        "debug" if on("KVSTORE_DEBUG") else "release",
        os.environ.get("KVSTORE_SANITIZE", "").replace(",", "-"),
        "static" if on("KVSTORE_STATIC") else "",
        sys.implementation.cache_tag,
    ]
    return ROOT / "build" / "-".join(part for part in parts if part)


class CMakeBuild(build_ext):
    """Configures and builds one CMake target straight into the place where setuptools wants the module."""

    def build_extension(self, ext: Extension) -> None:
        import nanobind

        module = Path(self.get_ext_fullpath(ext.name)).resolve()
        folder = build_dir()
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two builds of one tree would corrupt Ninja's state
            self.configure(folder, nanobind.cmake_dir())
            jobs = os.environ.get("KVSTORE_BUILD_JOBS") or str(os.cpu_count() or 1)
            build = subprocess.run([tool("cmake"), "--build", folder, "--target", "kvstore_python", "-j", jobs])
            if build.returncode != 0:
                raise CompileError("kvstore._core did not compile; the compiler's messages are above")
            self.install_module(folder / "module" / "_core.so", module)

    def configure(self, folder: Path, nanobind_dir: str) -> None:
        command = [
            tool("cmake"), "-S", ROOT, "-B", folder, "-G", "Ninja",
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
            f"-DCMAKE_BUILD_TYPE={'Debug' if on('KVSTORE_DEBUG') else 'Release'}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dnanobind_DIR={nanobind_dir}",
            "-DKVSTORE_BUILD_PYTHON=ON",
            f"-DKVSTORE_SANITIZE={os.environ.get('KVSTORE_SANITIZE', '')}",
            f"-DKVSTORE_STATIC={'ON' if on('KVSTORE_STATIC') else 'OFF'}",
            f"-DKVSTORE_WERROR={'ON' if on('KVSTORE_WERROR') else 'OFF'}",
            f"-DKVSTORE_CUDA={os.environ.get('KVSTORE_CUDA') or 'auto'}",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise CompileError(f"CMake could not configure the build\n{done.stderr.rstrip()}")
        sys.stderr.write(done.stderr)

    @staticmethod
    def install_module(built: Path, module: Path) -> None:
        """A rename, because a process that has the old module mapped would crash on an overwritten one."""
        module.parent.mkdir(parents=True, exist_ok=True)
        fresh = module.with_name(f".{module.name}.{os.getpid()}")
        shutil.copy2(built, fresh)
        fresh.replace(module)


# From 3.12 on nanobind can keep to the stable ABI, and one wheel serves every later Python.
STABLE_ABI = sys.version_info >= (3, 12) and not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[Extension("kvstore._core", sources=[], py_limited_api=STABLE_ABI)],
    cmdclass={"build_ext": CMakeBuild},
    options={"bdist_wheel": {"py_limited_api": "cp312"}} if STABLE_ABI else {},
)
