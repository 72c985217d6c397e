# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What bad input gets: a named exception with what, where and the numbers, or a miss; nothing is lost or overwritten.

Method: one bad thing per test, on files, loop devices where it takes one, and the simulated disk for bytes that flip.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import random
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from python_support import IDENTITY, MIB, POOL, random_bytes

import kvstore
from kvstore import _core, errors
from kvstore.testing import SimDisk

# ---- the classes ----


def test_the_hierarchy_is_as_documented():
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.KvStoreError)
        assert getattr(kvstore, name) is getattr(errors, name)
    assert issubclass(errors.DeviceError, OSError)
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.WaitTimeout, TimeoutError)
    assert issubclass(errors.ForeignDataError, errors.FormatError)


@pytest.mark.parametrize("code", sorted(errors._CLASSES))
def test_every_code_carries_code_errno_and_message_also_when_pickled(code):
    error = _core._make_exception(code, errno.EIO, "what: where, 5 bytes")
    assert type(error) in {errors._CLASSES[code], errors.DeviceError}
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert type(one) is type(error)
        assert (str(one), one.code, one.errno) == ("what: where, 5 bytes", code, errno.EIO)


# ---- devices ----


def checked_unchanged(path: str, error: type[Exception], match: str, **options) -> None:
    """Opening fails as said, and leaves the file as it was."""
    before = Path(path).read_bytes()
    with pytest.raises(error, match=match):
        kvstore.open(path, **options)
    assert Path(path).read_bytes() == before


def test_a_path_that_is_not_there(tmp_path):
    path = str(tmp_path / "nothing")
    with pytest.raises(errors.DeviceError, match="nothing") as caught:
        kvstore.open(path)
    assert caught.value.errno == errno.ENOENT
    assert not Path(path).exists()
    with pytest.raises(errors.KvStoreError, match="nothing"):
        kvstore.format(path)


def test_a_folder(tmp_path):
    with pytest.raises(errors.KvStoreError, match=str(tmp_path)):
        kvstore.open(str(tmp_path))


def test_an_empty_file_and_one_of_zeros_and_one_of_noise_hold_no_store(tmp_path):
    for name, content in (("empty", b""), ("zeros", bytes(64 * MIB)), ("noise", random_bytes(64 * MIB, 1))):
        path = tmp_path / name
        path.write_bytes(content)
        checked_unchanged(str(path), errors.KvStoreError, name)
        path.unlink()


def test_a_file_system_is_refused_by_name_and_by_format_too(tmp_path):
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is missing: install e2fsprogs")
    path = str(tmp_path / "ext4.img")
    with open(path, "wb") as file:
        file.truncate(96 * MIB)
    subprocess.run(["mkfs.ext4", "-q", path], check=True)
    before = Path(path).read_bytes()
    with pytest.raises(errors.ForeignDataError, match="ext4"):
        kvstore.format(path)
    with pytest.raises(errors.FormatError):
        kvstore.open(path)
    assert kvstore.plan_format(path, force=True)[0]["found"].startswith("ext4")
    assert Path(path).read_bytes() == before
    kvstore.format(path, force=True)
    kvstore.open(path).close()


def test_another_store_is_not_overwritten_without_force(pool_path):
    with kvstore.open(pool_path) as pool:
        pool.space(**IDENTITY).put(b"key", b"abc", durable=True)
        with pytest.raises(errors.KvStoreError):
            kvstore.format(pool_path, force=True)  # in use
    with pytest.raises(errors.KvStoreError, match="kvstore store"):
        kvstore.format(pool_path)
    with kvstore.open(pool_path) as pool:
        assert pool.space(**IDENTITY).contains(b"key")


@pytest.mark.parametrize("change", [-MIB, MIB, -POOL["size"] + 40 * MIB])
def test_a_resized_device(pool_path, change):
    os.truncate(pool_path, POOL["size"] + change)
    checked_unchanged(pool_path, errors.KvStoreError, "pool.img")
    os.truncate(pool_path, POOL["size"])


def test_a_truncated_file(pool_path):
    for left in (5 * MIB, 4096):
        os.truncate(pool_path, left)
        checked_unchanged(pool_path, errors.KvStoreError, f"cut short: {left} bytes are left of store")


