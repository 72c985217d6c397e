# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-check says what is missing, judges figures by the goals, and its whole flow runs, on the fake driver."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not after 10 s"
        time.sleep(0.01)


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "scripts" / "lib" / "gpu_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module
    spec.loader.exec_module(module)
    return module


gpu_check = load()


def run_of(gpu: str = "NVIDIA H100 80GB HBM3", fakes: bool = False, **figures: float | None) -> object:
    run = gpu_check.Run(fakes, Path("storage.img"), 0)
    run.texts["gpu"] = gpu
    run.figures = {name: (rate, "the reason") for name, rate in figures.items()}
    return run


def verdict(what: str, run: object) -> str:
    return next(gpu_check.judge(line, run).verdict for line in gpu_check.LINES if line.name == what)


def test_without_a_gpu_it_says_what_is_missing_and_has_a_status_of_its_own() -> None:
    environment = dict(os.environ, KVSTORE_LIBCUDA="libcuda-of-nobody.so.1")
    done = subprocess.run([ROOT / "scripts" / "gpu-check"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == gpu_check.EXIT_NO_GPU
    assert "libcuda-of-nobody.so.1" in done.stderr
    assert "nothing was run" in done.stderr


def test_a_block_device_is_not_overwritten_unasked() -> None:
    loop = next((path for path in Path("/dev").glob("loop[0-9]*") if path.is_block_device()), None)
    if loop is None:
        pytest.skip("needs a loop device's node")
    assert gpu_check.main(["--fakes", "--path", str(loop)]) == gpu_check.EXIT_USAGE


def test_a_share_of_the_smaller_rate_is_a_goal() -> None:
    rates = {"fio_read": 7.0, "pinned_to_device": 50.0}
    assert verdict("bounce_get", run_of(bounce_get=6.31, **rates)) == "met"
    assert verdict("bounce_get", run_of(bounce_get=6.29, **rates)) == "not met"
    assert verdict("scatter_4096", run_of(scatter_4096=1200.0, copy_within=1500.0)) == "met"
    assert verdict("scatter_4096", run_of(scatter_4096=1199.0, copy_within=1500.0)) == "not met"
    assert verdict("scatter_256", run_of(scatter_256=1.0, copy_within=1500.0)) == ""


def test_what_has_no_figure_is_unmeasured_with_the_reason() -> None:
    assert verdict("scatter_4096", run_of(scatter_4096=None, copy_within=1500.0)) == "unmeasured: the reason"
    assert verdict("bounce_get", run_of(bounce_get=7.0, pinned_to_device=50.0)).startswith(
        "unmeasured: no figure of fio"
    )
    assert verdict("page_nodes", run_of()).startswith("unmeasured")


def test_the_checksum_goal_is_for_hopper() -> None:
    assert verdict("page_nodes", run_of(page_nodes=1001.0)) == "met"
    assert verdict("page_nodes", run_of(page_nodes=999.0)) == "not met"
    assert verdict("page_nodes", run_of("NVIDIA A100", page_nodes=999.0)).startswith("unmeasured: the goal is Hopper's")


def test_a_figure_of_the_fakes_is_never_a_goal_met() -> None:
    run = run_of("Fake GPU 0", True, bounce_get=70.0, fio_read=7.0, pinned_to_device=50.0, page_nodes=1e6)
    assert {verdict("bounce_get", run), verdict("page_nodes", run)} == {"meaningless"}


def test_a_named_test_that_did_not_run_fails_its_step(tmp_path: Path) -> None:
    junit = tmp_path / "python.xml"
    junit.write_text(
        '<testsuites><testsuite><testcase classname="tests.gpu" name="a[cupy]"/>'
        '<testcase classname="tests.gpu" name="a[torch]"><skipped message="needs a GPU and torch"/></testcase>'
        "</testsuite></testsuites>"
    )
    step = gpu_check.Step("python-tests", "passed")
    gpu_check.want(step, gpu_check.outcomes(junit), ["a[cupy]", "a[torch]", "b[cupy]"])
    assert step.status == "failed"
    assert "1 of the 3 named" in step.why
    assert "a[torch] (skipped: needs a GPU and torch)" in step.why
    assert "b[cupy] (did not run)" in step.why


def test_a_step_that_hangs_is_told_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "FOLDER", tmp_path)
    run = gpu_check.Run(True, Path("storage.img"), 0)
    step = run.step("hangs", ["bash", "-c", f"sleep 1000 & echo $! >{tmp_path}/pid; wait"], 1)
    assert (step.status, step.why) == ("failed", "not done after 1 s")
    state = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    wait_until(lambda: not state.exists() or state.read_text().split()[2] == "Z", "the child's end")


def test_what_there_is_no_time_for_is_not_run_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "FOLDER", tmp_path)
    run = gpu_check.Run(True, Path("storage.img"), 0)
    run.started -= 450
    step = run.step("late", ["true"], 60)
    assert (step.status, step.why) == ("not run", "the eight minutes are over")
    assert gpu_check.report(run) == gpu_check.EXIT_FAILED


def test_the_named_tests_exist() -> None:
    text = (ROOT / "tests" / "gpu" / "test_gpu_memory.py").read_text()
    assert [name for name in gpu_check.PYTHON_TESTS if f"def {name}(" not in text] == []
    text = (ROOT / "tests" / "cpp" / "gpu" / "real_gpu_test.cpp").read_text()
    names = [*gpu_check.CPP_TESTS, gpu_check.CUFILE_TEST]
    assert [name for name in names if f"TEST_F({name.replace('.', ', ')})" not in text] == []


@pytest.mark.timeout(900)
def test_its_whole_flow_runs_on_the_fakes() -> None:
    if shutil.which("ninja") is None or shutil.which("c++") is None:
        pytest.skip("ninja or a C++ compiler is missing")
    folder = Path(os.environ.get("KVSTORE_BUILD_DIR", ROOT / "build" / "dev"))
    configure = [
        "cmake",
        "-S",
        ROOT,
        "-B",
        folder,
        "-G",
        "Ninja",
        "-DKVSTORE_BUILD_TESTS=ON",
        "-DKVSTORE_BUILD_BENCH=ON",
    ]
    subprocess.run(configure, check=True, capture_output=True, timeout=120)
    targets = ["kvstore_gpu_tests", "kvstore_gpu_bench"]
    subprocess.run(["cmake", "--build", folder, "--target", *targets], check=True, capture_output=True, timeout=700)
    # Not the module: this process has it open.
    environment = dict(os.environ, KVSTORE_BUILD_DIR=str(folder))
    command = [sys.executable, ROOT / "scripts" / "lib" / "gpu_check.py", "--fakes", "--built"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ON THE FAKE DRIVER" in done.stdout
    rows = {line.what: line.name for line in gpu_check.LINES}
    printed = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert [what for what in rows if what not in printed] == []
    unmeasured = {what for what in rows if "unmeasured" in printed[what]}
    if shutil.which("nvcc") and shutil.which("fio"):
        assert unmeasured <= {"get by KvikIO"}
    assert all("meaningless" in printed[what] for what in rows if what not in unmeasured)
    assert "0 met" in done.stdout.splitlines()[-1]
