# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What is read out of result files: which rows there are, which of them are one, which are compared.

Method: files made up by `bench_results`; the last test reads what `kvstore bench` and fio really write.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import bench_results as made
import pytest

from kvstore.bench.results import load_results
from kvstore.bench.rows import Results, Row, percentile
from kvstore.errors import ConfigError

MIB = 1 << 20


def load(folder: Path, *documents: dict[str, Any]) -> Results:
    return load_results([made.write(folder / f"{number}.json", one) for number, one in enumerate(documents)])


def a_job(engine: str = "kvstore", speed: float = 0.5, rw: str = "get", **own: Any) -> dict[str, Any]:
    return made.job(engine, rw, MIB, 16, speed, **own)


def test_a_row_has_what_its_job_was_and_did(tmp_path: Path) -> None:
    (row,) = load(tmp_path, made.document([a_job(write_amplification=1.01)])).rows
    cell = row.cell
    assert (cell.place, cell.rw, cell.block_bytes, cell.iodepth, cell.numjobs) == ("nvme1n1", "get", MIB, 16, 1)
    assert (row.engine, row.engine_name, row.ours, row.fill) == ("kvstore", "kvstore", True, "75 %")
    assert row.bytes_per_s == pytest.approx(3.5e9, rel=0.01)
    assert row.cpu_s_per_gb == pytest.approx(0.6 * 5 / (5 * 3.5), rel=0.01)  # 60 % of 5 s, at 3.5 GB/s
    assert (len(row.series), row.interval_s, row.write_amplification) == (10, 0.5, 1.01)


def test_a_percentile_is_the_smallest_latency_that_so_many_do_not_exceed() -> None:
    bins = {10: 50, 20: 49, 1000: 1}
    assert [percentile(bins, p) for p in (0, 50, 50.1, 99, 99.5, 100)] == [10, 10, 20, 20, 1000, 1000]


def test_repetitions_are_one_row_with_medians_and_all_latencies(tmp_path: Path) -> None:
    files = [made.document([a_job(speed=speed)]) for speed in (0.5, 0.1, 0.6)]
    (row,) = load(tmp_path, *files).rows
    assert row.repetitions == 3
    assert row.bytes_per_s == pytest.approx(3.5e9, rel=0.01)
    assert row.bytes_per_s_range == (pytest.approx(0.7e9, rel=0.01), pytest.approx(4.2e9, rel=0.01))
    assert sum(row.latency_ns.values()) == 3000
    assert list(row.latency_ns) == sorted(row.latency_ns)


def test_load_and_fill_do_not_make_another_machine_or_place(tmp_path: Path) -> None:
    other = made.document([a_job()], {"load": "9 9 9"})
    other["kvbench"]["machine"]["devices"] = [made.DEVICE | {"in_use": "99 %"}]
    results = load(tmp_path, made.document([a_job()]), other)
    assert (len(results.setups), len(results.rows)) == (1, 1)


def test_another_revision_is_another_setup_and_not_compared(tmp_path: Path) -> None:
    fio, ours = made.document([a_job("fio", 1.0)], {"revision": "old"}), made.document([a_job()])
    results = load(tmp_path, fio, ours)
    assert len(results.setups) == 2
    assert [results.ratio(row) for row in results.rows] == [1.0, None]


def test_another_scheduler_is_another_place_and_named(tmp_path: Path) -> None:
    other = made.document([a_job()])
    other["kvbench"]["machine"]["devices"] = [made.DEVICE | {"scheduler": "mq-deadline"}]
    results = load(tmp_path, made.document([a_job()]), other)
    assert [row.cell.place for row in results.rows] == [
        "nvme1n1 (scheduler mq-deadline)", "nvme1n1 (scheduler none)",
    ]  # fmt: skip


IN_MEMORY = {"place": "tmpfs", "file_system": "tmpfs"}