def test_a_member_of_another_pool(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.img", "b.img", "c.img", "d.img")]
    kvstore.format(paths[:2], **POOL)
    kvstore.format(paths[2:], **POOL)
    with pytest.raises(errors.OtherStoreError):
        kvstore.open([paths[0], paths[3]])
    with pytest.raises(errors.KvStoreError):
        kvstore.open(paths[:3])
    for pair in (paths[:2], paths[2:]):
        kvstore.open(pair).close()


def test_a_copy_of_the_store_beside_it_is_not_two_devices(pool_path):
    copy = pool_path + ".copy"
    shutil.copyfile(pool_path, copy)
    with pytest.raises(errors.KvStoreError):
        kvstore.open([pool_path, copy])


def test_all_superblocks_damaged_is_corrupt_not_empty(pool_path):
    with open(pool_path, "r+b") as file:
        for offset in (0, 8 * MIB, 24 * MIB, POOL["size"] - 4096):
            file.seek(offset + 200)
            file.write(b"\xff" * 8)
    checked_unchanged(pool_path, errors.CorruptionError, "pool.img")
    with pytest.raises(errors.KvStoreError):
        kvstore.format(pool_path)


def test_two_damaged_superblocks_are_repaired(pool_path):
    with open(pool_path, "r+b") as file:
        for offset in (0, 24 * MIB):
            file.seek(offset)
            file.write(bytes(4096))
    kvstore.open(pool_path).close()
    with open(pool_path, "rb") as file:
        pages = []
        for offset in (0, 8 * MIB, 24 * MIB, POOL["size"] - 4096):
            file.seek(offset)
            pages.append(file.read(4096))
    assert all(any(page) for page in pages)


def test_a_read_only_device(request, pool_path):
    if os.geteuid() == 0:
        if shutil.which("losetup") is None:
            pytest.skip("losetup is missing: install util-linux")
        command = ["losetup", "--find", "--show", "--read-only", pool_path]
        path = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        request.addfinalizer(lambda: subprocess.run(["losetup", "--detach", path], check=True))
    else:
        path = pool_path
        Path(path).chmod(0o444)
    with pytest.raises(errors.KvStoreError, match=path):
        kvstore.open(path)
    with kvstore.open(path, read_only=True) as pool:
        assert list(pool.blocks()) == []


@pytest.mark.root
def test_a_full_disk_is_an_error_of_the_put_and_what_was_stored_stays(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        path = str(folder / "pool.img")
        try:
            kvstore.format(path, **POOL)  # sparse: more than the file system holds
        except errors.UnsupportedError as error:
            pytest.skip(f"tmpfs of this kernel has no O_DIRECT: {error}")
        pool = kvstore.open(path)
        space = pool.space(**IDENTITY)
        value = random_bytes(MIB, 1)
        stored, failed = [], None
        for i in range(100):
            key = b"full-%d" % i
            result = space.put_many([key], [value], durable=True).wait()[0]
            if not result:
                failed = result.error
                break
            stored.append(key)
        assert isinstance(failed, errors.DeviceError)
        assert failed.errno == errno.ENOSPC
        assert len(stored) > 10
        out = bytearray(MIB)
        for key in stored:
            assert space.get(key, out) == MIB
            assert out == value
        assert space.get(b"full-%d" % len(stored), out) is None
        with contextlib.suppress(errors.DeviceError, errors.DurabilityLost):
            pool.close()  # the clean mark may find no room either
        assert pool.closed
    finally:
        # Lazily: the kernel lets go of a ring's files a moment after they were closed.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_device_named_twice_or_not_at_all(pool_path):
    with pytest.raises(errors.ConfigError, match="twice"):
        kvstore.open([pool_path, pool_path])
    with pytest.raises(errors.ConfigError, match="no device"):
        kvstore.open([])
    with pytest.raises(errors.ConfigError):
        kvstore.open("")
    for wrong in (5, None, [5], b"path", [b"path"]):
        with pytest.raises(TypeError):
            kvstore.open(wrong)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"size": "1MiB"}, errors.ConfigError, "1048576|1,048,576|1 MiB"),
        ({"size": "0"}, errors.ConfigError, "size is '0'"),
        ({"size": "-5"}, errors.ConfigError, "size is '-5'"),
        ({"size": "192MiB", "region_bytes": 1000}, errors.ConfigError, "region_bytes"),
        ({"size": "192MiB", "region_bytes": "1GiB"}, errors.ConfigError, "region"),
        ({"size": "192MiB", "min_block_bytes": "1GiB"}, errors.ConfigError, "min_block_bytes|region"),
        ({"size": "192MiB", "device_kind": "floppy"}, errors.ConfigError, "device_kind|kind"),
    ],
)
def test_absurd_formats(tmp_path, options, error, match):
    with pytest.raises(error, match=match):
        kvstore.format(str(tmp_path / "new.img"), **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"verify": "sometimes"}, "verify is 'sometimes', allowed are 'always', 'first_read' and 'off'"),
        ({"device_kind": "floppy"}, "device_kind is 'floppy'"),
        ({"window_bytes": "-1"}, "window_bytes is '-1'"),
        ({"window_bytes": 1}, "window_bytes"),
        ({"staging_bytes": 1}, "staging_bytes"),
        ({"jobs_max": 0}, "jobs_max"),
        ({"jobs_max": 1 << 40}, "jobs_max is 1099511627776"),
        ({"engine_threads": -1}, "engine_threads is -1"),
        ({"pin_lease_s": -1}, "pin_lease_s is -1"),
        ({"io_timeout_s": float("nan")}, "io_timeout_s is nan"),
        ({"wait_s": -1}, "wait_s is -1"),
        ({"wait_s": float("nan")}, "wait_s is nan"),
        ({"wait_s": -(10**400)}, "wait_s is -inf, allowed are 0 and more"),
        ({"mode": "shared", "engine": "sqlite:\0"}, "engine 'sqlite:.x00'"),
        ({"mode": "shared", "engine": "etcd://u:p@h:1"}, "user names and passwords are not supported"),
    ],
)
def test_absurd_options(pool_path, options, match):
    with pytest.raises(errors.ConfigError, match=match):
        kvstore.open(pool_path, **options)
    with pytest.raises(TypeError):
        kvstore.open(pool_path, no_such_option=1)


