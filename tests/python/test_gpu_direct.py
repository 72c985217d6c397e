# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""`gpu_direct`: which way bytes take into GPU memory, that they are right on each, and that it is told.

Method: the fake driver and the fake cuFile of tests/fakes in a process of its own, because a process keeps the first
ones that it loads; where the kernel has no /proc/modules, one is given to it. What cuFile can do wrong is in
tests/cpp/gpu/direct_reads_test.cpp.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
from gpu_direct_support import direct_environment, run_direct

import kvstore
from kvstore.cli import main

RunGpu = Callable[..., Any]

_PRELUDE = """
import time
import numpy as np
import kvstore
from gpu_support import CudaArray
path = {path!r}
rng = np.random.default_rng(5)
data = rng.integers(0, 256, {nbytes}, dtype=np.uint8)
def fresh():
    return gpu.array(np.zeros_like(data))
def counts(pool):
    stats = pool.stats()
    return {{name: stats[name] for name in ("bytes_direct", "bytes_compat", "bytes_bounced", "gpu_direct")}}
def until_settled(pool):
    end = time.monotonic() + 30
    while "being proven" in pool.stats()["gpu_direct"]:
        assert time.monotonic() < end, pool.stats()["gpu_direct"]
        time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return direct_environment(tmp_path_factory.mktemp("fakes"))


@pytest.fixture
def run_gpu(environment: dict[str, str], pool_path: str) -> RunGpu:
    def run(body: str, *, nbytes: int = 2 << 20, says_direct: bool = True) -> Any:
        says = {"FAKE_CUFILE_SAYS_DIRECT": "1" if says_direct else "0"}
        prelude = _PRELUDE.format(path=pool_path, nbytes=nbytes)
        return run_direct({**environment, **says}, prelude + textwrap.dedent(body))

    return run


_PUT_AND_GET = """
with kvstore.open(path, gpu_direct={mode!r}) as pool:
    space = pool.space(model="m")
    space.put(b"a", CudaArray(gpu.array(data)))
    first = fresh()
    assert space.get(b"a", CudaArray(first)) == data.nbytes
    until_settled(pool)
    before = counts(pool)
    second = fresh()
    assert space.get(b"a", CudaArray(second)) == data.nbytes
    right = bool((first.host_view() == data).all() and (second.host_view() == data).all())
    print(json.dumps([before, counts(pool), right]))
