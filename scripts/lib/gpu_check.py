# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The steps of scripts/gpu-check, whose head says what they are for: look, build, test, measure, judge, print.

Every step is a process with a time limit, its output in ``build/gpu-check``; one that hangs costs its time and is told
as failed. The table is made of what the steps left behind: JUnit XML of tests, lines of JSON of the benchmark.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "gpu-check"
BUDGET_S = 450.0  # the rest of eight minutes is for what goes on around the steps

EXIT_FAILED, EXIT_USAGE, EXIT_GOALS, EXIT_NO_GPU = 1, 2, 3, 4

GIB = 1 << 30
#: On a file of the fakes or of a real machine: bytes of blocks, and how long a rate is measured over.
SIZES = {True: (64 << 20, 20), False: (2 * GIB, 1000)}

CPP_TESTS = (
    "RealGpu.ScatterAndGatherOfRandomShapesTouchTheBytesOfTheReferenceAndNoOthers",
    "RealGpu.PageNodesAreThoseOfTheCpu",
    "RealGpu.ABlockComesBackThroughAPool",
)
#: Runs where cuFile does; where it is refused that is a reason in the table, not a failure.
CUFILE_TEST = "RealGpu.CuFileReadsWhatTheKernelReads"
PYTHON_TESTS = (
    "test_a_block_comes_back_into_gpu_memory",
    "test_blocks_go_between_gpu_and_host_memory_in_one_batch",
    "test_a_put_reads_only_what_its_stream_has_written",
    "test_a_get_writes_after_what_its_stream_was_doing",
    "test_what_follows_a_get_on_its_stream_sees_the_block",
    "test_a_miss_lets_the_stream_go_on",
)
LIBRARIES = ("driver", "cupy", "torch")


def named_tests(fakes: bool) -> tuple[list[str], list[str]]:
    """Tests that must have passed: of C++, of Python. On the fake driver there is no cupy and no torch, and no kernels
    without nvcc.
    """
    has_kernels = not fakes or shutil.which("nvcc") is not None
    cpp = [name for name in CPP_TESTS if has_kernels or "Pool" in name] + [CUFILE_TEST] * fakes
    libraries = LIBRARIES[:1] if fakes else LIBRARIES
    return cpp, [f"{name}[{library}]" for name in PYTHON_TESTS for library in libraries]


# ---- what is here ----


def gpu_problem() -> str | None:
    """Why no GPU can be used here, with the mend; None: one can."""
    name = os.environ.get("KVSTORE_LIBCUDA") or "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError as error:
        return f"no CUDA driver: {error}. Install NVIDIA's driver, or start the container with --gpus all"
    code = driver.cuInit(0)
    if code != 0:
        return f"cuInit of {name} gave {code}: is a GPU there, and visible (nvidia-smi, CUDA_VISIBLE_DEVICES)?"
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return f"{name} finds no GPU: CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r}"
    return None


