# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""kvstore check: finds every kind of damage, takes no healthy block for a damaged one, and repairs.

Method: bytes of a closed pool are flipped in its file, at places that the pool itself tells of; reads that fail and
blocks that are reclaimed during a check happen on a simulated disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from python_support import IDENTITY, MIB, random_bytes

import kvstore
from kvstore.cli import main, verification
from kvstore.testing import SimDisk

Check = Callable[..., tuple[int, dict[str, Any]]]
BLOCKS = 10


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Return a function that runs ``kvstore check --json`` and returns its exit status and report."""

    def call(path: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        status = main(["check", path, "--json", *arguments])
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        return status, report

    return call


def fill(path: str) -> list[kvstore.BlockInfo]:
    with kvstore.open(path) as pool:
        space = pool.space(**IDENTITY)
        keys = [f"key-{number}".encode() for number in range(BLOCKS)]
        values = [random_bytes(MIB - number, number) for number in range(BLOCKS)]
        assert all(space.put_many(keys, values, durable=True).wait())
        return list(pool.blocks())


def flip(path: str, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def test_what_an_earlier_life_with_more_blocks_deleted_is_no_damage(check: Check, tmp_path: Path) -> None:
    path = str(tmp_path / "pool.img")
    kvstore.format(path, size="64MiB", region_bytes="2MiB")
    with kvstore.open(path) as pool:
        space = pool.space(**IDENTITY)
        for number in range(400):
            space.put(b"small %d" % number, random_bytes(5000, number))
        space.delete([b"small %d" % number for number in range(0, 400, 7)])
        pool.flush()
        for number in range(60):
            space.put(b"large %d" % number, random_bytes(1_500_000, number))
        assert pool.stats()["regions_reclaimed"] > 0
    status, report = check(path)
    assert (status, report["metadata_copies_damaged"]) == (0, 0)
    with kvstore.open(path) as pool:
        assert pool.stats()["recovery_copies_damaged"] == 0


def test_a_good_pool_is_good(check: Check, pool_path: str) -> None:
    fill(pool_path)
    status, report = check(pool_path)
    assert status == 0
    assert report["ok"]
    assert report["checked_blocks"] == report["blocks"] == BLOCKS
    assert report["checked_bytes"] == sum(MIB - number for number in range(BLOCKS))


def test_one_flipped_bit_anywhere_in_a_payload_is_found(check: Check, pool_path: str) -> None:
    blocks = fill(pool_path)
    chosen = {0: 0, 4: blocks[4].nbytes // 2, 9: blocks[9].nbytes - 1}
    for number, offset in chosen.items():
        flip(pool_path, blocks[number].offset_bytes + offset)
    status, report = check(pool_path)
    assert (status, report["ok"], report["corrupt_blocks"]) == (1, False, 3)
    assert [bad["key"] for bad in report["bad"]] == [blocks[number].key.hex() for number in chosen]
    assert report["checked_blocks"] == BLOCKS


def test_check_writes_nothing_unless_asked_to_repair(check: Check, pool_path: str) -> None:
    blocks = fill(pool_path)
    flip(pool_path, blocks[3].offset_bytes)
    before = Path(pool_path).read_bytes()
    check(pool_path)
    assert Path(pool_path).read_bytes() == before


def test_repair_drops_what_is_bad_and_nothing_else(check: Check, pool_path: str) -> None:
    blocks = fill(pool_path)
    flip(pool_path, blocks[3].offset_bytes)
    status, report = check(pool_path, "--repair")
    assert (status, report["corrupt_blocks"], report["dropped_blocks"]) == (1, 1, 1)
    status, report = check(pool_path)
    assert (status, report["checked_blocks"]) == (0, BLOCKS - 1)
    with kvstore.open(pool_path, read_only=True) as pool:
        left = {block.key for block in pool.blocks()}
    assert left == {block.key for block in blocks} - {blocks[3].key}


def test_a_damaged_block_of_descriptors_is_told(check: Check, pool_path: str) -> None:
    blocks = fill(pool_path)
    with kvstore.open(pool_path, read_only=True) as pool:
        geometry = pool.superblocks()[0]["geometry"]
    # The descriptor blocks are the end of a region's entry; of a region with four blocks the first of them is in use.
    entry = 32 * MIB + blocks[0].region * geometry["entry_bytes"]
    content = Path(pool_path).read_bytes()
    place = content.index(blocks[0].key, entry, entry + geometry["entry_bytes"])
    flip(pool_path, content.rindex(blocks[0].key, place, entry + geometry["entry_bytes"]))
    status, report = check(pool_path)
    assert status == 1
    assert report["metadata_blocks_damaged"] == 1
    assert report["checked_blocks"] == BLOCKS - 4


def test_a_damaged_block_of_strings_is_told(check: Check, pool_path: str) -> None:
    blocks = fill(pool_path)
    with kvstore.open(pool_path, read_only=True) as pool:
        geometry = pool.superblocks()[0]["geometry"]
    entry = 32 * MIB + blocks[0].region * geometry["entry_bytes"]
    content = Path(pool_path).read_bytes()
    flip(pool_path, content.index(b'"model"', entry, entry + geometry["entry_bytes"]))
    status, report = check(pool_path)
    assert (status, report["ok"], report["metadata_blocks_damaged"]) == (1, False, 1)
    assert report["checked_blocks"] < BLOCKS


def test_a_damaged_bitmap_copy_is_told(check: Check, pool_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = fill(pool_path)
    before = Path(pool_path).read_bytes()
    with kvstore.open(pool_path) as pool:
        geometry = pool.superblocks()[0]["geometry"]
        pool.space(**IDENTITY).delete([blocks[0].key])
        pool.flush()
    after = Path(pool_path).read_bytes()
    entry = 32 * MIB + blocks[0].region * geometry["entry_bytes"]
    pages = range(entry, entry + geometry["entry_bytes"], 4096)
    written = [page for page in pages if before[page : page + 4096] != after[page : page + 4096]]
    flip(pool_path, written[-1] + 100)
    status, report = check(pool_path)
    assert (status, report["ok"], report["metadata_copies_damaged"]) == (1, False, 1)
    assert report["checked_blocks"] == BLOCKS, "the delete is undone, and said to be"
    assert main(["check", pool_path]) == 1
    assert "the last deletes may be undone" in " ".join(capsys.readouterr().out.split())


def test_a_damaged_superblock_copy_is_told_and_mended_by_repair(check: Check, pool_path: str) -> None:
    fill(pool_path)
    flip(pool_path, 8 * MIB + 200)
    status, report = check(pool_path)
    assert (status, report["superblock_copies_damaged"]) == (1, 1)
    check(pool_path, "--repair")
    assert check(pool_path)[0] == 0


def test_a_block_that_cannot_be_read_is_told_apart_and_dropped(check: Check, disk: SimDisk) -> None:
    blocks = fill(disk.path)
    bad = blocks[5]
    disk.fault("error", op="read", first_byte=bad.offset_bytes, last_byte=bad.offset_bytes + 1, times=1 << 30)
    status, report = check(disk.path)
    assert (status, report["unreadable_blocks"], report["corrupt_blocks"]) == (1, 1, 0)
    assert report["bad"][0]["key"] == bad.key.hex()
    assert report["bad"][0]["error"]
    assert check(disk.path, "--repair")[1]["dropped_blocks"] == 1
    status, report = check(disk.path)
    assert (status, report["checked_blocks"]) == (0, BLOCKS - 1)


def test_a_pool_in_use_is_checked(check: Check, pool_path: str) -> None:
    fill(pool_path)
    with kvstore.open(pool_path) as pool:
        pool.space(**IDENTITY).put(b"late", b"value", durable=True)
        status, report = check(pool_path)
    assert (status, report["checked_blocks"]) == (0, BLOCKS + 1)


def test_a_block_reclaimed_during_the_check_is_not_taken_for_a_damaged_one(
    check: Check, pool_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(pool_path)
    verify = verification._verify_one
    with kvstore.open(pool_path) as owner:
        space = owner.space(**IDENTITY)
        capacity, value = int(owner.stats()["capacity_bytes"]), random_bytes(MIB, 99)

        def overwrite_all_first(pool: kvstore.Pool, block: kvstore.BlockInfo) -> verification.Verdict:
            """After the listing, before the first payload is read: the pool is written over once."""
            if not overwritten:
                overwritten.append(True)
                for number in range(capacity // MIB + 8):
                    assert space.put(f"over-{number}".encode(), value)
                owner.flush()
            return verify(pool, block)

        overwritten: list[bool] = []
        monkeypatch.setattr(verification, "_THREADS", 1)
        monkeypatch.setattr(verification, "_verify_one", overwrite_all_first)
        status, report = check(pool_path)
    assert (status, report["corrupt_blocks"]) == (0, 0)
    assert report["reclaimed_meanwhile"] == BLOCKS


def test_a_sample_reads_that_many_blocks(check: Check, pool_path: str) -> None:
    fill(pool_path)
    status, report = check(pool_path, "--sample", "4")
    assert (status, report["checked_blocks"], report["blocks"]) == (0, 4, BLOCKS)
    assert check(pool_path, "--sample", "1000")[1]["checked_blocks"] == BLOCKS


def test_samples_are_spread_over_the_pool(pool_path: str) -> None:
    fill(pool_path)
    seen = set()
    with kvstore.open(pool_path, read_only=True) as pool:
        for _ in range(40):
            chosen = [block.key for block in verification.sample(pool.blocks(), BLOCKS, 3)]
            assert len(set(chosen)) == 3
            seen.update(chosen)
    assert len(seen) == BLOCKS


def test_people_are_told_where_the_damage_is(pool_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = fill(pool_path)
    flip(pool_path, blocks[2].offset_bytes)
    assert main(["check", pool_path]) == 1
    output = capsys.readouterr().out
    assert f"slot {blocks[2].slot}" in output
    assert blocks[2].key.hex() in output
    assert "--repair" in output
    assert main(["check", pool_path, "--repair"]) == 1
    assert "1 dropped" in capsys.readouterr().out
    assert main(["check", pool_path]) == 0
    assert "all good" in capsys.readouterr().out
