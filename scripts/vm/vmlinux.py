# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Takes the ELF kernel out of a bzImage: ``vmlinux.py VMLINUZ VMLINUX``.

QEMU boots that ELF by PVH. So the emulated processor does not spend seconds decompressing what the host can.
"""

from __future__ import annotations

import lzma
import struct
import subprocess
import sys
from pathlib import Path

SETUP_SECTORS_AT = 0x1F1  # Documentation/arch/x86/boot.rst
PAYLOAD_AT = 0x248
SIZE_BYTES = 4  # of the unpacked kernel, at the end of the payload; no part of a zstd frame


def unpack(image: bytes) -> bytes:
    offset, length = struct.unpack_from("<II", image, PAYLOAD_AT)
    start = ((image[SETUP_SECTORS_AT] or 4) + 1) * 512 + offset
    payload = image[start : start + length]
    if payload.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        done = subprocess.run(["zstd", "-dc"], input=payload[:-SIZE_BYTES], stdout=subprocess.PIPE, check=True)
        return done.stdout
    sys.exit(f"unknown compression of the kernel: it begins with {payload[:6].hex()}")


if __name__ == "__main__":
    kernel = unpack(Path(sys.argv[1]).read_bytes())
    if not kernel.startswith(b"\x7fELF"):
        sys.exit("the kernel image does not hold an ELF file")
    Path(sys.argv[2]).write_bytes(kernel)