def has_library(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


#: What is wanted beside the GPU: what for, and how to get it.
WANTED: tuple[tuple[str, Callable[[], bool], str], ...] = (
    (
        "nvcc",
        lambda: shutil.which("nvcc") is not None,
        "for kernels: install the CUDA toolkit, 12.8 or later (docs/gpu.md)",
    ),
    ("cupy", lambda: find_spec("cupy") is not None, "for its tests: pip install 'nvme-kvstore[gpu]'"),
    ("torch", lambda: find_spec("torch") is not None, "for its tests: pip install torch"),
    ("fio", lambda: shutil.which("fio") is not None, "for the rate of the device: apt-get install fio"),
    (
        "compute-sanitizer",
        lambda: shutil.which("compute-sanitizer") is not None,
        "for its run: it is in the CUDA toolkit",
    ),
    (
        "libcufile",
        lambda: has_library(os.environ.get("KVSTORE_LIBCUFILE") or "libcufile.so.0"),
        "for direct reads: it is in the CUDA toolkit",
    ),
    (
        "/proc/modules",
        lambda: Path("/proc/modules").exists(),
        "for direct reads: libcufile spins for ever on a kernel without modules",
    ),
)


def look() -> list[str]:
    return [f"{name} is missing, {purpose}" for name, is_here, purpose in WANTED if not is_here()]


# ---- steps ----


@dataclass
class Step:
    name: str
    status: str = "not run"  # passed, failed, skipped
    why: str = ""
    seconds: float = 0.0


@dataclass
class Run:
    """What is known so far."""

    fakes: bool
    path: Path
    gpu: int
    started: float = field(default_factory=time.monotonic)
    steps: list[Step] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    figures: dict[str, tuple[float | None, str]] = field(default_factory=dict)  # GB/s, note

    def remaining_s(self) -> float:
        return BUDGET_S - (time.monotonic() - self.started)

    def environment(self) -> dict[str, str]:
        found = dict(os.environ, KVSTORE_GPU_CHECK_MODULES=self.modules(), PYTHONPATH=str(ROOT))
        if "preload" in self.texts:
            found["LD_PRELOAD"] = self.texts["preload"]
        return found

    def modules(self) -> str:
        """What stands for /proc/modules: the fake cuFile does not read it, and this machine may have none."""
        return "/proc/self/status" if self.fakes else "/proc/modules"

    def step(self, name: str, command: Sequence[str | Path], limit_s: float) -> Step:
        """Run a command, for the time that is left at most. Its output is in FOLDER/name.log."""
        made = Step(name)
        self.steps.append(made)
        limit_s = min(limit_s, self.remaining_s())
        if limit_s < 1:
            made.why = "the eight minutes are over"
            return made
        print(f"gpu-check: {name} ...", file=sys.stderr, flush=True)
        begin = time.monotonic()
        with open(FOLDER / f"{name}.log", "w") as log:
            try:
                status = run_within(command, self.environment(), log, limit_s)
                made.status = "passed" if status == 0 else "failed"
                made.why = "" if status == 0 else f"exit status {status}, see build/gpu-check/{name}.log"
            except subprocess.TimeoutExpired:
                made.status, made.why = "failed", f"not done after {limit_s:.0f} s"
            except OSError as error:
                made.status, made.why = "failed", str(error)
        made.seconds = time.monotonic() - begin
        return made

    def skip(self, name: str, why: str) -> None:
        self.steps.append(Step(name, "skipped", why))


def run_within(command: Sequence[str | Path], environment: Mapping[str, str], log: IO[str], limit_s: float) -> int:
    """The exit status. Whatever ends the wait, nothing that the command started is left behind."""
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(limit_s)
    finally:
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def outcomes(path: Path) -> dict[str, str]:
    """Of a JUnit file: test to ``passed``, ``failed`` or ``skipped: why``."""
    found: dict[str, str] = {}
    if not path.exists():
        return found
    for case in ElementTree.parse(path).iter("testcase"):
        name = case.get("name", "")
        suite = case.get("classname", "")
        skipped = case.find("skipped")
        status = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            status = "failed"
        elif skipped is not None:
            status = f"skipped: {skipped.get('message', '').strip()}"
        found[f"{suite}.{name}" if suite.startswith("RealGpu") else name] = status
    return found


def want(step: Step, found: Mapping[str, str], names: Sequence[str]) -> None:
    """A step whose named tests did not all pass has failed, whatever its exit status says."""
    absent = [f"{name} ({found.get(name, 'did not run')})" for name in names if found.get(name) != "passed"]
    if step.status == "passed":
        step.why = f"{sum(status == 'passed' for status in found.values())} tests passed"
    if absent and step.status != "not run":
        step.status = "failed"
        step.why = f"{len(names) - len(absent)} of the {len(names)} named tests passed; not: {', '.join(absent)}"


def build(run: Run, is_built: bool) -> bool:
    folder = Path(os.environ.get("KVSTORE_BUILD_DIR", ROOT / "build" / "dev"))
    run.texts["build"] = str(folder)
    if run.fakes:
        os.environ["KVSTORE_LIBCUDA"] = str(folder / "fakes" / "libcuda.so.1")
        os.environ["KVSTORE_LIBCUFILE"] = str(folder / "fakes" / "libcufile.so.0")
    if is_built:
        run.skip("build", "--built")
        return True
    jobs = os.environ.get("KVSTORE_BUILD_JOBS", str(os.cpu_count()))
    script = (
        'set -e; cmake -S . -B "$1" -G Ninja -DKVSTORE_BUILD_TESTS=ON -DKVSTORE_BUILD_BENCH=ON >/dev/null\n'
        'cmake --build "$1" -j "$2" --target kvstore_gpu_tests kvstore_gpu_bench\n'
        'KVSTORE_BUILD_DIR=$1 "$3" setup.py -q build_ext --inplace'
    )
    return run.step("build", ["bash", "-c", script, "build", folder, jobs, sys.executable], BUDGET_S).status == "passed"


def test(run: Run) -> None:
    cpp, python = named_tests(run.fakes)
    binary = Path(run.texts["build"]) / "kvstore_gpu_tests"
    xml = FOLDER / "cpp.xml"
    xml.unlink(missing_ok=True)
    step = run.step("cpp-tests", [binary, "--gtest_filter=RealGpu.*", f"--gtest_output=xml:{xml}"], 90)
    found = outcomes(xml)
    want(step, found, cpp)
    run.texts["cufile"] = found.get(CUFILE_TEST, "did not run")
    xml = FOLDER / "python.xml"
    xml.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "--junitxml", xml]
    want(run.step("python-tests", [*command, "tests/gpu"], 120), outcomes(xml), python)
    sanitizer = shutil.which("compute-sanitizer")
    if run.fakes or sanitizer is None:
        run.skip("compute-sanitizer", "it needs a GPU" if sanitizer else "it is not installed")
    else:
        filters = f"--gtest_filter=RealGpu.*-{CUFILE_TEST}"
        run.step("compute-sanitizer", [sanitizer, "--error-exitcode", "9", binary, filters], 90)