"""


def test_a_proven_path_is_taken_and_told(run_gpu: RunGpu) -> None:
    before, after, right = run_gpu(_PUT_AND_GET.format(mode="auto"))
    assert right
    assert after["gpu_direct"] == "GPU 0: direct"
    assert after["bytes_direct"] - before["bytes_direct"] == 2 << 20
    assert after["bytes_bounced"] == before["bytes_bounced"]


def test_a_last_piece_that_is_no_whole_page_goes_through_host_memory(run_gpu: RunGpu) -> None:
    nbytes = (1 << 20) + 100
    before, after, right = run_gpu(_PUT_AND_GET.format(mode="auto"), nbytes=nbytes)
    assert right
    assert after["bytes_direct"] - before["bytes_direct"] == 1 << 20
    assert after["bytes_bounced"] - before["bytes_bounced"] == 100


def test_auto_leaves_compat_mode_to_cufile_and_on_takes_it(run_gpu: RunGpu) -> None:
    _, after, right = run_gpu(_PUT_AND_GET.format(mode="auto"), says_direct=False)
    assert right
    assert after["bytes_direct"] == after["bytes_compat"] == 0
    assert after["gpu_direct"].startswith("GPU 0: refused: cuFile says that it would copy")


@pytest.mark.parametrize("way", ["extents", "straight"])
def test_a_transfer_of_a_paged_cache_is_read_directly_whole_and_layer_by_layer(run_gpu: RunGpu, way: str) -> None:
    told = run_gpu(f"""
        from transfer_support import Cached, places
        cached = Cached(path, {way!r}, gpu, gpu_direct="on", by_layer=True, deadline_ms=60_000)
        cached.store([3, 7])
        cached.transfer.load(2, places(11, 0))
        good = cached.ended(2) + [cached.same([11, 0], [3, 7])]
        whole = counts(cached.pool)["bytes_direct"]
        cached.transfer.load_by_layer(3, places(12, 1))
        good += cached.ended(3)
        cached.come_to_here()
        good += [cached.same([12, 1], [3, 7]), cached.untouched_but({{3, 7, 11, 0, 12, 1}})]
        layers = counts(cached.pool)["bytes_direct"] - whole
        cached.close()
        print(json.dumps([good, whole, layers]))
    """)
    assert told == [[True] * 7, 2 * 3 * 8192, 2 * 3 * 8192]


def test_on_takes_compat_mode_and_tells_it(run_gpu: RunGpu) -> None:
    before, after, right = run_gpu(_PUT_AND_GET.format(mode="on"), says_direct=False)
    assert right
    assert after["gpu_direct"] == "GPU 0: compat"
    assert after["bytes_compat"] - before["bytes_compat"] == 2 << 20


def test_off_never_loads_cufile(run_gpu: RunGpu) -> None:
    _, after, right = run_gpu(_PUT_AND_GET.format(mode="off"))
    assert right
    assert after == {"bytes_direct": 0, "bytes_compat": 0, "bytes_bounced": 3 * (2 << 20), "gpu_direct": "off"}


def test_a_pool_that_was_read_directly_can_be_opened_again_after_close(run_gpu: RunGpu) -> None:
    told = run_gpu("""
        for mode in ("on", "auto", "off"):
            pool = kvstore.open(path, gpu_direct=mode)
            space = pool.space(model="m")
            job = space.put_many([b"a"], [CudaArray(gpu.array(data))])
            job.wait()
            target = fresh()
            read = space.get_many([b"a"], [CudaArray(target)])
            read.wait()
            assert (target.host_view() == data).all()
            pool.close()  # the jobs are still held
        print(json.dumps("open"))
    """)
    assert told == "open"


def test_an_arena_is_registered_with_cufile_until_it_is_unregistered(run_gpu: RunGpu) -> None:
    told = run_gpu("""
        import ctypes
        cufile = ctypes.CDLL(os.environ["KVSTORE_LIBCUFILE"])
        cufile.fake_cufile_registered.restype = ctypes.c_uint64
        with kvstore.open(path, gpu_direct="auto") as pool:
            space = pool.space(model="m")
            arena = CudaArray(gpu.array(data))
            registration = pool.register(arena)  # waits for the proof
            told = [registration.registered, registration.reason, cufile.fake_cufile_registered()]
            space.put(b"a", CudaArray(gpu.array(data)))
            assert space.get(b"a", arena) == data.nbytes
            assert (arena.array.host_view() == data).all()
            told.append(counts(pool)["bytes_direct"])
            pool.unregister(arena)
            told.append(cufile.fake_cufile_registered())
        print(json.dumps(told))
    """)
    assert told == [True, "", 2 << 20, 2 << 20, 0]


_KVIKIO = """
import ctypes, types
class CuFile:
    reads = 0
    def __init__(self, name, mode):
        self.fd = os.open(name, os.O_RDONLY)
    def pread(self, memory, size, file_offset):
        pointer = memory.__cuda_array_interface__["data"][0]
        target = (ctypes.c_ubyte * size).from_address(gpu.lib.fake_cuda_view(pointer))
        def get():
            CuFile.reads += 1
            {wrong}
            moved = os.preadv(self.fd, [target], file_offset)
            {spoilt}
            return moved
        return types.SimpleNamespace(get=get)
made = types.ModuleType("kvikio")
made.CuFile = CuFile
sys.modules["kvikio"] = made
sys.modules["kvikio.defaults"] = types.SimpleNamespace(set=lambda options: None)
with kvstore.open(path) as pool:
    pool.space(model="m").put(b"a", CudaArray(gpu.array(data)))
with kvstore.open(path, gpu_direct="on", gpu_engine="kvikio") as pool:
    space = pool.space(model="m")
    target = fresh()
    try:
        assert space.get(b"a", CudaArray(target)) == data.nbytes
        told = [bool((target.host_view() == data).all()), counts(pool), CuFile.reads]
    except kvstore.errors.UnsupportedError as error:
        told = [str(error), counts(pool), CuFile.reads]
    try:
        space.get_many([b"a"], [CudaArray(target)], stream=gpu.stream())
    except kvstore.errors.UnsupportedError as error:
        told.append(str(error))
    print(json.dumps(told))
