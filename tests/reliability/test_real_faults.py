# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Devices and file systems that change, fill, hang or go away under an open pool.

Method: the fault is brought about with the system's own tools and, first of all, shown to be there: many of them bind
nothing for root, or take effect later. Then: what is asked for is right or a miss or a named error, the process goes
on, close() ends in time, and what was durable is there once the fault is gone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from oracle import IDENTITY, content, read
from reliability_support import (
    CLOSE_BOUND_S,
    MIB,
    PATIENCE_S,
    POOL,
    close_in_time,
    put_durably,
    put_until_refused,
    run,
)

import kvstore
from kvstore import errors

FREEZE, THAW = 0xC0045877, 0xC0045878  # FIFREEZE, FITHAW of linux/fs.h
SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN; FS_IOC_SHUTDOWN of xfs is the same number


def all_are(space: kvstore.Space, keys: list[bytes], *allowed: str) -> bool:
    return {read(space, key) for key in keys} <= set(allowed)


@contextlib.contextmanager
def frozen(folder: Path) -> Iterator[None]:
    """A file system whose writes hang, for as long as a call that hangs with them may take at most."""
    descriptor = os.open(folder, os.O_RDONLY)

    def thaw() -> None:
        with contextlib.suppress(OSError):  # it is thawed
            fcntl.ioctl(descriptor, THAW)

    fcntl.ioctl(descriptor, FREEZE)
    late = threading.Timer(CLOSE_BOUND_S + 5, thaw)  # a process with such a write cannot even be killed
    late.start()
    try:
        with pytest.raises(OSError) as twice:
            fcntl.ioctl(descriptor, FREEZE)
        assert twice.value.errno == errno.EBUSY  # it is frozen
        yield
    finally:
        thaw()
        late.cancel()
        late.join()
        os.close(descriptor)


