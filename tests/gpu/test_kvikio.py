# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""KvikIO, the GPU I/O engine that ours is compared with: its path for host memory really runs here, on a raw device.

Method: a stub libcuda.so.1 with functions and no GPU (tests/fakes/stub_libcuda.cpp), without which KvikIO does not move
even host memory; kvbench's engine in a process of its own, on a file and on a loop device.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SIZE = 128 << 20
#: Puts blocks by the engine, gets them in another order and compares every byte.
ROUND_TRIP = """
import sys
import numpy as np
from kvstore.bench.engines import make_engine
from kvstore.bench.engines.base import Work

work = Work(paths=(sys.argv[1],), block_sizes=(3 << 20,), population=16, size_bytes=int(sys.argv[2]), iodepth=8)
engine = make_engine("kvikio")
assert engine.why_not() is None, engine.why_not()
engine.open(work)
buffers = engine.buffers()
kept = np.random.default_rng(5).integers(0, 256, (16, 3 << 20), dtype=np.uint8)
for first in (0, 8):
    for row in range(8):
        buffers.rows[row][: 3 << 20] = kept[first + row]
    assert engine.batch("put", range(first, first + 8), buffers) is None
for numbers in ([15, 3, 8, 0, 1, 9, 14, 7], [2, 4, 5, 6, 10, 11, 12, 13]):
    for row in range(8):
        buffers.rows[row][:] = 0
    assert engine.batch("get", numbers, buffers) is None
    for row, number in enumerate(numbers):
        assert np.array_equal(buffers.rows[row][: 3 << 20], kept[number]), number
engine.close()
print("equal")
"""