# ---- figures ----


def take_figures(run: Run, text: str) -> None:
    """The benchmark's lines of JSON; other lines are somebody's log."""
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        one = json.loads(line)
        if "text" in one:
            run.texts[one["name"]] = one["text"]
        else:
            run.figures[one["name"]] = (one["gb_per_s"], one["note"])


def measure(run: Run) -> None:
    nbytes, least_ms = SIZES[run.fakes]
    binary = Path(run.texts["build"]) / "kvstore_gpu_bench"
    common = [f"--least-ms={least_ms}", f"--gpu={run.gpu}"]
    for name, limit_s in (("link", 30), ("kernels", 60)):
        size = nbytes if run.fakes else GIB
        run.step(name, [binary, name, f"--bytes={size}", *common], limit_s)
        take_figures(run, (FOLDER / f"{name}.log").read_text())
    measure_fio(run, nbytes)
    storage = [f"--path={run.path}", f"--bytes={nbytes}", f"--modules={run.modules()}"]
    run.step("bounce", [binary, "bounce", *storage, *common], 90)
    take_figures(run, (FOLDER / "bounce.log").read_text())
    # What bounce left there; cuFile's own writes follow.
    blocks = [sys.executable, "bench/gpu/pool_rate.py", run.path, str(nbytes >> 22), str(least_ms)]
    run.step("pool-direct", blocks, 60)
    take_figures(run, (FOLDER / "pool-direct.log").read_text())
    run.step("direct", [binary, "direct", *storage, *common], 60)
    take_figures(run, (FOLDER / "direct.log").read_text())
    if find_spec("kvikio") is None:
        run.figures["kvikio_get"] = (None, "kvikio is missing: pip install 'nvme-kvstore[gpu]'")
    else:
        rate = [sys.executable, "bench/gpu/kvikio_rate.py", run.path, str(nbytes), str(least_ms)]
        run.step("kvikio", rate, 45)
        take_figures(run, (FOLDER / "kvikio.log").read_text())
    if run.texts.get("self_test", "").startswith("WRONG"):
        run.steps.append(Step("cufile-self-test", "failed", run.texts["self_test"]))


