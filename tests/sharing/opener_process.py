# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""One opener of a shared pool, in a process of its own, that does what it is told.

    opener_process.py OPTIONS      a JSON object: the arguments of kvstore.open

Each line of standard input is a JSON list, a command and its arguments; each is answered by one line,
``["ok", ANSWER]`` or ``["error", CODE, MESSAGE]``. ``work`` goes on by itself until the next line comes, and says each
promise before the next: ``["stored", KEY]`` means that the block is durable. Such a line is one write of less than
PIPE_BUF bytes: it is in the pipe whole or not at all.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from typing import Any

from oracle import IDENTITY, content, read

import kvstore
from kvstore import errors

WAIT_S = 60
BUSY_S = 28  # in which a lease that was lost is another one, also on a machine that is busy


def say(*words: Any) -> None:
    text = memoryview((json.dumps(words) + "\n").encode())
    while text:
        text = text[os.write(1, text) :]


def is_asked() -> bool:
    return bool(select.select([0], [], [], 0)[0])


def next_line() -> bytes:
    """Read no further than its end: is_asked() sees the next one. Empty at the end of the input."""
    line = b""
    while not line.endswith(b"\n") and (more := os.read(0, 1)):
        line += more
    return line


class Commands:
    """What an opener can be told; each method is a command."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self.open()

    def open(self) -> None:
        self._pool = kvstore.open(**self._options)
        self._space = self._pool.space(**IDENTITY)

    def close(self) -> None:
        self._pool.close()

    def put(self, keys: list[str], durable: bool = True) -> list[str]:
        """What became of each: ``stored``, ``present``, or the code of an error.

        What is refused as busy is put again for a while, as who puts is told to: on a machine that is slow enough a
        lease is not renewed in time, and that is no fault.
        """
        became = dict(zip(keys, self.put_once(keys, durable), strict=True))
        deadline = time.monotonic() + BUSY_S
        while (left := [key for key in keys if became[key] == "busy"]) and time.monotonic() < deadline:
            time.sleep(0.01)
            again = self.put_once(left, durable)
            # Who waited for a block to be durable may be told that nobody knows, with the block there.
            became.update(zip(left, ["stored" if status == "present" else status for status in again], strict=True))
        return [became[key] for key in keys]

    def put_once(self, keys: list[str], durable: bool = True) -> list[str]:
        """The same, without a second try."""
        names = [key.encode() for key in keys]
        job = self._space.put_many(names, [content(name) for name in names], durable=durable)
        results = job.wait(WAIT_S)
        for result in results:
            if result.status == "error" and result.code != "busy":
                print(f"{result.error}; {self._pool.stats()}", file=sys.stderr)  # for whoever looks into it
        return [result.code if result.status == "error" else result.status for result in results]

    def get(self, keys: list[str]) -> list[str]:
        return [read(self._space, key.encode()) for key in keys]

    def delete(self, keys: list[str]) -> list[str]:
        return [result.status for result in self._space.delete([key.encode() for key in keys])]

    def flush(self) -> None:
        self._pool.flush(WAIT_S)

    def refresh(self) -> None:
        self._pool.refresh(WAIT_S)

    def stats(self) -> dict[str, Any]:
        return self._pool.stats()

    def timed_put(self, key: str, durable: bool) -> tuple[float, float]:
        """When the put began and when it was done, by the clock that all processes of a host share."""
        value = content(key.encode())
        begun = time.monotonic()
        self._space.put(key.encode(), value, durable=durable)
        return begun, time.monotonic()

    def await_hit(self, key: str) -> float:
        """When the first get of the key was a hit."""
        deadline = time.monotonic() + WAIT_S
        while read(self._space, key.encode()) != "hit":
            if time.monotonic() > deadline:
                raise errors.WaitTimeout(f"{key} is no hit after {WAIT_S} s")
            time.sleep(0.0005)
        return time.monotonic()

    def put_until_refused(self, name: str, within_s: float) -> tuple[list[str], str, float]:
        """Durable puts until one is refused: what was stored, the code, and after how long."""
        begun = time.monotonic()
        stored: list[str] = []
        while time.monotonic() - begun < within_s:
            key = f"{name}-{len(stored)}"
            (status,) = self.put_once([key])
            if status != "stored":
                return stored, status, time.monotonic() - begun
            stored.append(key)
            time.sleep(0.01)
        raise AssertionError(f"{len(stored)} puts in {within_s} s, and none was refused")

    def put_until_stored(self, key: str, within_s: float) -> float:
        """A durable put, again and again while it is refused; after how long it was stored."""
        begun = time.monotonic()
        while (status := self.put_once([key])[0]) not in ("stored", "present"):
            if status != "busy" or time.monotonic() - begun > within_s:
                raise AssertionError(f"{key}: {status} after {time.monotonic() - begun:.1f} s")
            time.sleep(0.01)
        return time.monotonic() - begun

    def work(self, name: str, seed: int, others: list[str]) -> dict[str, int]:
        """Put, one by one and in batches, and read what it put and what the others may have put."""
        choice = random.Random(seed)
        count = 0
        outcomes = {"stored": 0, "hit": 0, "miss": 0, "busy": 0, "io": 0, "of_others": 0}
        while not is_asked():
            batch = [f"{name}-{count + i}" for i in range(choice.choice([1, 1, 4]))]
            count += len(batch)
            for key, status in zip(batch, self.put_once(batch), strict=True):
                outcomes[status] += 1
                # S6: of a region that another opener has retired since the lease ended, what was pending is lost.
                assert status != "io" or self._pool.stats()["regions_lost"], "a put failed, and no region was lost"
                if status == "stored":
                    say("stored", key)
            owner = choice.choice([name, *others])
            (found,) = self.get([f"{owner}-{choice.randrange(count)}"])
            outcomes[found] += 1
            outcomes["of_others"] += owner != name and found == "hit"
        return outcomes


def main() -> None:
    commands = Commands(json.loads(sys.argv[1]))
    say("ok", os.getpid())
    for line in iter(next_line, b""):
        command, *arguments = json.loads(line)
        try:
            answer = getattr(commands, command)(*arguments)
        except errors.KvStoreError as error:
            say("error", error.code, str(error))
        else:
            say("ok", answer)


if __name__ == "__main__":
    main()
