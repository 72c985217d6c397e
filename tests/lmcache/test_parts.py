# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: the parts of the LMCache doors that need no pool: keys, settings, chains, layouts, pages, versions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lmcache.utils import CacheEngineKey, LayerCacheEngineKey
from lmcache.v1.distributed.api import ObjectKey
from lmcache_engine import CHUNK, metadata

from kvstore.errors import ConfigError
from kvstore.lmcache import compat
from kvstore.lmcache.chain import ChainTable, Position
from kvstore.lmcache.config import DoorConfig
from kvstore.lmcache.keys import (
    engine_key,
    engine_key_bytes,
    engine_salt,
    l2_key_bytes,
    l2_object_key,
)
from kvstore.lmcache.layout import Layout, layouts_of_engine, pack_meta, unpack_meta
from kvstore.lmcache.listing import Pager

SALT = st.text(st.characters(blacklist_characters="@/\\\0", blacklist_categories=["Cs"]), max_size=30)
L2_IDENTITY = {"engine": "lmcache", "door": "l2", "model": "m"}

# ---- keys ----


@given(st.binary(min_size=1, max_size=42), st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1), SALT)
def test_object_keys_survive_the_way_there_and_back(chunk_hash, kv_rank, group, salt):
    key = ObjectKey(chunk_hash, "m", kv_rank, group, salt)
    assert l2_object_key(L2_IDENTITY, salt.encode(), l2_key_bytes(key)) == key


@pytest.mark.parametrize(
    "key",
    [ObjectKey(b"", "m", 0), ObjectKey(b"x" * 43, "m", 0), ObjectKey(b"x", "m", 2**32), ObjectKey(b"x", "m", 0, 2**16)],
)
def test_an_object_key_the_store_cannot_list_back_is_refused(key):
    with pytest.raises(ValueError, match="must"):
        l2_key_bytes(key)


def test_keys_of_the_other_door_are_not_decoded():
    with pytest.raises(ValueError, match="multiprocess"):
        l2_object_key({**L2_IDENTITY, "door": "connector"}, b"", b"x" * 38)
    with pytest.raises(ValueError, match="in-process"):
        engine_key(L2_IDENTITY, b"", b"x" * 38)


HASH = st.one_of(st.integers(-(2**63), 2**63), st.integers(0, 2**256), st.binary(min_size=1, max_size=44))
TAGS = st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=3)


@settings(max_examples=200)
@given(HASH, TAGS, st.sampled_from([torch.bfloat16, torch.float16, torch.uint8]), st.none() | st.integers(0, 999))
def test_engine_keys_survive_the_way_there_and_back(chunk_hash, tags, dtype, layer):
    configs = {f"lmcache.tag.{name}": value for name, value in tags.items()} or None
    fields = ("m", 4, 2, chunk_hash, dtype, configs)
    key = CacheEngineKey(*fields) if layer is None else LayerCacheEngineKey(*fields, layer)
    identity = {
        "engine": "lmcache",
        "door": "connector",
        "model": "m",
        "world_size": 4,
        "worker_id": 2,
        "kv_dtype": key._dtype_str,
    }
    assert engine_key(identity, engine_salt(key), engine_key_bytes(key)) == key


@given(st.lists(HASH, min_size=2, max_size=2, unique_by=lambda h: (type(h), h)))
def test_different_hashes_have_different_key_bytes(hashes):
    first, second = (engine_key_bytes(CacheEngineKey("m", 1, 0, h, torch.bfloat16)) for h in hashes)
    assert first != second


# ---- settings ----


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "adapter_params.path is missing"),
        ({"path": ""}, "adapter_params.path must be a path"),
        ({"path": []}, "adapter_params.path must be a path"),
        ({"path": 5}, "adapter_params.path must be a path"),
        ({"path": "p", "pth": 1}, "adapter_params.pth: no such setting; known are path"),
        ({"path": "p", "verify": "no"}, "adapter_params.verify must be one of always, first_read, off"),
        ({"path": "p", "device_kind": 3}, "adapter_params.device_kind must be one of"),
        ({"path": "p", "durable": "yes"}, "adapter_params.durable must be true or false"),
        ({"path": "p", "load_timeout_s": -1}, "adapter_params.load_timeout_s must be a number of seconds, at least 0"),
        ({"path": "p", "load_timeout_s": "soon"}, "adapter_params.load_timeout_s"),
        ({"path": "p", "wait_s": float("nan")}, "adapter_params.wait_s"),
        ({"path": "p", "window_bytes": 1.5}, "adapter_params.window_bytes must be a whole number of bytes"),
        ({"path": "p", "window_bytes": True}, "adapter_params.window_bytes"),
        ({"path": "p", "chain_entries": 0}, "adapter_params.chain_entries"),
        ({"path": "p", "identity": "x"}, "adapter_params.identity must be a mapping"),
        ({"path": "p", "identity": {"model": "x"}}, "adapter_params.identity.model is set by kvstore"),
        ({"path": "p", "identity": {"a": 1.5}}, "adapter_params.identity.a must be a string"),
        ({"path": "p", "identity": {"": 1}}, "adapter_params.identity: names"),
        ([], "adapter_params must be a mapping"),
    ],
)
def test_a_bad_setting_is_named_with_what_is_allowed(fields, message):
    with pytest.raises(ConfigError) as raised:
        DoorConfig.from_mapping(fields, "adapter_params")
    assert message in str(raised.value)