def on_devices(*jobs: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """A result whose jobs, by engine, each lie on a device of their own."""
    devices = [device | {"path": f"/dev/{number}"} for number, (_, device) in enumerate(jobs)]
    document = made.document([a_job(engine) for engine, _ in jobs])
    for number, job in enumerate(document["jobs"]):
        job["job options"]["filename"] = f"/dev/{number}"
    document["kvbench"]["machine"]["devices"] = devices
    return document


def test_a_device_and_a_file_system_on_it_are_one_place(tmp_path: Path) -> None:
    on_xfs = made.DEVICE | {"place": "xfs on nvme1n1", "file_system": "xfs"}
    first, second = load(tmp_path, on_devices(("kvstore", made.DEVICE), ("rocksdb", on_xfs))).rows
    assert first.cell == second.cell
    assert (first.on, second.on, second.engine) == ("nvme1n1", "xfs on nvme1n1", "rocksdb")


def test_whatever_lies_over_memory_is_one_place(tmp_path: Path) -> None:
    loop = {"place": "loop over tmpfs", "disk": "loop3", "scheduler": "none", "under": [IN_MEMORY]}
    folder = {"place": "ext4 on loop over tmpfs", "disk": "loop4", "file_system": "ext4", "under": [IN_MEMORY]}
    rows = load(tmp_path, on_devices(("kvstore", loop), ("rocksdb", folder), ("preadv", IN_MEMORY))).rows
    assert {row.cell.place for row in rows} == {"memory"}


def test_one_engine_on_a_device_and_on_a_file_system_is_two_lines_each_with_its_fio(tmp_path: Path) -> None:
    on_xfs = made.DEVICE | {"place": "xfs on nvme1n1", "file_system": "xfs"}
    document = on_devices(("kvstore", made.DEVICE), ("kvstore", on_xfs), ("fio", made.DEVICE), ("fio", on_xfs))
    results = load(tmp_path, document)
    assert [row.engine for row in results.rows] == [
        "kvstore on nvme1n1", "kvstore on xfs on nvme1n1", "fio on nvme1n1", "fio on xfs on nvme1n1",
    ]  # fmt: skip
    bases = [results.baseline(row) for row in results.rows[:2]]
    assert [base and base.on for base in bases] == ["nvme1n1", "xfs on nvme1n1"]


def test_what_could_not_be_measured_stands_where_the_others_of_its_job_do(tmp_path: Path) -> None:
    absent = a_job("absent", why_not="it is missing")
    absent["job options"]["filename"] = "ram"
    absent["read"] = made.side()
    first, second = load(tmp_path, made.document([a_job(), absent])).rows
    assert first.cell == second.cell


@pytest.mark.parametrize(
    ("told", "variant"),
    [
        ({"size": 8 << 30}, "size=8GiB"),
        ({"verify": "full"}, "verify=full"),
        ({"options": {"capacity": "2048m"}}, "capacity=2GiB"),
    ],
)
def test_other_working_sets_and_checks_are_no_repetitions_and_not_compared(
    tmp_path: Path, told: dict[str, Any], variant: str
) -> None:
    size = told.pop("size", 1 << 30)
    other = a_job(**told)
    other["job options"]["size"] = str(size)
    results = load(tmp_path, made.document([a_job("fio", 1.0), a_job()]), made.document([other]))
    assert [(row.engine, row.cell.variant, row.repetitions) for row in results.rows] == [
        ("fio", "", 1), ("kvstore", "", 1), ("kvstore", variant, 1),
    ]  # fmt: skip
    assert results.ratio(results.rows[2]) is None


@pytest.mark.parametrize(
    ("size", "variant"), [("1024M", ""), ("4g", "size=4GiB"), ("50%", "size=unknown"), ("", "size=unknown")]
)
def test_the_size_of_plain_fio_is_its_working_set(tmp_path: Path, size: str, variant: str) -> None:
    (row,) = load(tmp_path, made.fio_document(size=size)).rows
    assert row.cell.variant == variant


def test_an_engine_with_options_of_its_own_is_another_line(tmp_path: Path) -> None:
    spoilt = a_job(options={"kvstore.verify_reads": "off", "bs": "1m"})
    assert [row.engine for row in load(tmp_path, made.document([a_job(), spoilt])).rows] == [
        "kvstore", "kvstore verify_reads=off",
    ]  # fmt: skip


def test_gets_by_another_distribution_are_not_compared(tmp_path: Path) -> None:
    zipf = a_job(options={"random_distribution": "zipf:1.2"})
    results = load(tmp_path, made.document([zipf, a_job("fio", 1.0)]))
    ours = next(row for row in results.rows if row.ours)
    assert (ours.cell.variant, results.ratio(ours)) == ("random_distribution=zipf:1.2", None)


def test_a_mix_is_two_rows_that_share_the_processor_time(tmp_path: Path) -> None:
    mix = a_job(rw="getput") | {"read": made.side(1e9, MIB, {5: 1}), "write": made.side(1e9, MIB, {5: 1})}
    get, put = load(tmp_path, made.document([mix])).rows
    assert (get.cell.rw, put.cell.rw) == ("get of getput", "put of getput")
    assert get.cpu_s_per_gb == put.cpu_s_per_gb == pytest.approx(0.6 * 5 / 10, rel=0.01)


@pytest.mark.parametrize("reason", [{"why_not": "fio is missing"}, {"failed": "OSError: EIO"}])
def test_what_could_not_be_measured_is_a_row_that_says_why(tmp_path: Path, reason: dict[str, str]) -> None:
    (row,) = load(tmp_path, made.document([a_job() | {"read": made.side()} | {
        "kvbench": a_job()["kvbench"] | reason}])).rows  # fmt: skip
    assert row.failure == next(iter(reason.values()))
    assert row.bytes_per_s == 0


def test_rivals_are_neither_fio_nor_those_that_brought_wrong_blocks(tmp_path: Path) -> None:
    jobs = [a_job(), a_job("fio", 1), a_job("preadv"), a_job("liar", 3, wrong=1), a_job("absent", failed="x")]
    results = load(tmp_path, made.document(jobs))
    assert [rival.engine for rival in results.rivals(results.rows[0])] == ["preadv"]


def test_a_plain_fio_file_is_the_baseline_where_it_does_what_the_engine_fio_does(tmp_path: Path) -> None:
    (row,) = load(tmp_path, made.fio_document()).rows
    assert (row.engine, row.cell.rw, row.cell.block_bytes, row.cell.place) == ("fio", "get", MIB, "/dev/nvme1n1")
    assert row.latency_us(99) == 2000


def test_a_plain_fio_file_is_of_the_machine_and_device_that_the_other_files_tell_of(tmp_path: Path) -> None:
    results = load(tmp_path, made.fio_document(), made.document([a_job(speed=1.0)]))
    ours, fio = results.rows
    assert len(results.setups) == 1
    assert (ours.cell, results.ratio(ours)) == (fio.cell, pytest.approx(7 / 2, rel=0.01))


def test_a_plain_fio_file_is_on_no_machine_when_there_are_two(tmp_path: Path) -> None:
    documents = [made.document([a_job()], {"kernel": kernel}) for kernel in ("6.1", "6.9")]
    results = load(tmp_path, made.fio_document(), *documents)
    assert [results.ratio(row) for row in results.rows if row.ours] == [None, None]


def test_a_file_of_fio_is_at_the_place_of_files_in_the_same_folder(tmp_path: Path) -> None:
    ours = a_job()
    ours["job options"]["filename"] = "/srv/a.img"
    document = made.document([ours])
    document["kvbench"]["machine"]["devices"] = [
        {"path": "/srv/a.img", "place": "xfs on nvme0n1", "file_system": "xfs"}
    ]
    results = load(
        tmp_path, document, made.fio_document(filename="/srv/b.img"), made.fio_document(filename="/var/b.img")
    )
    assert [row.cell.place for row in results.rows] == ["files in /var", "xfs on nvme0n1", "xfs on nvme0n1"]


@pytest.mark.parametrize(
    ("options", "engine"),
    [
        ({"rw": "read"}, "fio read"),
        ({"ioengine": "libaio"}, "fio libaio"),
        ({"direct": "0"}, "fio buffered"),
        ({"rw": "read", "ioengine": "psync"}, "fio psync read"),
    ],
)
def test_a_plain_fio_file_that_differs_says_so(tmp_path: Path, options: dict[str, str], engine: str) -> None:
    (row,) = load(tmp_path, made.fio_document(**options)).rows
    assert row.engine == engine


def test_threads_that_fio_lists_one_by_one_are_one_row(tmp_path: Path) -> None:
    document = made.fio_document(numjobs="3")
    document["jobs"] *= 3
    (row,) = load(tmp_path, document).rows
    assert row.bytes_per_s == pytest.approx(6e9)
    assert row.cpu_s_per_gb == pytest.approx(0.3 * 5 / 10, rel=0.01)
    assert sum(row.latency_ns.values()) == 300


def test_percentiles_without_bins_give_latencies_too(tmp_path: Path) -> None:
    document = made.fio_document()
    figures = {"N": 1000, "max": 9000, "percentile": {"50.000000": 1000, "99.000000": 4000}}
    document["jobs"][0]["read"]["clat_ns"] = figures
    (row,) = load(tmp_path, document).rows
    assert row.latency_ns == {1000: 500, 4000: 490, 9000: 10}


def test_notes_around_the_json_and_a_directory_instead_of_a_file_are_fios_habits(tmp_path: Path) -> None:
    document = made.fio_document(directory="/srv")
    del document["jobs"][0]["job options"]["filename"]
    path = made.write(tmp_path / "x.json", document)
    path.write_text(f"fio: note\n{path.read_text()}\nnormal output")
    (row,) = load_results([path]).rows
    assert row.cell.place == "files in /srv"


def test_a_result_may_be_compressed_and_a_broken_one_is_refused_by_name(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps(made.fio_document()).encode())
    path = tmp_path / "result.json.gz"
    path.write_bytes(packed)
    assert len(load_results([path]).rows) == 1
    for broken in (packed[:100], packed[:50] + b"no" + packed[52:], b"{}"):
        path.write_bytes(broken)
        with pytest.raises(ConfigError, match=r"result\.json\.gz"):
            load_results([path])


def test_several_sizes_in_one_job_of_fio_are_told_by_the_mean(tmp_path: Path) -> None:
    (row,) = load(tmp_path, made.fio_document(bssplit="64k/50:1m/50")).rows
    assert (row.cell.block_bytes, row.cell.variant) == (MIB, "bssplit=64k/50:1m/50")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello", "is no JSON"),
        ('{"rows": []}', 'has no "fio version"'),
        ('{"fio version": "x", "jobs": 3}', 'no "jobs"'),
        ('{"fio version": "x", "jobs": []}', "no job"),
        ('{"fio version": "x", "jobs": [{"jobname": "j"}]}', "job j: KeyError"),
        ('{"fio version": "x", "jobs": [7]}', "job \\?"),
        ('{"fio version": "x", "jobs": [], "kvbench": 7}', "no job"),
    ],
)
def test_a_file_that_is_no_result_gives_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"x\\.json.*{says}"):
        load_results([path])


