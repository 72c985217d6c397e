# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The file of nvmf-setup: whatever is written in it becomes checked values, or one error that names the place.

Method: a right file, in which every value in turn is replaced by each of a dozen wrong kinds.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvstore.errors import ConfigError
from kvstore.nvmf.spec import Spec, read_spec

RIGHT: dict[str, Any] = {
    "subsystems": [
        {
            "nqn": "nqn.2026-11.com.example:pool",
            "serial": "pool0",
            "model": "kvstore",
            "namespaces": [
                {"nsid": 1, "device": "/dev/disk/by-id/nvme-a", "uuid": f"{1:032x}", "nguid": f"{2:032X}"},
            ],
            "hosts": ["decode1"],
            "ports": [1],
        }
    ],
    "ports": [{"id": 1, "transport": "rdma", "address": "fd00::1", "service": 4420}],
    "hosts": [
        {
            "name": "decode1",
            "nqn": "nqn.2026-11.com.example:decode1",
            "host_id": f"{3:032x}",
            "key_file": "/etc/kvstore/a",
            "controller_key_file": "/etc/kvstore/b",
        }
    ],
    "connection": {"io_queues": 4, "fast_io_fail_s": 5},
}
WRONG = [None, 7, -1, 1.5, True, "", "x", "a\nb", "/", [], [7], [None], {}, {"a": 1}, 10**40]


def read(folder: Path, document: Any) -> Spec:
    file = folder / "pool.yaml"
    file.write_text(yaml.safe_dump(document))
    return read_spec(file)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inside:
        yield from places(child, (*at, key))


def changed(at: tuple[Any, ...], value: Any) -> Any:
    document = copy.deepcopy(RIGHT)
    inner: Any = document
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return document


def test_a_right_file_is_read_as_it_is_meant(tmp_path: Path) -> None:
    spec = read(tmp_path, RIGHT)
    (subsystem,) = spec.subsystems
    assert (subsystem.namespaces[0].nguid, subsystem.namespaces[0].uuid) == (
        f"{2:032x}",
        f"{0:08}-0000-0000-0000-{1:012}",
    )
    assert (spec.ports[0].family, spec.ports[0].address) == ("ipv6", "fd00::1")
    assert (spec.connection.io_queues, spec.connection.queue_size) == (4, 128)
    assert spec.host("decode1").controller_key_file == "/etc/kvstore/b"


@pytest.mark.parametrize("at", list(places(RIGHT)), ids=lambda at: ".".join(map(str, at)))
def test_a_wrong_value_anywhere_is_an_error_that_names_the_file(tmp_path: Path, at: tuple[Any, ...]) -> None:
    told = []
    for wrong in WRONG:
        try:
            read(tmp_path, changed(at, wrong))
        except ConfigError as error:
            told.append(str(error))
    assert len(told) >= len(WRONG) // 2
    assert [text for text in told if "\n" in text or not text.startswith(f"{tmp_path}/pool.yaml: ")] == []


def test_digits_that_yaml_takes_for_a_number_want_quotes(tmp_path: Path) -> None:
    wrong = changed(("subsystems", 0, "namespaces", 0, "nguid"), int("1" * 32))
    with pytest.raises(ConfigError, match=r"namespaces\[0\]\.nguid: is 1+, and should be a text: put it in quotes"):
        read(tmp_path, wrong)


@pytest.mark.parametrize(
    "what", ["nqn.2026-11.com.example:a/b", "nqn.2026-11.com.example:a,b", "nqn.com:x", "nqn." + "a" * 300]
)
def test_an_nqn_that_configfs_or_the_kernels_line_cannot_have_is_refused(tmp_path: Path, what: str) -> None:
    with pytest.raises(ConfigError, match=r"hosts\[0\]\.nqn: is .*: write nqn\.2026"):
        read(tmp_path, changed(("hosts", 0, "nqn"), what))


@pytest.mark.parametrize(("what", "again"), [("hosts", ["decode1", "decode1"]), ("ports", [1, 1])])
def test_a_host_or_port_that_a_subsystem_names_twice_is_refused(tmp_path: Path, what: str, again: list[Any]) -> None:
    with pytest.raises(ConfigError, match=rf"subsystems\[0\]\.{what}\[1\]: {again[0]} is there twice: name it once"):
        read(tmp_path, changed(("subsystems", 0, what), again))


@pytest.mark.parametrize(
    "at",
    [("subsystems", 0, "namespaces", 0, "uuid"), ("subsystems", 0, "namespaces", 0, "nguid"), ("hosts", 0, "host_id")],
)
def test_an_identifier_of_zeros_is_none(tmp_path: Path, at: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match="is all zeros, which means none: write one that `uuidgen` prints"):
        read(tmp_path, changed(at, "0" * 32))


@pytest.mark.parametrize("name", ["a b", "$HOME", "100%", "-x", "ä"])
def test_a_name_that_a_unit_of_systemd_would_read_otherwise_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"hosts\[0\]\.name: is .*: write letters, digits"):
        read(tmp_path, changed(("hosts", 0, "name"), name))
