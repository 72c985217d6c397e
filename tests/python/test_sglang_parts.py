# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of SGLang's door that need no SGLang: settings, keys, and transfers on a device that hangs.

Transfers run against the real store on a simulated disk; whether a call has returned is asked of its thread.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.errors import ConfigError
from kvstore.sglang.compat import TESTED_VERSION, version_complaint
from kvstore.sglang.config import DoorConfig
from kvstore.sglang.counters import Counters
from kvstore.sglang.keys import key_bytes, places_of
from kvstore.sglang.transfers import Transfers
from kvstore.testing import SimDisk

ROOT = Path(__file__).resolve().parents[2]
ONE_RANK = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "dp_rank": 0}
RANK_3 = {**ONE_RANK, "tp_rank": 3, "tp_size": 4}
BLOCK_BYTES = 8192


def door(ranks: dict[str, int] = ONE_RANK, **fields: Any) -> DoorConfig:
    return DoorConfig.from_sglang({"backend_name": "kvstore", "interface_v1": 1, "path": "/dev/x", **fields}, ranks)


@pytest.mark.parametrize(("version", "supported"), [("0.5.23", True), ("0.5.24", True), ("0.5.22", False),
                                                    ("0.6.0", False), (None, False)])  # fmt: skip
def test_an_unsupported_sglang_is_one_sentence_that_says_what_to_install(version: str | None, supported: bool) -> None:
    complaint = version_complaint(version)
    assert (complaint is None) == supported
    if complaint is not None:
        assert complaint.endswith("pip install sglang==0.5.23")
        assert "\n" not in complaint


def test_the_class_is_named_without_sglang_and_anything_else_is_not() -> None:
    module = importlib.import_module("kvstore.sglang")
    assert module.__all__ == ["KVStoreHiCache"]
    with pytest.raises(AttributeError, match="Other"):
        _ = module.Other


def test_one_rank_owns_its_device_and_several_share_it() -> None:
    assert door().mode == "owner"
    assert door(RANK_3).mode == "shared"
    assert door(RANK_3).open_options()["mode"] == "shared"