#: Runs the script of the rate with host memory in place of cupy's.
RATE_ON_THE_HOST = """
import runpy, sys, types
import numpy as np

device = types.SimpleNamespace(synchronize=lambda: None)
cupy = types.ModuleType("cupy")
cupy.empty, cupy.uint8, cupy.cuda = np.empty, np.uint8, types.SimpleNamespace(Device=lambda: device)
sys.modules["cupy"] = cupy
sys.argv = ["kvikio_rate.py", *sys.argv[1:]]
runpy.run_path("bench/gpu/kvikio_rate.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stub."""
    if find_spec("kvikio") is None:
        pytest.skip("needs NVIDIA's wheels in build/venv-kvikio")
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("a C++ compiler is missing")
    folder = tmp_path_factory.mktemp("stub")
    source = ROOT / "tests" / "fakes" / "stub_libcuda.cpp"
    command = [compiler, "-std=c++20", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture(params=["file", "loop"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    backing = tmp_path / "backing.img"
    with open(backing, "wb") as file:
        file.truncate(SIZE)
    if request.param == "file":
        yield str(backing)
        return
    if os.geteuid() != 0 or shutil.which("losetup") is None:
        pytest.skip("needs root and losetup for a loop device")
    command = ["losetup", "--find", "--show", "--direct-io=on", str(backing)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no loop device here: {done.stderr.strip()}")
    yield done.stdout.strip()
    subprocess.run(["losetup", "--detach", done.stdout.strip()], check=True)


def run(stub: Path | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Never cuFile's driver, which KvikIO opens without a gate: it may not return.
    environment = {**os.environ, "KVIKIO_COMPAT_MODE": "ON", "LD_LIBRARY_PATH": "" if stub is None else str(stub)}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120
    )


@pytest.mark.kvikio
def test_what_kvikio_wrote_to_a_raw_device_comes_back(stub: Path, place: str) -> None:
    done = run(stub, "-c", ROUND_TRIP, place, str(SIZE))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "equal"


@pytest.mark.kvikio
def test_kvbench_measures_it_beside_ours(stub: Path, tmp_path: Path) -> None:
    path = tmp_path / "kvbench.img"
    options = [f"--filename={path}", "--engine=kvikio,kvstore", "--bs=1m", "--iodepth=8", "--size=64m", "--runtime=1"]
    done = run(stub, "-m", "kvstore", "bench", "--name=get", "--rw=get", *options, "--json", "--eta=never")
    assert done.returncode == 0, done.stderr
    rates = {job["job options"]["ioengine"]: job["read"]["bw_bytes"] for job in json.loads(done.stdout)["jobs"]}
    assert set(rates) == {"kvikio", "kvstore"}
    assert min(rates.values()) > 0


@pytest.mark.kvikio
def test_without_libcuda_kvikio_moves_not_even_host_memory(stub: Path, tmp_path: Path) -> None:
    if (loads := run(None, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')")).returncode == 0:
        pytest.skip(f"this machine has a driver {loads.stdout}")
    moves = f"import kvikio, numpy; kvikio.CuFile({str(tmp_path / 'a.bin')!r}, 'w+').write(numpy.zeros(4096, 'u1'))"
    done = run(None, "-c", moves)
    assert "libcuda.so.1: cannot open shared object file" in done.stderr
    engine = "from kvstore.bench.engines import make_engine; print(make_engine('kvikio').why_not())"
    assert "needs a driver" in run(None, "-c", engine).stdout


@pytest.mark.kvikio
def test_the_rate_into_gpu_memory_is_unmeasured_without_one_and_says_why(stub: Path, place: str) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU: scripts/gpu-check measures it")
    done = run(stub, "bench/gpu/kvikio_rate.py", place, str(SIZE), "10")
    figure = json.loads(done.stdout)
    assert figure["name"] == "kvikio_get"
    assert figure["gb_per_s"] is None
    assert figure["note"]


@pytest.mark.kvikio
def test_the_script_of_the_rate_reads_all_and_tells_the_way(stub: Path, place: str) -> None:
    done = run(stub, "-c", RATE_ON_THE_HOST, place, str(SIZE), "50")
    figure = json.loads(done.stdout)
    assert figure["gb_per_s"] > 0, done.stdout + done.stderr
    assert figure["note"].endswith("compat, unverified")


@pytest.mark.kvikio
@pytest.mark.gpu
def test_kvikio_reads_what_we_wrote_into_gpu_memory(arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/proc/modules").exists():
        monkeypatch.setenv("KVIKIO_COMPAT_MODE", "ON")
    kvikio = pytest.importorskip("kvikio", reason="needs a GPU and kvikio")
    data = os.urandom(8 << 20)
    path = tmp_path / "blocks.bin"
    path.write_bytes(data)
    stream = arrays.stream()
    out = arrays.array(np.zeros(len(data), dtype=np.uint8), stream)
    arrays.data(out, stream)
    with kvikio.CuFile(str(path), "r") as handle:
        assert handle.pread(out).get() == len(data)
    assert arrays.data(out, stream).tobytes() == data


#: The reader of a pool on host memory, with the file renamed after its descriptor was made.
READER = """
import os, sys
import numpy as np
from kvstore._kvikio import KvikioReader

reader = KvikioReader()
file = reader.open(os.open(sys.argv[1], os.O_RDONLY))
os.rename(sys.argv[1], sys.argv[1] + ".moved")
out = np.zeros(1 << 20, dtype=np.uint8)
assert reader.read(file, out.ctypes.data, out.nbytes, 1 << 20) == out.nbytes
print(np.array_equal(out, np.fromfile(sys.argv[1] + ".moved", dtype=np.uint8)[1 << 20 : 2 << 20]))
"""


@pytest.mark.kvikio
def test_the_reader_of_a_pool_reads_what_its_descriptor_is_of(stub: Path, tmp_path: Path) -> None:
    path = tmp_path / "blocks.bin"
    path.write_bytes(np.random.default_rng(3).integers(0, 256, 3 << 20, dtype=np.uint8).tobytes())
    done = run(stub, "-c", READER, str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"
