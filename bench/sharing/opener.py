# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""One opener of the benchmark: ``python -m bench.sharing.opener OPTIONS``, a JSON object.

Each line of standard input is a JSON list, a command and its arguments, and is answered by a line of JSON. Times are
CLOCK_MONOTONIC, which all processes of a host share. ``verify`` is always on, as shared mode demands. What gets bring
is compared with what was put in passes of their own, whose time does not count: between timed batches it would be time
in which the other openers have the device for themselves.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from typing import Any

import kvstore
from kvstore.bench.content import Buffers, Content


class Opener:
    """What an opener can be told; each method is a command."""

    def __init__(
        self, path: str, mode: str, engine: str | None, name: str, block_bytes: int, depth: int, nonce: int
    ) -> None:
        self._pool = kvstore.open(path, mode=mode, engine=engine, wait_s=30)
        self._space = self._pool.space(engine="bench", block_bytes=block_bytes)
        self._name = name
        self._depth = depth
        self._block_bytes = block_bytes
        self._content = Content(block_bytes, seed=1, nonce=nonce)
        self._buffers = Buffers(depth, block_bytes, self._pool.alloc(depth * block_bytes))
        self._content.fill(self._buffers)
        self._views = self._buffers.views(block_bytes)

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
                self._content.stamp(self._buffers, [self._number(key) for key in keys])
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

    def wrong(self, names: list[str], repetition: int, population: int, blocks: int) -> list[str]:
        """Get random blocks of all openers; what was wrong with them."""
        choice = random.Random(f"{self._name} {repetition} wrong")
        found: list[str] = []
        for _ in range(0, blocks, self._depth):
            keys = [self._key(choice.choice(names), repetition, choice.randrange(population)) for _ in self._views]
            self._content.spoil(self._buffers, len(keys))
            found += [f"{key!r}: {one.status}" for key, one in zip(keys, self._got(keys), strict=True) if not one]
            numbers, sizes = [self._number(key) for key in keys], [self._block_bytes] * len(keys)
            found += [text for text in self._content.check(self._buffers, numbers, sizes, "stamp") if text]
        return found

    def _got(self, keys: list[bytes]) -> list[kvstore.Result]:
        return list(self._space.get_many(keys, self._views[: len(keys)]).wait())

    def put_one(self, number: int, durable: bool) -> dict[str, float]:
        """Put one block; when that began and ended."""
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
        """Learn all that the others have put until now."""
        if self._pool.stats().get("openers"):
            self._pool.refresh(30)

    def stats(self) -> dict[str, Any]:
        """Of the pool."""
        return self._pool.stats()

    def close(self) -> None:
        """Give everything back."""
        del self._views, self._buffers
        self._pool.close()

    @staticmethod
    def _key(name: str, repetition: int, number: int) -> bytes:
        return f"{name} {repetition} {number:12}".encode()

    @staticmethod
    def _number(key: bytes) -> int:
        """Of the block with this key, among those of all openers."""
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def main() -> None:
    """Serves until the input ends."""
    opener = Opener(**json.loads(sys.argv[1]))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps(getattr(opener, command)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
