# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments that several verbs share, and the types of their values."""

from __future__ import annotations

import argparse
import sys

from kvstore.errors import ConfigError
from kvstore.sizes import parse_size

__all__ = ["add_engine", "add_paths", "count", "hex_bytes", "size"]


def add_paths(parser: argparse.ArgumentParser) -> None:
    """The devices of one pool."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="device or file; name all devices of the pool (prefer /dev/disk/by-id names)",
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """The metadata engine of a shared pool."""
    parser.add_argument(
        "--engine",
        default="sqlite:",
        metavar="URL",
        help="sqlite: (default), sqlite:/path or etcd://host:port,…; as the openers were given",
    )


def size(text: str) -> int:
    """A size argument, such as ``4GiB``."""
    try:
        return parse_size(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def count(text: str) -> int:
    """A number of things, 1 or more; what is beyond any number of blocks is all of them."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return min(number, sys.maxsize)


def hex_bytes(text: str) -> bytes:
    """Bytes written in hexadecimal, two digits each."""
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not hexadecimal, two digits a byte") from error