def test_a_file_that_is_not_there_gives_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.json cannot be read"):
        load_results([tmp_path / "nowhere.json"])


def test_what_kvstore_bench_and_fio_really_write_is_read(tmp_path: Path) -> None:
    pytest.importorskip("hdrh", reason="hdrhistogram is missing: pip install 'nvme-kvstore[bench]'")
    from bench_support import bench

    if shutil.which("fio") is None:
        pytest.skip("fio is missing")
    ours = bench(tmp_path, "--name=a", "--rw=get", "--iodepth=4", "--engine=kvstore,preadv", "--io_size=2m")
    image = tmp_path / "plain.img"
    command = [
        "fio", "--name=b", f"--filename={image}", "--size=2m", "--rw=randread", "--bs=64k", "--iodepth=4",
        "--ioengine=psync", "--output-format=json+",
    ]  # fmt: skip
    fio = tmp_path / "fio.json"
    fio.write_text(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    results = load_results([made.write(tmp_path / "ours.json", ours), fio])

    def summary(row: Row) -> tuple[str, str, int, int]:
        return row.engine, row.cell.rw, row.cell.block_bytes, row.cell.iodepth

    assert [summary(row) for row in results.rows] == [
        ("kvstore", "get", 65536, 4), ("preadv", "get", 65536, 4), ("fio psync buffered", "get", 65536, 4),
    ]  # fmt: skip
    assert all(row.bytes_per_s > 0 and sum(row.latency_ns.values()) >= 32 for row in results.rows)
    assert results.rows[0].cell.place != "unknown"
    assert results.rows[0].cell == results.rows[1].cell
