# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Proves a wheel in the root it is run in: formats a file, stores blocks, closes, opens again, reads them back.

Run by `scripts/build-wheel --smoke` where there is neither compiler nor liburing, so what the wheel does not bring
along shows here. Plain asserts, no test framework: there is none in that root.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import kvstore

BLOCK_BYTES = 1 << 20
COUNT = 16
IDENTITY = {"engine": "smoke", "model": "none", "revision": "0", "dtype": "uint8", "layout": "flat", "block_tokens": 1}


def main() -> None:
    assert shutil.which("cc") is None, "this root has a compiler, so it proves nothing"
    assert not list(Path("/usr/lib").rglob("liburing.so*")), "this root has liburing, so it proves nothing"
    blocks = {f"key-{i}".encode(): os.urandom(BLOCK_BYTES - i) for i in range(COUNT)}

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "pool.img")
        kvstore.format(path, size="256MiB")
        with kvstore.open(path) as pool:
            space = pool.space(**IDENTITY)
            for key, block in blocks.items():
                space.put(key, block)
            pool.flush()
        with kvstore.open(path) as pool:
            space = pool.space(**IDENTITY)
            out = bytearray(BLOCK_BYTES)
            for key, block in blocks.items():
                nbytes = space.get(key, out)
                assert nbytes == len(block), f"{key!r}: {nbytes} bytes read, {len(block)} put"
                assert out[:nbytes] == block, f"{key!r}: other bytes than were put"
            assert space.get(b"never put", out) is None
        entry_point = "from kvstore.cli import main; raise SystemExit(main())"  # as the console script has it
        command = [sys.executable, "-c", entry_point, "info", path]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)

    print(f"wheel: kvstore {kvstore.__version__} put and read {COUNT} blocks on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
