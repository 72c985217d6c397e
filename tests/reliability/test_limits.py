# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Processes to which the kernel refuses something: io_uring, locked memory, descriptors, room in a file.

Method: children that take the refusal upon themselves, show that it binds, and then use the store. No setting of the
machine is changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from reliability_support import MIB, POOL, need_root

import kvstore

ROOT = Path(__file__).resolve().parents[2]
FILTERED = str(Path(__file__).parent / "filtered.py")


def filtered(error: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run filtered.py in the root of the sources; skip where no filter can be installed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(kvstore.__file__).parent.parent)}
    command = [sys.executable, "-X", "faulthandler", FILTERED, error, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    if "no seccomp filter can be installed" in done.stderr:
        pytest.skip(f"seccomp cannot be used here: {done.stderr.strip()}")
    return done


WITHOUT_URING = """
import json, sys
import kvstore
from kvstore.cli import main
path = sys.argv[1]
with kvstore.open(path) as pool:
    told = [pool.stats()["device_kind"], pool.devices()[0]["kind"]]
    space = pool.space(engine="test")
    assert space.put(b"key", b"abc", durable=True)
    out = bytearray(3)
    assert space.get(b"key", out) == 3 and out == b"abc"
try:
    kvstore.open(path, device_kind="uring")
except kvstore.UnsupportedError as error:
    told.append(str(error))
print(json.dumps(told))
sys.stdout.flush()
main(["doctor", path, "--json"])
"""


@pytest.mark.parametrize(("error", "mend"), [("EPERM", "seccomp"), ("ENOSYS", "kernel has none")])
def test_where_io_uring_is_refused_threads_are_used_and_stats_and_doctor_say_so(tmp_path, error, mend):
    path = str(tmp_path / "pool.img")
    kvstore.format(path, size=64 * MIB, **POOL)
    done = filtered(error, "--source", WITHOUT_URING, path)
    told, _, report = done.stdout.partition("\n")
    in_stats, in_devices, refusal = json.loads(told)
    assert in_stats == in_devices == "threads"
    assert mend in refusal
    findings = {finding["check"]: finding for finding in json.loads(report)["findings"]}
    assert findings["io_uring"]["level"] == "warn"
    assert "threads" in findings["io_uring"]["text"]
    assert "threads" in findings["engine"]["text"]


def test_the_python_api_passes_where_io_uring_is_refused(tmp_path):
    suites = [f"tests/python/test_{name}.py" for name in ("api", "jobs", "asyncio")]
    results = tmp_path / "results.xml"
    done = filtered("EPERM", "-q", "-p", "no:cacheprovider", f"--junitxml={results}", "-m", "not slow", *suites)
    assert done.returncode == 0, done.stdout[-4000:]
    cases = list(ElementTree.parse(results).iter("testcase"))
    skipped = [case.find("skipped").get("message") for case in cases if case.find("skipped") is not None]
    assert len(cases) - len(skipped) > 80
    assert any("io_uring" in reason for reason in skipped)  # the refusal reached the tests


UNPRIVILEGED = """
import ctypes, json, os, resource, sys, threading
import kvstore, kvstore.cli
from kvstore.doctor import system
path, limit = sys.argv[1], 64 << 10
resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
status = open("/proc/self/status").read()
assert "CapEff:\\t0000000000000000" in status and "CapPrm:\\t0000000000000000" in status
memory = (ctypes.c_char * (1 << 20))()
assert ctypes.CDLL(None, use_errno=True).mlock(memory, len(memory)) != 0, "the limit binds nothing"
with kvstore.open(path) as pool:
    space = pool.space(engine="test")
    buffer = pool.alloc(4 << 20)
    value = os.urandom(4 << 20)
    memoryview(buffer)[:] = value
    stored = space.put(b"key", buffer, durable=True)
    memoryview(buffer)[:] = bytes(4 << 20)
    assert space.get(b"key", buffer) == len(value) and memoryview(buffer) == value
    import mmap
    registered = pool.register(mmap.mmap(-1, 8 << 20))
    stats = pool.stats()
print(json.dumps([stats["device_kind"], stats["path"], bool(registered), registered.reason, stats["pieces_fixed"]]))
"""


@pytest.mark.root
def test_without_memory_to_lock_nothing_is_registered_and_every_byte_is_right(tmp_path, python):
    need_root("to become an unprivileged user")
    path = tmp_path / "pool.img"
    kvstore.format(str(path), size=64 * MIB, region_bytes=4 * MIB, min_block_bytes=4096)
    os.chown(path, 65534, 65534)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_dir() and folder.stat().st_uid == os.getuid() and str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    child = python(UNPRIVILEGED, str(path))
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 0, stderr
    kind, memory, registered, reason, fixed = json.loads(stdout)
    assert kind in ("uring", "threads")  # rings are charged to the limit by some kernels: then few or none fit
    assert not registered
    assert "unregistered" in reason or "memlock" in reason or "no registered buffers" in reason
    assert (memory, fixed) == ("unregistered", 0)


NO_DESCRIPTORS = """
import os, resource, sys
import kvstore
path, kind = sys.argv[1:]
pool = kvstore.open(path, device_kind=kind)
space = pool.space(engine="test")
assert space.put(b"key", b"abc", durable=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    assert error.errno == 24  # EMFILE
out = bytearray(3)
assert space.get(b"key", out) == 3 and out == b"abc"
assert space.put(b"more", b"abc", durable=True)
for call in (pool.queue, lambda: list(pool.blocks()), lambda: kvstore.open(path + ".other")):
    try:
        call()
    except kvstore.KvStoreError as error:
        assert error.errno, error
    else:
        assert call is not pool.queue
pool.close()
"""


def test_without_a_descriptor_left_an_open_pool_serves_and_what_needs_one_is_a_named_error(tmp_path, python, kind):
    path = str(tmp_path / "pool.img")
    kvstore.format(path, size=64 * MIB, **POOL)
    child = python(NO_DESCRIPTORS, path, kind)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 0, stderr
    with kvstore.open(path) as pool:
        assert pool.space(engine="test").contains([b"key", b"more"]) == [True, True]


SMALL_FILES = """
import os, resource, signal, sys
import kvstore
path, kind = sys.argv[1:]
pool = kvstore.open(path, device_kind=kind)
space = pool.space(engine="test")
assert space.put(b"before", bytes(100_000), durable=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    os.pwrite(os.open(path + ".other", os.O_CREAT | os.O_WRONLY), b"x", 8192)
    raise AssertionError("the limit binds nothing")
except OSError as error:
    assert error.errno == 27  # EFBIG
result = space.put_many([b"after"], [bytes(100_000)], durable=True).wait(60)[0]
assert result.status == "error" and isinstance(result.error, kvstore.DeviceError), result
assert space.get(b"before", bytearray(100_000)) == 100_000
assert space.get(b"after", bytearray(100_000)) is None
try:
    pool.close()
except kvstore.KvStoreError:
    pass
"""


def test_a_limit_on_the_size_of_files_fails_puts_and_the_process_lives(tmp_path, python, kind):
    path = str(tmp_path / "pool.img")
    kvstore.format(path, size=64 * MIB, **POOL)
    child = python(SMALL_FILES, path, kind)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 0, stderr
    with kvstore.open(path) as pool:
        assert pool.space(engine="test").contains([b"before", b"after"]) == [True, False]
