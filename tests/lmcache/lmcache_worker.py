# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""One in-process worker of a serving engine with LMCache, in a process of its own, that does what it is told.

    lmcache_worker.py PATH RANK WORLD_SIZE

Lines of standard input: ``put FIRST COUNT``, ``get RANK FIRST COUNT`` (of what that rank stored), ``flush``, ``end``.
Each is answered by one line: ``ok``, or for ``get`` how many blocks came back right; wrong bytes end the process.
"""

from __future__ import annotations

import sys

import torch
from lmcache_engine import bytes_of, content, engine, key_of, metadata


def main(path: str, rank: int, world: int) -> None:
    def keys(of: int, first: int, count: int) -> list:
        return [key_of(number, worker=of, world=world) for number in range(first, first + count)]

    meta = metadata(worker_id=rank, local_worker_id=rank, world_size=world, local_world_size=world)
    with engine(path, meta, settings={"mode": "shared", "lease_s": 3}) as made:
        print("ok", flush=True)
        for line in sys.stdin:
            command, *numbers = line.split()
            arguments = [int(number) for number in numbers]
            if command == "put":
                first, count = arguments
                made.put(keys(rank, first, count), [made.object_of(n) for n in range(first, first + count)])
            elif command == "get":
                found = made.backend.batched_get_blocking(keys(*arguments))
                for number, obj in enumerate(found, arguments[1]):
                    if obj is not None:
                        assert torch.equal(bytes_of(obj), content(number, obj.get_size())), f"wrong bytes of {number}"
                        obj.ref_count_down()
                print(sum(obj is not None for obj in found), flush=True)
                continue
            elif command == "flush":
                made.connector._pool.flush()
            else:
                break
            print("ok", flush=True)
        assert made.used_bytes() == 0


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