"""


def test_kvikio_reads_instead_where_it_is_chosen(run_gpu: RunGpu) -> None:
    right, told, reads, refused = run_gpu(_KVIKIO.format(wrong="", spoilt=""))
    assert right is True
    assert told["gpu_direct"] == "GPU 0: compat"
    assert told["bytes_compat"] == 2 << 20
    assert reads == 3  # the proof's, and two pieces
    assert "KvikIO waits for the default stream" in refused


@pytest.mark.parametrize(
    ("wrong", "spoilt", "why"),
    [("", "target[0] ^= 1", "other bytes"), ("raise OSError('no')", "", "Input/output"), ("return 7", "", "gave 7")],
)
def test_kvikio_that_reads_wrongly_is_refused(run_gpu: RunGpu, wrong: str, spoilt: str, why: str) -> None:
    refused, told, _, _ = run_gpu(_KVIKIO.format(wrong=wrong, spoilt=spoilt))
    assert "gpu_direct is 'on'" in refused
    assert why in refused
    assert told["bytes_compat"] == 0


@pytest.mark.parametrize("spoilt", ["if CuFile.reads > 1: target[0] ^= 1", "if CuFile.reads > 1: moved = 7"])
def test_what_kvikio_gets_wrong_later_is_no_hit(run_gpu: RunGpu, spoilt: str) -> None:
    right, told, _, _ = run_gpu(_KVIKIO.format(wrong="", spoilt=spoilt))
    assert right is True
    assert "refused" in told["gpu_direct"]


def test_kvikio_that_is_not_installed_or_not_wanted_is_named(pool_path: str) -> None:
    if find_spec("kvikio") is None:
        with pytest.raises(kvstore.errors.ConfigError, match=r"cannot be imported.*pip install 'nvme-kvstore\[gpu\]'"):
            kvstore.open(pool_path, gpu_direct="on", gpu_engine="kvikio")
    with pytest.raises(kvstore.errors.ConfigError, match="gpu_direct is to be 'on'"):
        kvstore.open(pool_path, gpu_direct="auto", gpu_engine="kvikio")
    with pytest.raises(kvstore.errors.ConfigError, match="nothing reads by it: gpu_direct is to be"):
        kvstore.open(pool_path, gpu_engine="kvikio")
    with pytest.raises(kvstore.errors.ConfigError, match="gpu_engine is 'magic', allowed are 'cufile' and 'kvikio'"):
        kvstore.open(pool_path, gpu_direct="auto", gpu_engine="magic")  # type: ignore[arg-type]


def test_a_library_that_is_missing_is_the_error_of_on_and_the_state_of_auto(
    run_gpu: RunGpu, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(environment, "KVSTORE_LIBCUFILE", "/nonexistent/libcufile.so.0")
    told = run_gpu("""
        with kvstore.open(path, gpu_direct="on") as pool:
            space = pool.space(model="m")
            try:
                space.put(b"a", CudaArray(gpu.array(data)))
            except kvstore.errors.UnsupportedError as error:
                print(json.dumps(str(error)))
    """)
    assert "gpu_direct is 'on'" in told
    assert "install libcufile" in told


def test_an_unknown_word_is_refused(pool_path: str) -> None:
    with pytest.raises(kvstore.errors.ConfigError, match="gpu_direct is 'yes', allowed are 'off', 'auto' and 'on'"):
        kvstore.open(pool_path, gpu_direct="yes")  # type: ignore[arg-type]


def test_the_doctor_proves_the_path_in_a_process_of_its_own(
    environment: dict[str, str],
    pool_path: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("KVSTORE_LIBCUDA", "KVSTORE_LIBCUFILE", "LD_PRELOAD"):
        if name in environment:
            monkeypatch.setenv(name, environment[name])
    monkeypatch.setenv("FAKE_CUFILE_SAYS_DIRECT", "1")
    main(["doctor", "--gpu", "0", pool_path, "--json"])
    (finding,) = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["check"] == "gpu path"]
    if "nvcc" in finding["text"]:
        pytest.skip("nvcc was missing when this was built: what is read directly cannot be verified")
    assert finding["text"].startswith("GPU 0: direct")
    main(["doctor", "--gpu", "7", pool_path, "--json"])
    (finding,) = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["check"] == "gpu path"]
    assert finding["level"] == "fail"
    assert "this process sees 2" in finding["text"]