@pytest.mark.parametrize("mode", ["owner", "shared"])
@pytest.mark.parametrize("lease_s", [-1, 0, 0.999, 3600.1, 1e300, 10**400, float("inf"), float("nan")])
def test_a_lease_time_that_cannot_work_is_refused_with_the_bounds(pool_path, mode, lease_s):
    with pytest.raises(errors.ConfigError, match=r"^lease_s is -?[a-z0-9.e+]+, allowed are 1 to 3,600$"):
        kvstore.open(pool_path, mode=mode, lease_s=lease_s)
    assert not Path(f"{pool_path}.sqlite").exists()


@pytest.mark.parametrize("option", ["staging_bytes", "prefetch_bytes", "index_blocks_max"])
def test_sizes_beyond_the_memory_of_the_machine_are_refused_by_name(pool_path, option):
    beyond = 1 << (30 if option == "index_blocks_max" else 44)  # 64 bytes a block
    if option == "index_blocks_max" and os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") >= 64 * beyond:
        beyond = 1 << 32
    with pytest.raises(errors.ConfigError, match=f"{option} is {beyond}: .* memory"):
        kvstore.open(pool_path, **{option: beyond})
    kvstore.open(pool_path).close()


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("device_kind", lambda pool, space: kvstore.open("/nowhere", device_kind=5)),
        ("device_kind", lambda pool, space: kvstore.format("/nowhere", device_kind=5)),
        ("device_kind", lambda pool, space: kvstore.plan_format("/nowhere", device_kind=b"uring")),
        ("verify", lambda pool, space: kvstore.open("/nowhere", verify=b"always")),
        ("wait_s", lambda pool, space: kvstore.open(pool.paths, wait_s="1")),
        ("wait_s", lambda pool, space: kvstore.open(pool.paths, wait_s=True)),
        ("lease_s", lambda pool, space: kvstore.open("/nowhere", mode="shared", lease_s="10")),
        ("lease_s", lambda pool, space: kvstore.open("/nowhere", lease_s=True)),
        ("engine", lambda pool, space: kvstore.open("/nowhere", mode="shared", engine=b"sqlite:")),
        ("engine", lambda pool, space: kvstore.unshare(pool.paths, engine=None)),
        ("engine", lambda pool, space: kvstore.unshare(pool.paths, engine=5)),
        ("engine", lambda pool, space: kvstore.unshare(pool.paths, engine=b"sqlite:")),
        ("engine_is_lost", lambda pool, space: kvstore.unshare(pool.paths, engine_is_lost=1)),
        ("paths", lambda pool, space: kvstore.open(None)),
        ("paths", lambda pool, space: kvstore.open(5)),
        ("paths", lambda pool, space: kvstore.open(b"x")),
        ("paths", lambda pool, space: kvstore.unshare(None)),
        ("paths", lambda pool, space: kvstore.format(bytearray(b"x"))),
        ("paths", lambda pool, space: kvstore.plan_format(5)),
        (r"paths\[1\]", lambda pool, space: kvstore.open(["/nowhere", ["/nowhere"]])),
        (r"paths\[0\]", lambda pool, space: kvstore.unshare([b"/nowhere"])),
        ("timeout_s", lambda pool, space: pool.flush("1")),
        ("timeout_s", lambda pool, space: pool.close("1")),
        ("block", lambda pool, space: pool.verify_block("1")),
        ("block", lambda pool, space: pool.drop_block(None)),
        ("item", lambda pool, space: space.put_many([b"key"], [b"abc"]).cancel("1")),
        ("queue", lambda pool, space: space.put_many([b"key"], [b"abc"], queue=5)),
        ("tag", lambda pool, space: space.put_many([b"key"], [b"abc"], tag=True)),
        ("priority", lambda pool, space: space.put_many([b"key"], [b"abc"], priority="1")),
        ("deadline_ms", lambda pool, space: space.prefetch([b"key"], deadline_ms="1")),
        ("keys", lambda pool, space: space.contains(5)),
        ("keys", lambda pool, space: space.match_prefix(None)),
        ("values", lambda pool, space: space.put_many([b"key"], 5)),
        ("outs", lambda pool, space: space.get_many([b"key"], None)),
        ("salts", lambda pool, space: space.contains([b"key"], salts=5)),
    ],
)
def test_a_wrong_type_is_a_type_error_that_names_the_argument(file_pool, file_space, name, call):
    with pytest.raises(TypeError, match=rf"^{name} is a \w+, not"):
        call(file_pool, file_space)
    assert not file_pool.closed