def test_a_rank_may_have_a_device_of_its_own() -> None:
    made = door(RANK_3, path=["/dev/a{tp_rank}", "/dev/b{tp_rank}"])
    assert (made.mode, made.path) == ("owner", ("/dev/a3", "/dev/b3"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "owner"}, "4 x 1 ranks have one path"),
        ({"path": "/dev/{rank}"}, "placeholders {tp_rank}"),
        ({"load_timeout_s": -1}, "load_timeout_s must be a number of seconds"),
        ({"identity": {"dtype": "bfloat16"}}, "identity.dtype is set by kvstore itself"),
        ({"device": "/dev/x"}, "device: no such setting"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        door(RANK_3, **fields)


def test_what_sglang_reads_itself_is_no_setting_of_ours() -> None:
    assert door(prefetch_threshold=1, prefetch_timeout_base=1, hicache_storage_pass_prefix_keys=True).path == (
        "/dev/x",
    )


def test_two_texts_never_become_one_key() -> None:
    digest = "ab" * 32
    texts = [digest, digest.upper(), bytes.fromhex(digest).decode("latin-1"), "\0" + digest, digest[:-2], ""]
    assert len({key_bytes(text) for text in texts}) == len(texts)
    assert len(key_bytes(digest)) == 33, "so that the store keeps it as it is"


def test_pages_follow_each_other_and_the_prefix() -> None:
    keys = [key_bytes(text) for text in ("c", "d")]
    assert places_of(keys, ["a", "b"]) == ([key_bytes("b"), keys[0]], [2, 3])
    assert places_of(keys, None) == ([None, keys[0]], [0, 1])


def test_samples_that_nobody_takes_are_bounded() -> None:
    counters = Counters()
    for _ in range(5000):
        counters.loaded(1, 0, 1, 0.0)
    assert len(counters.take_samples().load_pages) <= 1024
    assert counters.numbers()["pages_loaded"] == 5000


# ---- documents ----


def pasted() -> list[dict[str, Any]]:
    texts = [(ROOT / name).read_text() for name in ("README.md", "docs/sglang.md")]
    return [json.loads(match) for text in texts for match in re.findall(r"-extra-config '(\{.*?\})'", text, re.DOTALL)]


def test_what_the_documents_say_to_paste_is_accepted() -> None:
    assert len(pasted()) == 2
    for extra_config in pasted():
        made = DoorConfig.from_sglang(extra_config, ONE_RANK)
        assert made.identity == {"revision": "main"}
        assert (extra_config["module_path"], extra_config["class_name"]) == ("kvstore.sglang", "KVStoreHiCache")
        assert extra_config["interface_v1"] == 1


def test_the_document_lists_every_setting_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", (ROOT / "docs/sglang.md").read_text(), re.MULTILINE)
    fields = {field.name: field.default for field in dataclasses.fields(DoorConfig)}
    assert {name for name, _ in rows} == set(fields)
    for name, default in rows:
        given = fields[name]
        if isinstance(given, bool):
            assert default == str(given).lower(), name
        elif isinstance(given, (int, float)):
            assert default == f"{given:g}", name


def test_the_extra_names_the_release_that_is_tested() -> None:
    wanted = re.search(r'^sglang = \["sglang==(.+)"\]', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert wanted is not None
    assert tuple(map(int, wanted[1].split("."))) == TESTED_VERSION


# ---- a device that hangs ----


def transfers(**options: Any) -> Transfers:
    limits = {"load_timeout_s": 0.2, "store_timeout_s": 0.2, "staged_loads": False, "durable": False}
    return Transfers(**{**limits, **options})


def in_thread(call: Callable[[], list[bool]]) -> tuple[threading.Thread, list[list[bool]]]:
    answers: list[list[bool]] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    return thread, answers


def store_one(space: kvstore.Space, page: Any) -> None:
    assert transfers(store_timeout_s=30).store(space, [b"key"], [page], [None], [0]) == [True]


def hang(disk: SimDisk, space: kvstore.Space) -> None:
    """Leave reads of the block unanswered from now on."""
    space.pool.flush()
    block = space.describe([b"key"])[0]
    assert block is not None
    disk.fault(
        "stuck", op="read", first_byte=block.offset_bytes, last_byte=block.offset_bytes + block.nbytes - 1, times=1000
    )


def heal(disk: SimDisk) -> None:
    disk.clear_faults()
    disk.release_stuck()


def test_a_late_load_returns_when_the_device_has_let_go_of_its_pages(
    disk: SimDisk, sim_pool: kvstore.Pool, sim_space: kvstore.Space
) -> None:
    page = sim_pool.alloc(BLOCK_BYTES)
    store_one(sim_space, page)
    hang(disk, sim_space)
    moving = transfers()
    thread, answers = in_thread(lambda: moving.load(sim_space, [b"key"], [page], BLOCK_BYTES))
    thread.join(timeout=1.0)
    assert thread.is_alive(), "the device may still write into the page"
    heal(disk)
    thread.join(timeout=30)
    assert len(answers) == 1
    assert moving.loads_late == 1


def test_after_a_late_load_the_next_ones_end_in_time_and_touch_nothing_later(
    disk: SimDisk, sim_pool: kvstore.Pool, sim_space: kvstore.Space
) -> None:
    page = sim_pool.alloc(BLOCK_BYTES)
    memoryview(page)[:] = b"x" * BLOCK_BYTES
    store_one(sim_space, page)
    moving = transfers()
    moving._was_late = True
    hang(disk, sim_space)
    memoryview(page)[:] = bytes(BLOCK_BYTES)
    assert moving.load(sim_space, [b"key"], [page], BLOCK_BYTES) == [False]
    assert disk.stuck_count > 0, "it ended before the device did"
    heal(disk)
    assert bytes(page) == bytes(BLOCK_BYTES)
    assert moving.load(sim_space, [b"key"], [page], BLOCK_BYTES) == [True]
    assert bytes(page) == b"x" * BLOCK_BYTES
    assert not moving._was_late, "and the way without a copy is taken again"


def test_staged_loads_end_in_time_from_the_first_on(
    disk: SimDisk, sim_pool: kvstore.Pool, sim_space: kvstore.Space
) -> None:
    page = sim_pool.alloc(BLOCK_BYTES)
    store_one(sim_space, page)
    hang(disk, sim_space)
    assert transfers(staged_loads=True).load(sim_space, [b"key"], [page], BLOCK_BYTES) == [False]
    assert disk.stuck_count > 0


def test_a_late_store_holds_its_pages_and_its_block_is_never_there_with_other_bytes(
    disk: SimDisk, sim_pool: kvstore.Pool, sim_space: kvstore.Space
) -> None:
    page, out = sim_pool.alloc(BLOCK_BYTES), bytearray(BLOCK_BYTES)
    memoryview(page)[:] = b"x" * BLOCK_BYTES
    store_one(sim_space, page)  # opens the region, so that what hangs is payload
    payload = disk_payload_start(sim_pool)
    disk.fault("stuck", op="write", first_byte=payload, times=1000)
    moving = transfers()
    thread, answers = in_thread(lambda: moving.store(sim_space, [b"late"], [page], [None], [0]))
    thread.join(timeout=1.0)
    assert thread.is_alive(), "the device may still read the page"
    heal(disk)
    thread.join(timeout=30)
    assert len(answers) == 1
    assert moving.stores_late == 1
    memoryview(page)[:] = b"y" * BLOCK_BYTES  # SGLang gives the page to somebody else
    if sim_space.get(b"late", out) is not None:
        assert bytes(out) == b"x" * BLOCK_BYTES


def disk_payload_start(pool: kvstore.Pool) -> int:
    return int(pool.superblocks()[0]["geometry"]["data_offset"])
