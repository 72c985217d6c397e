# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""`kvstore peers` and `kvstore unshare`, and the mode of a pool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvstore
from kvstore import cluster
from kvstore.cli import main
from kvstore.cluster.records import pool_prefix, read_state


@pytest.fixture
def image(tmp_path: Path) -> str:
    path = str(tmp_path / "pool.img")
    kvstore.format(path, size="128MiB", region_bytes="1MiB", min_block_bytes="64KiB")
    return path


@pytest.fixture
def shared(image: str) -> Iterator[kvstore.Pool]:
    with kvstore.open(image, mode="shared", lease_s=2) as pool:
        space = pool.space(engine="test", model="none")
        assert space.put(b"key", b"value" * 1000, durable=True)
        yield pool


def _report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_peers_names_who_is_there_and_what_it_writes(
    image: str, shared: kvstore.Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    report = _report(capsys, "peers", image)
    (opener,) = report["openers"]
    assert opener["live"]
    assert opener["epoch"] == shared.stats()["epoch"]
    assert len(opener["owned"]) >= 1
    assert main(["peers", image]) == 0
    assert "stay readable" in capsys.readouterr().out


def test_the_modes_refuse_each_other(image: str) -> None:
    with kvstore.open(image) as pool, pytest.raises(kvstore.ConfigError, match="mode"):
        kvstore.open(image, mode="shared")
    assert pool.closed
    kvstore.open(image, mode="shared").close()
    with pytest.raises(kvstore.FencedError, match="shared mode"):
        kvstore.open(image)


def test_unshare_gives_the_pool_back_to_one_owner_with_its_blocks(
    image: str, shared: kvstore.Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["unshare", image]) != 0
    assert "lives" in capsys.readouterr().err
    shared.close()
    assert main(["unshare", image]) == 0
    with kvstore.open(image) as pool:
        space = pool.space(engine="test", model="none")
        assert space.get(b"key", bytearray(5000)) == 5000
        assert space.put(b"alone", b"x" * 5000, durable=True)
    with kvstore.open(image, mode="shared", lease_s=2) as pool:
        # What the engine held of the pool was of another time: it was set up anew.
        assert pool.stats()["engine_rebuilds"] == 1
        space = pool.space(engine="test", model="none")
        assert space.get(b"key", bytearray(5000)) == 5000
        assert space.get(b"alone", bytearray(5000)) == 5000
        assert space.put(b"together", b"x" * 5000, durable=True)


def test_unshare_does_not_take_an_engine_that_knows_nothing_of_the_pool_for_nobody_being_there(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kvstore.open(image, mode="shared").close()
    kvstore.unshare(image)  # what `sqlite:` holds of the pool is of another time from now on
    other = f"sqlite:{tmp_path}/other.sqlite"
    kvstore.open(image, mode="shared", engine=other).close()
    for engine in ("sqlite:", f"sqlite:{tmp_path}/none.sqlite"):
        assert main(["unshare", image, "--engine", engine]) != 0
        assert "holds nothing of this pool" in capsys.readouterr().err
        with pytest.raises(kvstore.FencedError, match="shared mode"):
            kvstore.open(image)
    assert main(["unshare", image, "--engine-is-lost"]) == 0
    kvstore.unshare(image)  # in owner mode there is nobody to ask about
    kvstore.open(image).close()


def test_an_operators_word_that_an_opener_is_gone_is_taken(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    kvstore.open(image, mode="shared").close()
    uuid = kvstore.open(image, read_only=True)
    pool_uuid = uuid.superblocks()[0]["pool_uuid"]
    uuid.close()
    engine = cluster.open_engine(f"sqlite:{image}.sqlite")
    stranger = f"{'00' * 4}-0000-0000-0000-{'00' * 6} {'00' * 4}-0000-0000-0000-{'00' * 6} 1 2 3 1700000000 -"
    engine.txn([], [cluster.Put(f"{pool_prefix(pool_uuid)}opener/7", stranger.encode())])
    assert main(["peers", image, "--gone", "8"]) != 0
    assert "8" in capsys.readouterr().err
    assert main(["peers", image, "--gone", "7"]) == 0
    assert read_state(engine, pool_uuid).openers[7].gone
    engine.close()


def test_an_engine_that_is_none_and_options_of_the_other_mode_are_refused_by_name(image: str) -> None:
    with pytest.raises(kvstore.ConfigError, match="engine"):
        kvstore.open(image, engine="sqlite:")
    with pytest.raises(kvstore.ConfigError, match="mode"):
        kvstore.open(image, mode="both")  # type: ignore[arg-type]
    with pytest.raises(kvstore.ConfigError, match="redis"):
        kvstore.open(image, mode="shared", engine="redis://somewhere")
    with pytest.raises(kvstore.ConfigError, match="verify"):
        kvstore.open(image, mode="shared", verify="off")