class Unspeakable(float):
    """A number that cannot be shown: ``str()`` gives what UTF-8 cannot hold, or fails."""

    def __str__(self) -> str:
        if self < -1:
            raise ValueError(self)
        return "\ud800"


@pytest.mark.parametrize("text", ["\udc80", "uring\ud800", "always\udfff"])
def test_text_that_utf8_cannot_hold_is_refused_by_name(tmp_path, text):
    path = str(tmp_path / "pool.img")
    shown = re.escape(text.encode(errors="backslashreplace").decode())
    for name, call in (
        ("device_kind", lambda: kvstore.open(path, device_kind=text)),
        ("device_kind", lambda: kvstore.format(path, size=64 * MIB, device_kind=text)),
        ("device_kind", lambda: kvstore.plan_format(path, device_kind=text)),
        ("verify", lambda: kvstore.open(path, verify=text)),
        ("the path", lambda: kvstore.open(path + text)),
        ("the path", lambda: kvstore.format([path + text], size=64 * MIB)),
    ):
        with pytest.raises(errors.ConfigError, match=rf"^{name} .*{shown}'"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_a_text_is_compared_whole_not_up_to_its_first_zero(tmp_path):
    for options in ({"device_kind": "uring\0x"}, {"verify": "always\0x"}):
        with pytest.raises(errors.ConfigError, match="allowed are"):
            kvstore.open(str(tmp_path / "pool.img"), **options)


def test_a_refusal_is_told_also_when_what_was_given_cannot_be_shown(tmp_path, file_space):
    path = str(tmp_path / "other.img")
    with pytest.raises(errors.ConfigError, match=r"pin_lease_s is \\ud800, allowed"):
        kvstore.open(path, pin_lease_s=Unspeakable(-1))
    with pytest.raises(errors.ConfigError, match=r"pin_lease_s is \(no text\), allowed"):
        kvstore.open(path, pin_lease_s=Unspeakable(-2))
    for name in ("tag", "priority"):
        with pytest.raises(errors.ConfigError, match=rf"{name} is \(no text\), allowed"):
            file_space.put_many([b"key"], [b"abc"], **{name: 10**5000})  # more digits than str() gives


# ---- arguments ----


@pytest.mark.parametrize(
    ("key", "error", "match"),
    [
        ("text", TypeError, "is a str"),
        (b"", errors.ConfigError, "0 bytes long, allowed are 1 to 1,024"),
        (b"x" * 1025, errors.ConfigError, "1,025 bytes long, allowed are 1 to 1,024"),
        (7, TypeError, "is a int, not bytes"),
        (None, TypeError, "is a NoneType, not bytes"),
    ],
)
def test_wrong_keys_everywhere(file_space, key, error, match):
    out = bytearray(8)
    for call in (
        lambda: file_space.put(key, b"v"),
        lambda: file_space.get(key, out),
        lambda: file_space.put_many([b"ok", key], [b"v", b"v"]),
        lambda: file_space.get_many([b"ok", key], [out, bytearray(8)]),
        lambda: file_space.prefetch([b"ok", key]),
        lambda: file_space.contains([b"ok", key]),
        lambda: file_space.lookup([b"ok", key]),
        lambda: file_space.match_prefix([b"ok", key]),
        lambda: file_space.unpin([b"ok", key]),
        lambda: file_space.touch([b"ok", key]),
        lambda: file_space.delete([b"ok", key]),
        lambda: file_space.describe([b"ok", key]),
    ):
        with pytest.raises(error, match=match):
            call()
    assert not file_space.contains(b"ok")


@pytest.mark.parametrize("given", ["False", 1, b"", object()])
def test_what_is_no_bool_is_refused_by_name(file_space, pool_path, given):
    for name, call in (
        ("durable", lambda: file_space.put(b"key", b"v", durable=given)),
        ("page_hashes", lambda: file_space.put(b"key", b"v", page_hashes=given)),
        ("durable", lambda: file_space.put_many([b"key"], [b"v"], durable=given)),
        ("page_hashes", lambda: file_space.put_many([b"key"], [b"v"], page_hashes=given)),
        ("chain", lambda: file_space.put_many([b"key"], [b"v"], chain=given)),
        ("pin", lambda: file_space.contains([b"key"], given)),
        ("pin", lambda: file_space.lookup([b"key"], given)),
        ("pin", lambda: file_space.match_prefix([b"key"], given)),
        ("read_only", lambda: kvstore.open(pool_path, read_only=given)),
        ("force", lambda: kvstore.format(pool_path, force=given)),
    ):
        with pytest.raises(TypeError, match=f"^{name} is a {type(given).__name__}, not a bool$"):
            call()
    assert not file_space.contains(b"key", np.False_)


def test_one_key_where_many_are_wanted(file_space):
    for call in (file_space.lookup, file_space.match_prefix, file_space.delete, file_space.prefetch, file_space.touch):
        with pytest.raises(TypeError, match="put it into a list"):
            call(b"key")
    with pytest.raises(TypeError, match="put it into a list"):
        file_space.put_many(b"key", [b"value"])
    with pytest.raises(TypeError, match="put it into a list"):
        file_space.put_many([b"key"], b"value")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"salts": [b"a"]}, "salts has 1 items for 2 keys"),
        ({"salts": b"x" * 1025}, "salts is 1,025 bytes long"),
        ({"metas": [b"x" * 29, None]}, r"metas\[0\] is 29 bytes long, allowed are 0 to 28"),
        ({"parents": [b"a"]}, "parents has 1 items for 2 keys"),
        ({"parents": [None, b"x" * 1025]}, r"parents\[1\] is 1,025 bytes long"),
        ({"parents": [None, b""]}, r"parents\[1\] is 0 bytes long, allowed are 1 to 1,024"),
        ({"depths": [0, -1]}, r"depths\[1\] is -1"),
        ({"depths": [0, 1 << 32]}, r"depths\[1\] is 4294967296"),
        ({"depths": [0]}, "depths has 1 items for 2 keys"),
        ({"chain": True, "depths": [0, 1]}, "chain=True"),
        ({"tag": -1}, "tag is -1"),
        ({"tag": 1 << 64}, "tag is 18446744073709551616"),
        ({"deadline_ms": 0}, "deadline_ms is 0"),
        ({"deadline_ms": -1}, "deadline_ms is -1"),
        ({"priority": 1 << 31}, "priority is 2147483648"),
    ],
)
def test_wrong_arguments_of_a_batch(file_space, arguments, match):
    with pytest.raises(errors.ConfigError, match=match):
        file_space.put_many([b"a", b"b"], [b"v", b"v"], **arguments)
    assert file_space.contains([b"a", b"b"]) == [False, False]