def test_a_shared_pool_is_opened_as_one():
    fields = {"path": "pool.img", "mode": "shared", "engine": "etcd://one:2379,two:2379", "lease_s": "5"}
    options = DoorConfig.from_mapping(fields, "adapter_params").open_options()
    assert options == {"wait_s": 10.0, "mode": "shared", "engine": "etcd://one:2379,two:2379", "lease_s": 5.0}
    assert DoorConfig.from_mapping({"path": "pool.img", "mode": "shared"}, "p").open_options()["mode"] == "shared"


def test_settings_from_a_url_may_be_text():
    config = DoorConfig.from_mapping(
        {"path": ["a", "b"], "durable": "true", "load_timeout_s": "2.5", "window_bytes": "1048576"}, "remote_url"
    )
    assert (config.path, config.durable, config.load_timeout_s, config.window_bytes) == (("a", "b"), True, 2.5, 1 << 20)
    assert config.open_options() == {"wait_s": 10.0, "window_bytes": 1 << 20}


# ---- chains ----


def test_positions_follow_the_order_of_a_lookup():
    table = ChainTable(100)
    table.learn([b"a", b"b", b"c"])
    assert [table.position(d) for d in (b"a", b"b", b"c", b"d")] == [
        Position(None, 0),
        Position(b"a", 1),
        Position(b"b", 2),
        Position(None, 0),
    ]


def test_a_lookup_of_the_rest_goes_on_from_what_is_known():
    table = ChainTable(100)
    table.learn([1, 2, 3])
    table.learn([3, 4])
    table.learn([2, 3, 4, 5])
    assert table.position(5) == Position(4, 4)
    table.learn([])


@given(st.lists(st.lists(st.integers(0, 50), max_size=10), max_size=20), st.integers(1, 10))
def test_the_table_stays_within_its_bound(lookups, bound):
    table = ChainTable(bound)
    for digests in lookups:
        table.learn(digests)
        assert len(table) <= bound


def test_the_least_recently_taught_is_forgotten_first():
    table = ChainTable(3)
    table.learn([1, 2])
    table.learn([7])
    table.learn([1, 2])
    table.learn([8])
    assert table.position(2) == Position(1, 1)
    assert len(table) == 3


# ---- layouts ----


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("tokens", [1, 5, CHUNK])
def test_a_layout_gives_the_engines_own_shapes_for_any_number_of_tokens(groups, tokens):
    meta = metadata(groups=groups)
    (layout,) = layouts_of_engine(meta, layerwise=False, blending=False, binary=False)
    assert layout.shapes(tokens) == meta.get_shapes(tokens)
    assert layout.dtypes() == meta.get_dtypes()
    assert Layout.parse(str(layout)) == layout
    assert layout.tokens_in(tokens * layout.token_bytes) == tokens
    assert layout.tokens_in(tokens * layout.token_bytes - 1) is None
    assert layout.tokens_in(0) is layout.tokens_in(-1) is None


@pytest.mark.parametrize(
    ("options", "meta", "text"),
    [
        ({"layerwise": True}, metadata(), "KV_T2D bfloat16[T,2,128]"),
        ({"layerwise": True, "blending": True}, metadata(), "KV_2TD bfloat16[2,T,128]"),
        ({"layerwise": True}, metadata(mla=True), "KV_MLA_FMT bfloat16[T,576]"),
        ({}, metadata(mla=True), "KV_MLA_FMT bfloat16[1,4,T,576]"),
        ({"binary": True}, metadata(), "BINARY_BUFFER uint8[T,0,0,0]"),
    ],
)
def test_layouts_name_their_format(options, meta, text):
    layouts = layouts_of_engine(meta, **{"layerwise": False, "blending": False, "binary": False, **options})
    assert str(layouts[-1]) == text


def test_bad_layout_text_and_meta_are_refused():
    for text in ("", "KV_2LTD bfloat16", "KV_2LTD bfloat16[x]"):
        with pytest.raises(ValueError):
            Layout.parse(text)
    assert unpack_meta(pack_meta(1, 255)) == (1, 255)
    for meta in (b"", b"\2" + pack_meta(0, 1)[1:], pack_meta(0, 1) + b"\0"):
        with pytest.raises(ValueError):
            unpack_meta(meta)


# ---- pages ----


@given(st.integers(0, 30), st.integers(1, 10), st.integers(1, 4))
def test_pages_together_are_the_whole_listing(count, size, every):
    pager = Pager(lambda: iter(range(count)))
    found, cursor = [], None
    while True:
        page = pager.page(size, cursor, lambda n: n % every == 0)
        found += page.entries
        cursor = page.cursor
        if cursor is None:
            break
        assert len(page.entries) == size
    assert found == list(range(0, count, every))


# ---- versions ----


@pytest.mark.parametrize("version", ["0.5.6", "0.5.6.post1", "0.5.7", "0.5.12"])
def test_supported_versions(version):
    assert compat.version_complaint(version) is None


@pytest.mark.parametrize("version", ["0.4.9", "0.5.5", "0.6.0", "1.0", "main"])
def test_an_unsupported_version_is_one_clear_sentence(version):
    complaint = compat.version_complaint(version)
    assert version in complaint
    assert "pip install lmcache==0.5.6" in complaint
    assert "\n" not in complaint


def test_no_lmcache_is_one_clear_sentence(monkeypatch):
    monkeypatch.setattr(compat, "installed_version", lambda: None)
    with pytest.raises(ImportError, match="needs LMCache, which is not installed here: pip install lmcache==0"):
        compat.require_supported_version()
