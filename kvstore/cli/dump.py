# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""List the blocks of a pool, one a line, region by region: space, salt, key, place, size, order of writing.

Opens read-only, as kvstore info does. With --json each line is a JSON object; bytes are hexadecimal.

  kvstore dump pool.img --space model=Qwen/Qwen2.5-32B --limit 10
  kvstore dump pool.img --json | jq -r .key
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import kvstore
from kvstore.cli.arguments import add_paths, count, hex_bytes
from kvstore.cli.exits import EXIT_OK
from kvstore.cli.output import print_json_line

HELP = "list the blocks of a pool"

_COLUMNS = "{:>5} {:>4} {:>7} {:>6} {:>5} {:>16} {:>11} {:>6}  {}  {}  {}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this verb."""
    add_paths(parser)
    only = parser.add_argument_group("only blocks that match all of")
    only.add_argument(
        "--space",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        type=_field,
        help="a field of the space's identity",
    )
    only.add_argument("--key", type=hex_bytes, default=b"", metavar="HEX", help="first bytes of the key")
    only.add_argument("--salt", type=hex_bytes, metavar="HEX", help="the salt; an empty one is ''")
    only.add_argument("--device", type=int, metavar="N", help="place of the device in the pool, from 0")
    only.add_argument("--region", type=int, metavar="N", help="number of the region on its device")
    parser.add_argument("--limit", type=count, metavar="N", help="stop after so many blocks")


def run(options: argparse.Namespace) -> int:
    """Open read-only, print what matches."""
    with kvstore.open(options.paths, read_only=True) as pool:
        blocks = itertools.islice(filter(_matcher(options), pool.blocks()), options.limit)
        if options.json:
            for block in blocks:
                print_json_line(as_dict(block))
        else:
            _print_lines(blocks)
    return EXIT_OK


def as_dict(block: kvstore.BlockInfo) -> dict[str, Any]:
    """A block as ``dump --json`` prints it: bytes in hexadecimal, everything else as it is."""
    return {
        "space": block.space,
        "salt": block.salt.hex(),
        "key": block.key.hex(),
        "key_is_digest": block.key_is_digest,
        "nbytes": block.nbytes,
        "extent_bytes": block.extent_bytes,
        "depth": block.depth,
        "parent": f"{block.parent:016x}",
        "device": block.device,
        "region": block.region,
        "slot": block.slot,
        "generation": block.generation,
        "offset_bytes": block.offset_bytes,
        "write_seq": block.write_seq,
        "checksum": block.checksum,
        "page_hashes": block.page_hashes,
        "meta": block.meta.hex(),
    }


def _field(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=VALUE")
    return name, value


def _matcher(options: argparse.Namespace) -> Callable[[kvstore.BlockInfo], bool]:
    known: dict[str, bool] = {}

    def in_space(block: kvstore.BlockInfo) -> bool:
        text = block.space_json
        if text not in known:
            identity = block.space
            known[text] = all(name in identity and str(identity[name]) == value for name, value in options.space)
        return known[text]

    def matches(block: kvstore.BlockInfo) -> bool:
        return (
            options.device in (None, block.device)
            and options.region in (None, block.region)
            and options.salt in (None, block.salt)
            and block.key.startswith(options.key)
            and (not options.space or in_space(block))
        )

    return matches


def _print_lines(blocks: Iterator[kvstore.BlockInfo]) -> None:
    """Spaces are numbered in order of appearance, and their identity is printed where they appear first."""
    numbers: dict[str, int] = {}
    print(
        _COLUMNS.format("space", "dev", "region", "slot", "gen", "write_seq", "bytes", "depth", "key", "salt", "meta")
    )
    for block in blocks:
        if block.space_json not in numbers:
            numbers[block.space_json] = len(numbers)
            print(f"# space {numbers[block.space_json]}: {block.space_json}")
        print(
            _COLUMNS.format(
                numbers[block.space_json],
                block.device,
                block.region,
                block.slot,
                block.generation,
                block.write_seq,
                block.nbytes,
                block.depth,
                f"{'digest:' if block.key_is_digest else ''}{block.key.hex()}",
                block.salt.hex() or "-",
                block.meta.hex() or "-",
            )
        )