def test_batches_that_do_not_fit_together(file_space):
    with pytest.raises(errors.ConfigError, match="values has 1 items for 2 keys"):
        file_space.put_many([b"a", b"b"], [b"v"])
    with pytest.raises(errors.ConfigError, match="outs has 2 items for 1 keys"):
        file_space.get_many([b"a"], [bytearray(1), bytearray(1)])
    with pytest.raises(errors.ConfigError, match="keys is empty"):
        file_space.put_many([], [])


def test_a_value_larger_than_a_region_can_hold(file_space):
    value = memoryview(bytearray(POOL["region_bytes"] + 1))
    with pytest.raises(errors.ConfigError, match=r"4,?194,?30[45]"):
        file_space.put(b"huge", value)
    with pytest.raises(errors.ConfigError, match=r"4,?194,?30[45]"):
        file_space.put_many([b"small", b"huge"], [b"v", value])
    assert file_space.contains([b"small", b"huge"]) == [False, False]
    assert file_space.put(b"largest", value[:-1]).status == "stored"


def test_a_value_of_4_gib_is_refused_without_being_touched(file_space):
    with pytest.raises(errors.ConfigError):
        file_space.put(b"huge", (4096, 1 << 32))
    with pytest.raises(errors.ConfigError):
        file_space.put(b"huge", (4096, 1 << 62))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"offset": -1}, "offset is -1"),
        ({"offset": 1 << 63}, "offset is 9223372036854775808"),
        ({"nbytes": -1}, "nbytes is -1"),
        ({"nbytes": 101}, "room for 100 bytes, nbytes asks for 101"),
        ({"offset": 99, "nbytes": 2}, "the block has 100"),
        ({"offset": 101}, "the block has 100"),
        ({"offset": (1 << 63) - 1, "nbytes": 100}, "the block has 100"),
    ],
)
def test_parts_that_are_not_there(file_space, arguments, match):
    file_space.put(b"key", b"x" * 100)
    with pytest.raises(errors.ConfigError, match=match):
        file_space.get(b"key", bytearray(100), **arguments)


