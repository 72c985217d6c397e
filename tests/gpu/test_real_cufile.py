# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own libcufile, of the wheel nvidia-cufile, behind our gate and as a device, without a GPU.

Method: tests/cpp/gpu/real_cufile_test.cpp and the conformance suite of devices, with host pointers on a loop device, in
a process of their own that is killed after a while: this library is known to spin for ever. It is given a
/proc/modules (tests/fakes/proc_modules.cpp) where the kernel has none, and finds the fake libcuda.so.1.
"""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.kvikio

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120


def library() -> Path:
    spec = find_spec("nvidia")
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        for found in Path(folder).glob("**/libcufile.so.0"):
            return found
    pytest.skip("needs NVIDIA's wheels in build/venv-kvikio")


def run(tests: str, tmp_path: Path, **environment: str) -> dict[str, str]:
    """What became of each test; none is left out, none hangs."""
    build = Path(os.environ.get("KVSTORE_BUILD_DIR", ROOT / "build" / "dev"))
    if not (build / "kvstore_gpu_tests").exists():
        pytest.skip(f"{build}/kvstore_gpu_tests is not built")
    junit = tmp_path / "tests.xml"
    environment = {
        **os.environ,
        "KVSTORE_TEST_LIBCUFILE": str(library()),
        "LD_LIBRARY_PATH": str(build / "fakes"),
        **{name: value.format(build=build) for name, value in environment.items()},
    }
    environment.pop("CUFILE_LOGFILE_PATH", None)
    command = [build / "kvstore_gpu_tests", f"--gtest_filter={tests}", f"--gtest_output=xml:{junit}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tests.xml"], "a log was left in the working directory"
    found = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        skipped = case.find("skipped")
        found[case.get("name", "")] = "passed" if skipped is None else f"skipped: {skipped.get('message')}"
    return found


def test_it_opens_behind_the_gate_and_its_batch_calls_are_what_keeps_us_from_them(tmp_path: Path) -> None:
    found = run("RealCuFile*-*.SpinsForEver*:*.TheGate*", tmp_path, LD_PRELOAD="{build}/fakes/proc_modules.so")
    loops = [why for why in found.values() if "loop device" in why]
    if loops:
        pytest.skip(loops[0])
    assert len(found) == 5
    assert set(found.values()) == {"passed"}


def test_a_device_over_it_keeps_the_contract_of_devices(tmp_path: Path) -> None:
    found = run("*DeviceConformance*real_cufile_loop", tmp_path, LD_PRELOAD="{build}/fakes/proc_modules.so")
    loops = [why for why in found.values() if "loop device" in why]
    if loops:
        pytest.skip(loops[0])
    assert len(found) >= 19
    assert set(found.values()) == {"passed"}


@pytest.mark.skipif(Path("/proc/modules").exists(), reason="this kernel has /proc/modules")
def test_without_proc_modules_the_gate_refuses_and_who_goes_past_it_is_brought_back(tmp_path: Path) -> None:
    found = run("RealCuFile.SpinsForEver*:RealCuFile.TheGate*", tmp_path)
    assert len(found) == 2
    assert set(found.values()) == {"passed"}
