# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The closing report of scripts/test: what it counts, and which skips it does not let pass.

Method: the report runs on a folder of results written here; what the machine can do is set by the tests.
"""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PASSED = '<testcase classname="a" name="b"/>'
FAILED = '<testcase classname="a" name="c"><failure message="no"/></testcase>'


def skipped(reason: str) -> str:
    return f'<testcase classname="a" name="d"><skipped type="pytest.skip" message="{reason}"/></testcase>'


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "scripts/lib/report.py"
    spec = importlib.util.spec_from_file_location("report", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "CAPABILITIES", {"fio": lambda name: name == "fio", "root": lambda _: False})
    return module


class Report:
    def __init__(self, module: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.module, self.folder, self.capsys = module, folder, capsys

    def __call__(self, stages: dict[str, tuple[int, str]], *flags: str) -> tuple[int, str]:
        """Status and output of the report on stages given as name: (exit status, test cases)."""
        lines = [f"{name}\t{status}\t7" for name, (status, _) in stages.items()]
        (self.folder / "stages.tsv").write_text("\n".join(lines) + "\n")
        for name, (_, cases) in stages.items():
            if cases:
                (self.folder / f"{name}.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
        status = self.module.main([str(self.folder), *flags])
        return status, self.capsys.readouterr().out


@pytest.fixture
def report(module: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Report:
    return Report(module, tmp_path, capsys)


def last_line(output: str) -> str:
    return output.splitlines()[-1]


def test_the_last_line_sums_all_stages(report: Report) -> None:
    stages = {"lint": (0, ""), "cpp": (0, PASSED + PASSED), "python": (0, PASSED + skipped("whatever"))}
    status, output = report(stages)
    assert (status, last_line(output)) == (0, "4 passed, 0 failed, 1 skipped")


def test_a_failed_test_fails_the_run(report: Report) -> None:
    status, output = report({"cpp": (1, PASSED + FAILED)})
    assert (status, last_line(output)) == (1, "1 passed, 1 failed, 0 skipped")


def test_a_stage_that_breaks_without_a_failed_test_fails_the_run(report: Report) -> None:
    status, output = report({"cpp": (1, PASSED), "lint": (1, "")})
    assert (status, last_line(output)) == (1, "1 passed, 2 failed, 0 skipped")


def test_a_stage_that_did_not_run_says_why(report: Report, tmp_path: Path) -> None:
    (tmp_path / "wheel.skipped").write_text("the clean root needs root\n")
    status, output = report({"wheel": (0, "")})
    assert (status, last_line(output)) == (0, "0 passed, 0 failed, 1 skipped")
    assert "stage wheel: the clean root needs root" in output


def test_the_reason_of_a_skipped_googletest_is_found_in_its_output(report: Report) -> None:
    output = "<system-out>x_test.cpp:4: Skipped\nneeds a flux capacitor\n[  SKIPPED ] A.b</system-out>"
    case = f'<testcase classname="A" name="b"><skipped message="matched"/>{output}</testcase>'
    assert "A.b: needs a flux capacitor" in report({"cpp": (0, case)})[1]


@pytest.mark.parametrize(
    ("reason", "passes"),
    [("needs fio", False), ("needs fio and root", True), ("needs root", True), ("needs a drive", True)],
)
def test_a_skip_for_want_of_what_is_here_fails_a_strict_run(report: Report, reason: str, passes: bool) -> None:
    stages = {"python": (0, skipped(reason))}
    assert last_line(report(stages)[1]) == "0 passed, 0 failed, 1 skipped"
    status, output = report(stages, "--strict-skips")
    expected = (0, "0 passed, 0 failed, 1 skipped") if passes else (1, "0 passed, 1 failed, 0 skipped")
    assert (status, last_line(output)) == expected


def test_an_engine_is_here_when_its_environment_was_made(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "CAPABILITIES", {r"\b(vllm|sglang)\b": module.has_engine})
    (tmp_path / "build" / "venv-vllm").mkdir(parents=True)
    (tmp_path / "build" / "venv-vllm" / ".installed").touch()
    assert module.met_need("the files of vLLM 0.33.0 are not unpacked") == "vLLM"
    assert module.met_need("SGLang is not installed here") is None