def test_absurd_allocations(file_pool):
    for nbytes in (0, -1, 1 << 62, "-1"):
        with pytest.raises(errors.ConfigError, match="nbytes"):
            file_pool.alloc(nbytes)
    with pytest.raises(errors.KvStoreError):
        file_pool.alloc(1 << 45)
    with pytest.raises(errors.ConfigError, match="read-only"):
        file_pool.register(bytes(4096))
    with pytest.raises(errors.KvStoreError, match="page"):
        file_pool.register(memoryview(file_pool.alloc(8192))[64:4160])


def test_absurd_limits(file_pool):
    feed, queue = file_pool.evictions(), file_pool.queue()
    for call in (feed.drain, queue.drain, file_pool.evictions):
        for limit in (-1, 1 << 32):
            with pytest.raises(errors.ConfigError, match=f"limit is {limit}"):
                call(limit)
        with pytest.raises(TypeError, match="limit is a str"):
            call("1")
    assert (feed.drain(0), queue.drain(0)) == ([], [])
    with pytest.raises(errors.ConfigError, match="limit is 0"):
        file_pool.evictions(0)


def test_wrong_identities(file_pool):
    with pytest.raises(errors.ConfigError, match="at least one field"):
        file_pool.space()
    with pytest.raises(TypeError, match="field scale of the space holds a float"):
        file_pool.space(scale=1.5)
    with pytest.raises(TypeError, match="field layers of the space holds a list"):
        file_pool.space(layers=[[1]])
    with pytest.raises(errors.ConfigError, match=r"3,9\d\d bytes of JSON, allowed are 3,900"):
        file_pool.space(model="x" * 3895)
    assert file_pool.space(model="x" * 3880).put(b"key", b"v").status == "stored"