def measure_fio(run: Run, nbytes: int) -> None:
    """What the device gives without us: 1 MiB, 32 in flight; writes are flushed, as puts of the benchmark are."""
    if shutil.which("fio") is None:
        for name in ("fio_write", "fio_read"):
            run.figures[name] = (None, "fio is missing: apt-get install fio")
        return
    for op in ("write", "read"):
        log = FOLDER / f"fio-{op}.log"
        job = [f"--name={op}", f"--filename={run.path}", f"--rw={op}", "--bs=1M", "--iodepth=32", "--direct=1"]
        size = [f"--size={nbytes}", "--ioengine=io_uring", "--end_fsync=1", "--output-format=json"]
        step = run.step(f"fio-{op}", ["fio", *job, *size], 60)
        if step.status == "passed":
            text = log.read_text()
            rate = json.loads(text[text.index("{") :])["jobs"][0][op]["bw_bytes"] / 1e9
            run.figures[f"fio_{op}"] = (rate, "1 MiB, 32 in flight")
        else:
            run.figures[f"fio_{op}"] = (None, step.why)


# ---- the table ----


@dataclass(frozen=True)
class Line:
    what: str
    name: str  # of the figure
    against: tuple[str, ...] = ()  # figures of which the smallest is what it is compared with
    goal_share: float = 0.0  # of that
    goal_gb_per_s: float = 0.0


LINES = (
    Line("copy within the GPU", "copy_within"),
    Line("scatter, runs of 256 B", "scatter_256", ("copy_within",)),
    *(Line(f"scatter, runs of {kib} KiB", f"scatter_{kib << 10}", ("copy_within",), 0.8) for kib in (4, 32, 128)),
    Line("gather, runs of 256 B", "gather_256", ("copy_within",)),
    *(Line(f"gather, runs of {kib} KiB", f"gather_{kib << 10}", ("copy_within",)) for kib in (4, 32, 128)),
    Line("page nodes", "page_nodes", ("copy_within",), goal_gb_per_s=1000),
    Line("pinned copy to the GPU", "pinned_to_device"),
    Line("pinned copy to the host", "pinned_to_host"),
    Line("fio read", "fio_read"),
    Line("fio write", "fio_write"),
    Line("get by bounce", "bounce_get", ("fio_read", "pinned_to_device"), 0.9),
    Line("put by bounce", "bounce_put", ("fio_write", "pinned_to_host"), 0.9),
    Line("get by a pool, direct", "pool_direct_get", ("fio_read", "pinned_to_device")),
    Line("get by cuFile", "direct_get", ("fio_read", "pinned_to_device")),
    Line("get by KvikIO", "kvikio_get", ("fio_read", "pinned_to_device")),
    Line("put by cuFile", "direct_put", ("fio_write", "pinned_to_host")),
)

HOPPER = re.compile(r"\bG?H(100|200|800|20)\b")


@dataclass(frozen=True)
class Judged:
    what: str
    rate: str
    share: str
    goal: str
    verdict: str  # "", met, not met, unmeasured: why, meaningless
    note: str


