# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The process that test_sigkill.py kills: puts, deletes, closes and opens, and says each promise before the next.

    killed_worker.py PATH[,PATH] DEVICE_KIND NAME SEED {keep,wrap}

A line ``stored KEY`` says that the block is durable, ``deleting KEY`` that it may go from now on, ``deleted KEY`` that
it stays gone. A line is one write of less than PIPE_BUF bytes: it is in the pipe whole or not at all.
"""

from __future__ import annotations

import os
import random
import sys

from oracle import IDENTITY, content, read

import kvstore


def say(word: str, key: bytes) -> None:
    os.write(1, f"{word} {key.decode()}\n".encode())


class Worker:
    def __init__(self, name: str, seed: int, deletes: bool) -> None:
        self._name = name
        self._random = random.Random(seed)
        self._deletes = deletes
        self._number = 0
        self._stored: list[bytes] = []

    def _fresh_keys(self, count: int) -> list[bytes]:
        self._number += count
        return [f"{self._name}-{i}".encode() for i in range(self._number - count, self._number)]

    def _say_stored(self, keys: list[bytes]) -> None:
        for key in keys:
            say("stored", key)
        self._stored += keys

    def put_one(self, pool: kvstore.Pool, space: kvstore.Space) -> None:
        keys = self._fresh_keys(1)
        space.put(keys[0], content(keys[0]), durable=True)
        self._say_stored(keys)

    def put_batch(self, pool: kvstore.Pool, space: kvstore.Space) -> None:
        keys = self._fresh_keys(self._random.randrange(2, 9))
        results = space.put_many(keys, [content(key) for key in keys], chain=True, durable=True).wait()
        assert all(results), results
        self._say_stored(keys)

    def put_and_flush(self, pool: kvstore.Pool, space: kvstore.Space) -> None:
        keys = self._fresh_keys(self._random.randrange(1, 5))
        for key in keys:
            space.put(key, content(key))
        pool.flush()
        self._say_stored(keys)

    def delete(self, pool: kvstore.Pool, space: kvstore.Space) -> None:
        if not (self._deletes and self._stored):
            return
        key = self._stored.pop(self._random.randrange(len(self._stored)))
        say("deleting", key)
        assert space.delete([key])[0].status == "deleted"
        pool.flush()
        say("deleted", key)

    def get(self, pool: kvstore.Pool, space: kvstore.Space) -> None:
        if self._stored:
            found = read(space, self._random.choice(self._stored))
            assert found == "hit" or (found == "miss" and not self._deletes), found

    def run(self, path: str, device_kind: str) -> None:
        steps = [self.put_one, self.put_batch, self.put_and_flush, self.delete, self.get]
        while True:
            with kvstore.open(path.split(","), device_kind=device_kind, wait_s=60) as pool:
                space = pool.space(**IDENTITY)
                for _ in range(self._random.randrange(5, 40)):
                    self._random.choice(steps)(pool, space)


if __name__ == "__main__":
    path, device_kind, name, seed, mode = sys.argv[1:]
    Worker(name, int(seed), deletes=mode == "keep").run(path, device_kind)