def test_too_many_jobs_are_busy_not_a_wait(disk):
    with kvstore.open(disk.path, jobs_max=2) as pool:
        space = pool.space(**IDENTITY)
        space.put(b"key", b"abc", durable=True)
        block = space.describe([b"key"])[0]
        disk.fault("stuck", op="read", first_byte=block.offset_bytes, last_byte=block.offset_bytes + 1, times=2)
        jobs = [space.get_many([b"key"], [bytearray(3)]) for _ in range(2)]
        with pytest.raises(errors.BusyError, match="2"):
            space.get_many([b"key"], [bytearray(3)])
        disk.clear_faults()
        while not all(job.done for job in jobs):
            disk.release_stuck()
        assert space.get(b"key", bytearray(3)) == 3


def test_a_closed_pool(pool_path):
    pool = kvstore.open(pool_path)
    space, queue, feed = pool.space(**IDENTITY), pool.queue(), pool.evictions()
    job = space.put_many([b"key"], [b"abc"], queue=queue)
    job.wait()
    pool.close()
    for call in (
        lambda: space.put(b"key", b"v"),
        lambda: space.get(b"key", bytearray(8)),
        lambda: space.get_many([b"key"], [bytearray(8)]),
        lambda: space.contains(b"key"),
        lambda: space.delete([b"key"]),
        lambda: list(space.keys()),
        lambda: list(pool.blocks()),
        lambda: pool.space(a=1),
        lambda: pool.alloc(1),
        lambda: pool.evictions(),
        pool.flush,
        pool.stats,
        pool.devices,
    ):
        with pytest.raises(errors.ClosedError, match="closed"):
            call()
    assert job.wait()[0].status == "stored"
    job.cancel()
    assert queue.drain() == [job]
    feed.drain()
    pool.close()


# ---- trouble of the device ----


def test_a_flipped_byte_of_a_payload_is_a_miss_and_counted(pool_path):
    value = random_bytes(300_000, 1)
    with kvstore.open(pool_path) as pool:
        space = pool.space(**IDENTITY)
        space.put_many([b"a", b"b"], [value, value], durable=True).wait()
        block = space.describe([b"a"])[0]
    with open(pool_path, "r+b") as file:
        file.seek(block.offset_bytes + 123_456)
        file.write(bytes([value[123_456] ^ 0x10]))
    with kvstore.open(pool_path) as pool:
        space = pool.space(**IDENTITY)
        out = bytearray(300_000)
        assert space.get(b"a", out) is None
        assert space.get(b"b", out) == 300_000
        assert out == value
        assert pool.stats()["checksum_misses"] == 1
        assert space.put(b"a", value).status == "stored"


def test_bytes_flipped_anywhere_are_a_miss_or_a_named_error(disk):
    keys = [b"flip-%d" % i for i in range(12)]
    values = [random_bytes(40_000 + i, i) for i in range(12)]
    with kvstore.open(disk.path) as pool:
        pool.space(**IDENTITY).put_many(keys, values, salts=b"salt", durable=True).wait()
        geometry = pool.superblocks()[0]["geometry"]
        data = pool.space(**IDENTITY).describe(keys, salts=b"salt")
    entries = [32 * MIB + block.region * geometry["entry_bytes"] for block in data]
    ranges = [(offset, 4096) for offset in (0, 8 * MIB, 24 * MIB, POOL["size"] - 4096)]
    ranges += [(entry, 64 * 1024) for entry in {*entries}] * 3
    ranges += [(block.offset_bytes, block.nbytes) for block in data[:4]]
    chosen = random.Random(20260101)
    hits = misses = refused = 0
    for _ in range(60):
        first, length = chosen.choice(ranges)
        offset = first + chosen.randrange(length)
        old = disk.peek(offset, 1)
        disk.poke(offset, bytes([old[0] ^ (1 << chosen.randrange(8))]))
        try:
            with kvstore.open(disk.path) as pool:
                space = pool.space(**IDENTITY)
                outs = [bytearray(41_000) for _ in keys]
                for value, out, result in zip(
                    values, outs, space.get_many(keys, outs, salts=b"salt").wait(30), strict=True
                ):
                    assert result.status in {"hit", "miss"}
                    if result:
                        assert out[: result.nbytes] == value, f"wrong bytes after a flip at {offset}"
                        hits += 1
                    else:
                        misses += 1
                for key, value in zip(keys, values, strict=True):
                    space.put(key, value, salt=b"salt")
        except errors.KvStoreError:
            refused += 1
            disk.poke(offset, old)
    assert hits > 300
    assert misses > 0