def judge(line: Line, run: Run) -> Judged:
    rate, note = run.figures.get(line.name, (None, "the benchmark did not come so far"))
    compared = [run.figures.get(name, (None, ""))[0] for name in line.against]
    known = [value for value in compared if value]
    limit = min(known) if known and len(known) == len(compared) else None
    share = (
        f"{rate / limit:.0%} of {'the smaller of ' * (len(compared) > 1)}{' and '.join(line.against)}"
        if (rate is not None and limit)
        else ""
    )
    goal, verdict = "", ""
    if line.goal_share:
        goal = f">= {line.goal_share:.0%}"
        if rate is None:
            verdict = f"unmeasured: {note}"
        elif limit is None:
            verdict = f"unmeasured: no figure of {' and '.join(line.against)}"
        else:
            verdict = "met" if rate >= line.goal_share * limit else "not met"
    if line.goal_gb_per_s:
        goal = f">= {line.goal_gb_per_s:,.0f} GB/s"
        if rate is None:
            verdict = f"unmeasured: {note}"
        elif not HOPPER.search(run.texts.get("gpu", "")):
            verdict = f"unmeasured: the goal is Hopper's, this is {run.texts.get('gpu', 'an unknown GPU')}"
        else:
            verdict = "met" if rate >= line.goal_gb_per_s else "not met"
    if run.fakes and rate is not None:
        verdict = "meaningless"
    if rate is None and not verdict:
        verdict = f"unmeasured: {note}"
    text = "" if rate is None else f"{rate:,.2f}"
    return Judged(line.what, text, share, goal, verdict, "" if rate is None else note)


def table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = ["  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in rows]
    return "\n".join(lines)


def report(run: Run) -> int:
    judged = [judge(line, run) for line in LINES]
    took = time.monotonic() - run.started
    print()
    if run.fakes:
        print("ON THE FAKE DRIVER: no GPU was used, the figures mean nothing.")
    print(f"GPU: {run.texts.get('gpu', '?')}; kernels: {run.texts.get('kernels', '?')}; storage: {run.path}")
    print(f"cuFile: {run.texts.get('self_test') or run.texts.get('cufile') or '?'}\n")
    rows = [("check", "result", "s", "")]
    rows += [(step.name, step.status, f"{step.seconds:.0f}", step.why) for step in run.steps]
    print(table(rows) + "\n")
    columns = [("figure", "GB/s", "goal", "verdict", "compared with", "note")]
    columns += [(one.what, one.rate, one.goal, one.verdict, one.share, one.note) for one in judged]
    print(table(columns) + "\n")
    failed = [step.name for step in run.steps if step.status in ("failed", "not run")]
    with_goal = [one.verdict for one in judged if one.goal]
    met, missed = with_goal.count("met"), with_goal.count("not met")
    print(
        f"{len(run.steps) - len(failed)} checks passed or skipped, {len(failed)} failed{': ' * bool(failed)}"
        f"{', '.join(failed)}; of {len(with_goal)} goals {met} met, {missed} not met, "
        f"{len(with_goal) - met - missed} unmeasured; {took:.0f} s"
    )
    if failed:
        return EXIT_FAILED
    return 0 if run.fakes or met == len(with_goal) else EXIT_GOALS


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", allow_abbrev=False)
    parser.add_argument("--fakes", action="store_true")
    parser.add_argument("--path", type=Path, default=FOLDER / "storage.img")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--built", action="store_true", help="what was built last is used as it is")
    parser.add_argument("--look", action="store_true", help="only say what is missing; status 4 without a GPU")
    options = parser.parse_args(arguments)
    if options.path.exists() and stat.S_ISBLK(options.path.stat().st_mode) and not options.overwrite:
        print(f"error: all that is on {options.path} would be lost: say --overwrite", file=sys.stderr)
        return EXIT_USAGE
    problem = None if options.fakes else gpu_problem()
    if options.look:
        for line in ([] if problem is None else [problem]) + look():
            print(f"gpu-check: {line}", file=sys.stderr)
    if problem is not None:
        print("gpu-check: there is no GPU here, so nothing was run; --fakes tests this script", file=sys.stderr)
        return EXIT_NO_GPU
    if options.look:
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    run = Run(options.fakes, options.path.resolve(), options.gpu)
    try:
        if build(run, options.built):
            if run.fakes and not Path("/proc/modules").exists():
                run.texts["preload"] = str(Path(run.texts["build"]) / "fakes" / "proc_modules.so")
            test(run)
            measure(run)
    finally:
        if run.path.parent == FOLDER:
            run.path.unlink(missing_ok=True)
    return report(run)


if __name__ == "__main__":
    sys.exit(main())
