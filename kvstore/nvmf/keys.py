# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""DH-HMAC-CHAP keys, one to a file that nobody but its owner can read, as `nvme gen-dhchap-key` prints them.

``DHHC-1:HH:BASE64:``, where HH names the hash (00 none, 01 to 03 SHA-256 to -512) and the base64 ends with the key's
CRC-32 (NVMe base specification 2.0, 8.13.5.8).
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from pathlib import Path

from kvstore.errors import ConfigError
from kvstore.nvmf.trusted import is_owned, replaceable_at

__all__ = ["read_key"]

_KEY = re.compile(r"DHHC-1:0[0-3]:([A-Za-z0-9+/=]+):")
_KEY_BYTES = (32, 48, 64)
_CRC_BYTES = 4
_FILE_BYTES = 4096


def read_key(path: str) -> str:
    """The key in a file.

    Raises
    ------
    ConfigError : it cannot be read, others can read or replace it, or it is no key. The message does not tell the key.
    """
    try:
        # Looked at as it is open: by its name another file could be looked at than is read. A FIFO has no end.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            text = file.read(_FILE_BYTES).decode().strip() if stat.S_ISREG(status.st_mode) else ""
        exposed = replaceable_at(Path(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the key in {path} cannot be read: {error}") from error
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path} can be read by others: chmod 600 {path}, and make a new key if they may have")
    if not is_owned(status) or exposed:
        at = path if not is_owned(status) else exposed
        raise ConfigError(
            f"{path} can be replaced by others, who own or may write {at}: keep it in a folder of root's, and make a "
            "new key"
        )
    match = _KEY.fullmatch(text)
    try:
        raw = base64.b64decode(match[1], validate=True) if match else b""
    except binascii.Error:
        raw = b""
    key, crc = raw[:-_CRC_BYTES], raw[-_CRC_BYTES:]
    if len(key) not in _KEY_BYTES or binascii.crc32(key).to_bytes(_CRC_BYTES, "little") != crc:
        raise ConfigError(f"{path} holds no key: make one with (umask 077; nvme gen-dhchap-key > {path})")
    return text