def test_a_failing_read_is_a_device_error_with_its_place(disk, sim_pool):
    space = sim_pool.space(**IDENTITY)
    space.put(b"key", b"abc", durable=True)
    block = space.describe([b"key"])[0]
    disk.fault("error", op="read", first_byte=block.offset_bytes, last_byte=block.offset_bytes + 1, times=1000)
    with pytest.raises(errors.DeviceError) as caught:
        space.get(b"key", bytearray(3))
    assert caught.value.errno == errno.EIO
    for part in (disk.path, str(block.offset_bytes), "Input/output error"):
        assert part in str(caught.value)
    result = space.get_many([b"key"], [bytearray(3)]).wait(10)[0]
    assert isinstance(result.error, errors.DeviceError)
    assert str(block.offset_bytes) in str(result.error)
    disk.clear_faults()
    assert space.get(b"key", bytearray(3)) == 3


def test_a_failed_write_is_never_visible(disk, sim_pool):
    space = sim_pool.space(**IDENTITY)
    space.put(b"before", b"abc", durable=True)
    offset = sim_pool.superblocks()[0]["geometry"]["data_offset"]
    disk.fault("error", op="write", first_byte=offset, times=1000)
    with pytest.raises(errors.DeviceError):
        space.put(b"key", b"abc")
    assert not space.contains(b"key")
    assert space.get(b"key", bytearray(3)) is None
    disk.clear_faults()
    assert space.get(b"before", bytearray(3)) == 3


def test_blocks_lost_before_they_were_durable_are_told_once_by_flush(disk):
    pool = kvstore.open(disk.path, commit_interval_ms=3_600_000)
    space = pool.space(**IDENTITY)
    space.put_many([b"a", b"b"], [b"x" * 5000] * 2).wait()
    disk.fault("flush_fails", op="flush")
    with pytest.raises(errors.DurabilityLost, match="2"):
        pool.flush(timeout_s=10)
    assert space.contains([b"a", b"b"]) == [False, False]
    pool.flush(timeout_s=10)
    pool.close()


def test_verify_off_is_the_only_mode_that_returns_flipped_bytes():
    results = {}
    for verify in ("always", "first_read", "off"):
        disk = SimDisk(POOL["size"])
        kvstore.format(disk.path, region_bytes="4MiB")
        with kvstore.open(disk.path, verify=verify) as pool:
            space = pool.space(**IDENTITY)
            space.put(b"key", b"x" * 100, durable=True)
            disk.poke(space.describe([b"key"])[0].offset_bytes, b"y")
            results[verify] = space.get(b"key", bytearray(100))
        disk.remove()
    assert results == {"always": None, "first_read": None, "off": 100}


def test_a_read_only_pool_says_that_it_is_and_why(pool_path):
    with kvstore.open(pool_path) as pool:
        pool.space(**IDENTITY).put(b"key", b"abc", durable=True)
    with kvstore.open(pool_path, read_only=True) as pool:
        space = pool.space(**IDENTITY)
        (block,) = pool.blocks()
        told = "the pool is read-only: it was opened with read_only"
        for call in (lambda: space.put(b"other", b"abc"), lambda: pool.drop_block(block)):
            with pytest.raises(errors.FencedError, match=told):
                call()
        assert str(space.put_many([b"other"], [b"abc"]).wait()[0].error) == told
        assert str(space.delete([b"key"])[0].error) == told
        assert pool.stats()["write_refusal"] == told
