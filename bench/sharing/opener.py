# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""One opener of the benchmark: ``python -m bench.sharing.opener OPTIONS``, a JSON object.

Each line of standard input is a JSON list, a command and its arguments, and is answered by a line of JSON. Times are
CLOCK_MONOTONIC, which all processes of a host share. ``verify`` is always on, as shared mode demands.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

import kvstore


class Opener:
    """What an opener can be told; each method is a command."""

    def __init__(self, path: str, mode: str, engine: str | None, name: str, block_bytes: int, depth: int) -> None:
        self._pool = kvstore.open(path, mode=mode, engine=engine, wait_s=30)
        self._space = self._pool.space(engine="bench", block_bytes=block_bytes)
        self._name = name
        self._depth = depth
        self._block_bytes = block_bytes
        self._arena = memoryview(self._pool.alloc(depth * block_bytes)).cast("B")
        self._views = [self._arena[i * block_bytes : (i + 1) * block_bytes] for i in range(depth)]
        for view in self._views:
            view[:] = os.urandom(4096) * (block_bytes // 4096)

    def _moved(self, moves: Any, blocks: int, begun: float, cpu_s: float) -> dict[str, float]:
        """Run and say when it began and ended, and what it cost."""
        failed = sum(moves)
        return {
            "begun": begun,
            "ended": time.monotonic(),
            "bytes": (blocks - failed) * self._block_bytes,
            "failed": failed,
            "cpu_s": time.process_time() - cpu_s,
        }

    def put(self, repetition: int, blocks: int) -> dict[str, float]:
        """Put blocks that nobody has put, ``depth`` in flight, and flush."""
        begun, cpu_s = time.monotonic(), time.process_time()

        def moves() -> Any:
            for first in range(0, blocks, self._depth):
                count = min(self._depth, blocks - first)
                keys = [self._key(self._name, repetition, first + i) for i in range(count)]
                yield sum(not result for result in self._space.put_many(keys, self._views[:count]).wait())
            self._pool.flush()

        return self._moved(moves(), blocks, begun, cpu_s)

    def get(self, names: list[str], repetition: int, population: int, blocks: int) -> dict[str, float]:
        """Get random blocks of all openers, ``depth`` in flight."""
        choice = random.Random(f"{self._name} {repetition}")
        begun, cpu_s = time.monotonic(), time.process_time()

        def moves() -> Any:
            for first in range(0, blocks, self._depth):
                count = min(self._depth, blocks - first)
                keys = [self._key(choice.choice(names), repetition, choice.randrange(population)) for _ in range(count)]
                yield sum(not result for result in self._space.get_many(keys, self._views[:count]).wait())

        return self._moved(moves(), blocks, begun, cpu_s)

    def put_one(self, number: int, durable: bool) -> dict[str, float]:
        begun = time.monotonic()
        self._space.put(self._key("visible", int(durable), number), self._views[0], durable=durable)
        return {"begun": begun, "ended": time.monotonic()}

    def await_hit(self, number: int, durable: bool) -> dict[str, float]:
        """Ask for the block every 200 us until it is a hit."""
        key = self._key("visible", int(durable), number)
        deadline = time.monotonic() + 30
        while self._space.get(key, self._views[0]) is None:
            assert time.monotonic() < deadline, "not visible after 30 s"
            time.sleep(0.0002)
        return {"ended": time.monotonic()}

    def refresh(self) -> None:
        if self._pool.stats().get("openers"):
            self._pool.refresh(30)

    def stats(self) -> dict[str, Any]:
        return self._pool.stats()

    def close(self) -> None:
        self._views.clear()
        self._arena.release()
        self._pool.close()

    @staticmethod
    def _key(name: str, repetition: int, number: int) -> bytes:
        return f"{name} {repetition} {number:12}".encode()


def main() -> None:
    """Serves until the input ends."""
    opener = Opener(**json.loads(sys.argv[1]))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps(getattr(opener, command)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