def fill(path: Path) -> None:
    """Let a file grow until there is not a page left."""
    with open(path, "wb", buffering=0) as file:
        for size in (MIB, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


def writing_fails(path: str, offset: int = 0) -> int:
    """The errno of writing back a page of a device, or one more page of a file; 0 when it can be written."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.pwrite(descriptor, os.pread(descriptor, 4096, offset) or bytes(4096), offset)
        os.fsync(descriptor)
    except OSError as error:
        return error.errno
    finally:
        os.close(descriptor)
    return 0


@pytest.mark.root
def test_a_file_system_filled_under_an_open_pool_fails_puts_with_enospc_and_serves_again_when_there_is_room(
    small_fs, kind
):
    path = str(small_fs / "pool.img")
    kvstore.format(path, size=512 * MIB, **POOL)  # sparse: more than the file system holds
    pool = kvstore.open(path, device_kind=kind, failures_max=1000)
    space = pool.space(**IDENTITY)
    before = put_durably(space, 20)

    filler = small_fs / "filler"
    fill(filler)
    assert writing_fails(str(filler), filler.stat().st_size) == errno.ENOSPC

    stored, error = put_until_refused(space, "full")
    assert isinstance(error, errors.DeviceError)
    assert error.errno == errno.ENOSPC
    assert all_are(space, before + stored, "hit")

    filler.unlink()
    after = put_durably(space, 20, "after")
    close_in_time(pool)
    with kvstore.open(path, device_kind=kind, wait_s=PATIENCE_S) as pool:
        assert all_are(pool.space(**IDENTITY), before + stored + after, "hit")


@pytest.mark.root
def test_a_device_set_read_only_under_an_open_pool_fails_puts_and_goes_on_reading(tmp_path, attach, kind):
    backing = tmp_path / "pool.img"
    kvstore.format(str(backing), size=128 * MIB, **POOL)
    device = attach(str(backing), "--direct-io=on")
    pool = kvstore.open(device, device_kind=kind, failures_max=3)
    space = pool.space(**IDENTITY)
    before = put_durably(space, 20)

    run("blockdev", "--setro", device)
    try:
        assert writing_fails(device) in (errno.EPERM, errno.EROFS)
        stored, error = put_until_refused(space, "read-only")
        assert isinstance(error, errors.DeviceError)
        assert error.errno in (errno.EPERM, errno.EROFS, errno.EIO, errno.EACCES)
        assert all_are(space, before, "hit")
        for _ in range(3):
            stored_again, error = put_until_refused(space, "read-only again")
            assert stored_again == []
        assert "read-only after 3 failed writes" in str(error)
        assert "read-only" in pool.stats()["write_refusal"]
        assert isinstance(close_in_time(pool), errors.KvStoreError)  # it could not be marked clean
    finally:
        run("blockdev", "--setrw", device)
    with kvstore.open(device, device_kind=kind, wait_s=PATIENCE_S) as pool:
        space = pool.space(**IDENTITY)
        assert all_are(space, before + stored, "hit")
        put_durably(space, 5, "after")


def test_a_file_truncated_under_an_open_pool_gives_misses_and_named_errors_never_wrong_bytes(tmp_path, kind):
    path = str(tmp_path / "pool.img")
    kvstore.format(path, size=128 * MIB, **POOL)
    pool = kvstore.open(path, device_kind=kind)
    space = pool.space(**IDENTITY)
    before = put_durably(space, 60)
    places = space.describe(before)
    end = sorted(place.offset_bytes for place in places)[30]

    os.truncate(path, end)
    assert Path(path).stat().st_size == end
    for key, place in zip(before, places, strict=True):
        if place.offset_bytes + place.nbytes <= end:
            assert read(space, key) == "hit"
        else:
            assert read(space, key) in ("miss", "io")
    os.truncate(path, 128 * MIB)  # zeros where the payload was
    assert all_are(space, before, "hit", "miss")
    after = put_durably(space, 20, "after")
    assert all_are(space, after, "hit")
    close_in_time(pool)
    with kvstore.open(path, device_kind=kind, wait_s=PATIENCE_S) as pool:
        assert all_are(pool.space(**IDENTITY), before, "hit", "miss")
        assert all_are(pool.space(**IDENTITY), after, "hit")


@pytest.mark.root
def test_a_loop_devices_file_truncated_under_an_open_pool_gives_misses_and_named_errors(tmp_path, attach, kind):
    backing = tmp_path / "pool.img"
    kvstore.format(str(backing), size=128 * MIB, **POOL)
    device = attach(str(backing), "--direct-io=on")
    pool = kvstore.open(device, device_kind=kind, io_timeout_s=5)
    space = pool.space(**IDENTITY)
    before = put_durably(space, 60)

    os.truncate(backing, 40 * MIB)
    assert backing.stat().st_size < int(run("blockdev", "--getsize64", device))
    assert all_are(space, before, "hit", "miss", "io")
    assert not all_are(space, before, "hit")
    (result,) = space.put_many([b"during"], [content(b"during")]).wait(PATIENCE_S)
    assert result.status in ("stored", "error")
    assert read(space, b"during") in (("hit", "io") if result else ("miss", "io"))
    close_in_time(pool)


@pytest.mark.root
@pytest.mark.parametrize("through", ["file", "loop"])
def test_a_device_that_goes_away_gives_named_errors_and_close_ends(small_fs, attach, kind, through):
    backing = str(small_fs / "pool.img")
    kvstore.format(backing, size=100 * MIB, **POOL)
    path = attach(backing, "--direct-io=on") if through == "loop" else backing
    pool = kvstore.open(path, device_kind=kind, failures_max=2)
    space = pool.space(**IDENTITY)
    before = put_durably(space, 20)
    job = space.put_many([b"in flight"], [content(b"in flight")])

    folder = os.open(small_fs, os.O_RDONLY)
    fcntl.ioctl(folder, SHUTDOWN, struct.pack("I", 2))  # without a last write of its journal
    os.close(folder)
    with pytest.raises(OSError) as gone:
        (small_fs / "another").touch()
    assert gone.value.errno == errno.EIO

    assert job.wait(PATIENCE_S)[0].status in ("stored", "error")
    assert all_are(space, before, "io", "miss")
    for name in ("gone", "still gone"):  # failures_max, of which what was in flight may have been one
        stored, error = put_until_refused(space, name)
        assert stored == []
        assert isinstance(error, (errors.DeviceError, errors.FencedError))
    assert pool.stats()["write_refusal"]
    assert isinstance(close_in_time(pool), errors.KvStoreError)  # it could not be marked clean


@pytest.mark.root
def test_a_device_that_hangs_ends_waits_in_time_and_completes_when_it_comes_back(small_fs, kind):
    path = str(small_fs / "pool.img")
    kvstore.format(path, size=100 * MIB, **POOL)
    pool = kvstore.open(path, device_kind=kind, io_timeout_s=600)
    space = pool.space(**IDENTITY)
    before = put_durably(space, 20)
    with frozen(small_fs):
        job = space.put_many([b"hangs"], [content(b"hangs")], durable=True)
        with pytest.raises(errors.WaitTimeout):
            job.wait(timeout_s=0.3)
        assert read(space, b"hangs") == "miss"  # I8
        assert all_are(space, before, "hit")
    assert job.wait(PATIENCE_S)[0].status == "stored"
    assert close_in_time(pool) is None
    with kvstore.open(path, device_kind=kind, wait_s=PATIENCE_S) as pool:
        assert all_are(pool.space(**IDENTITY), [*before, b"hangs"], "hit")


@pytest.mark.root
def test_close_of_a_device_that_hangs_ends_in_time_and_says_what_is_outstanding(small_fs, kind):
    path = str(small_fs / "pool.img")
    kvstore.format(path, size=100 * MIB, **POOL)
    pool = kvstore.open(path, device_kind=kind, io_timeout_s=600)
    space = pool.space(**IDENTITY)
    before = put_durably(space, 20)
    with frozen(small_fs):
        job = space.put_many([b"hangs"], [content(b"hangs")])
        with pytest.raises(errors.WaitTimeout):
            job.wait(timeout_s=0.3)
        error = close_in_time(pool)
        assert isinstance(error, errors.WaitTimeout)
        assert "outstanding" in str(error)
        with pytest.raises(errors.ClosedError):
            job.wait(timeout_s=1)
    with pytest.raises(errors.BusyError, match=str(os.getpid())):
        kvstore.open(path)  # I11: what may still write holds the device as long as this process lives
    with kvstore.open(path, read_only=True) as pool:
        space = pool.space(**IDENTITY)
        assert all_are(space, before, "hit")
        assert read(space, b"hangs") in ("hit", "miss")


@pytest.mark.root
def test_a_loop_device_detached_under_an_open_pool_serves_until_close(tmp_path, attach, kind):
    backing = tmp_path / "pool.img"
    kvstore.format(str(backing), size=128 * MIB, **POOL)
    device = attach(str(backing), "--direct-io=on")
    pool = kvstore.open(device, device_kind=kind)
    space = pool.space(**IDENTITY)
    before = put_durably(space, 20)
    run("losetup", "--detach", device)
    assert device in run("losetup", "--all")  # lazily: not before its last opener goes
    after = put_durably(space, 20, "after")
    assert all_are(space, before + after, "hit")
    assert close_in_time(pool) is None
    with kvstore.open(str(backing), device_kind=kind, wait_s=PATIENCE_S) as pool:
        assert all_are(pool.space(**IDENTITY), before + after, "hit")
