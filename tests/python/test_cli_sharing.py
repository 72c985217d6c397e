# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""`kvstore peers` and `kvstore unshare`, and the mode of a pool."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvstore
from kvstore import cluster
from kvstore.cli import main
from kvstore.cluster.processes import find_process
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
    assert re.search("stays? readable", capsys.readouterr().out)


def test_peers_of_a_pool_that_is_not_shared_says_so_and_makes_no_file(
    image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(Path(image).parent.iterdir())
    assert main(["peers", image]) == 0
    said = capsys.readouterr().out
    assert "owner mode" in said
    assert "rebuild" not in said
    report = _report(capsys, "peers", image)
    assert (report["shared_mode"], report["openers"]) == (False, [])
    assert main(["peers", image, "--gone", "1"]) == 2
    assert "owner mode" in capsys.readouterr().err
    assert sorted(Path(image).parent.iterdir()) == before


def test_peers_makes_no_file_of_an_engine_that_is_not_there(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kvstore.open(image, mode="shared").close()
    for file in tmp_path.glob("pool.img.sqlite*"):
        file.unlink()
    assert main(["peers", image]) == 0
    assert f"sqlite:{image}.sqlite, which holds nothing of this pool" in capsys.readouterr().out
    assert not _report(capsys, "peers", image)["initialised"]
    assert main(["peers", image, "--gone", "1"]) == 2
    assert f"there is no engine sqlite:{image}.sqlite" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["pool.img"]


def _this_process() -> list[str]:
    """Boot, process id namespace, process id and start time, as openers write them."""
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return [boot, str(Path("/proc/self/ns/pid").stat().st_ino), str(os.getpid()), start]


def test_peers_tells_a_process_of_this_host_that_is_gone_from_one_that_nobody_can_see(
    image: str, shared: kvstore.Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    pool_uuid = shared.superblocks()[0]["pool_uuid"]
    boot, namespace, process_id, start = _this_process()
    heir = [boot, namespace, process_id, str(int(start) - 1)]
    elsewhere = [boot, str(int(namespace) + 1), process_id, start]
    none = "00000000-0000-0000-0000-000000000000"
    with contextlib.closing(cluster.open_engine(f"sqlite:{image}.sqlite")) as engine:
        for epoch, words in ((1001, heir), (1002, elsewhere)):
            record = " ".join([none, *words, "1700000000", "-"])
            engine.txn([], [cluster.Put(f"{pool_prefix(pool_uuid)}opener/{epoch}", record.encode())])
            region = f"{pool_prefix(pool_uuid)}r/0/{epoch - 1001}"
            engine.txn([], [cluster.Put(region, f"owned 9 {epoch} 1".encode())])
    assert main(["peers", image]) == 0
    lines = {line.split()[0].replace(",", ""): line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "its process is gone: 1 region readable, reused in their turn by openers of this host" in lines["1001"]
    assert "not reused until it is known to be gone (--gone 1002)" in lines["1002"]
    assert "readable; reused when its lease has ended" in lines[str(shared.stats()["epoch"])]


def test_a_process_is_gone_only_where_its_id_means_the_same() -> None:
    boot, namespace, process_id, start = (int(word) if word.isdigit() else word for word in _this_process())
    assert find_process(boot, namespace, process_id, start) == "here"
    assert find_process(boot, namespace, process_id, start + 1) == "gone"
    for beyond in (2**22 + 1, 2**40, 2**70):
        assert find_process(boot, namespace, beyond, start) == "gone"
    assert find_process("another", namespace, 2**22 + 1, start) == "unseen"
    assert find_process(boot, namespace + 1, 2**22 + 1, start) == "unseen"
    assert find_process(boot, namespace, 0, 0) == "unseen"


def test_info_of_a_shared_pool_names_no_owner_and_where_to_look(
    image: str, shared: kvstore.Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", image]) == 0
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines() if "  " in line)
    assert facts["owner"] == "none: it is shared, by whom says `kvstore peers`"
    assert facts["last owner"].startswith("epoch 1, ")


def test_what_is_deleted_in_shared_mode_is_a_hit_for_who_only_reads_the_devices(
    image: str, shared: kvstore.Pool
) -> None:
    space = shared.space(engine="test", model="none")
    assert space.delete([b"key"])[0].status == "deleted"
    shared.flush()
    assert space.get(b"key", bytearray(5000)) is None
    with kvstore.open(image, read_only=True) as looking:
        assert looking.space(engine="test", model="none").get(b"key", bytearray(5000)) == 5000


def test_check_of_a_shared_pool_says_what_must_come_before_repair(
    image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with kvstore.open(image, mode="shared", lease_s=2) as pool:
        space = pool.space(engine="test", model="none")
        space.put(b"key", b"value" * 1000, durable=True)
        place = space.describe([b"key"])[0].offset_bytes
    with open(image, "r+b") as file:
        file.seek(place)
        file.write(b"V")
    assert main(["check", image]) == 1
    assert "--repair when the openers have closed and `kvstore unshare`" in capsys.readouterr().out
    kvstore.unshare(image)
    assert main(["check", image]) == 1
    assert capsys.readouterr().out.endswith("Drop them with --repair\n")


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


def test_what_was_deleted_stays_so_when_the_pool_has_one_owner_again(image: str, shared: kvstore.Pool) -> None:
    space = shared.space(engine="test", model="none")
    assert space.put(b"kept", b"value" * 1000, durable=True)
    assert space.delete([b"key"])[0]
    shared.flush()
    shared.close()
    kvstore.unshare(image)
    with kvstore.open(image) as pool:
        space = pool.space(engine="test", model="none")
        assert space.contains(b"kept")
        assert not space.contains(b"key")


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
