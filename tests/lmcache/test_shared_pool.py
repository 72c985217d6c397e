# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: workers in several processes, and several L2 adapters, have one pool open and get each other's blocks.

Method: LMCache's in-process classes in processes of their own, told what to do line by line; a SQLite file is the
metadata engine.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lmcache_helpers import eventually, fill_of, load, memory_obj, object_key, present, store

import kvstore
from kvstore.lmcache import KVStoreL2Adapter

ANSWER_S = 120.0
VISIBLE_S = 20.0


class Worker:
    def __init__(self, path: str, rank: int, world: int) -> None:
        here = Path(__file__).parent
        folders = [str(Path(kvstore.__file__).parent.parent), str(here)]
        self._process = subprocess.Popen(
            [sys.executable, str(here / "lmcache_worker.py"), path, str(rank), str(world)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        )

    def tell(self, line: str) -> None:
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """The next line that is an answer; LMCache prints to the same place."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            assert select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]
            line = self._process.stdout.readline()
            assert line, f"the worker has ended: {self._process.wait(ANSWER_S)}"
            if line.strip() == "ok" or line.strip().isdigit():
                return line.strip()

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.answer()

    def end(self) -> None:
        self.tell("end")
        assert self._process.wait(ANSWER_S) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def workers():
    made: list[Worker] = []

    def make(path: str, *places: tuple[int, int]) -> list[Worker]:
        made.extend(Worker(path, rank, world) for rank, world in places)
        for worker in made:
            assert worker.answer() == "ok"
        return made

    yield make
    for worker in made:
        worker.kill()


def test_the_workers_of_two_engines_get_what_the_same_rank_of_the_other_stored(pool_path, workers):
    """Two engines of two ranks each: four processes, one pool."""
    made = workers(pool_path, (0, 2), (1, 2), (0, 2), (1, 2))
    for worker, first in zip(made, (0, 0, 100, 100), strict=True):
        worker.tell(f"put {first} 5")
    for worker in made:
        assert worker.answer() == "ok"
        assert worker.ask("flush") == "ok"
    for worker, rank, first in zip(made, (0, 1, 0, 1), (100, 100, 0, 0), strict=True):
        eventually(lambda w=worker, r=rank, f=first: w.ask(f"get {r} {f} 5") == "5", VISIBLE_S)
    for worker in made:
        worker.end()


def test_a_worker_that_is_killed_takes_nothing_with_it(pool_path, workers):
    first, second = workers(pool_path, (0, 1), (0, 1))
    assert first.ask("put 0 5") == "ok"
    assert first.ask("flush") == "ok"
    first.kill()
    eventually(lambda: second.ask("get 0 0 5") == "5", VISIBLE_S)
    assert second.ask("put 10 5") == "ok"
    assert second.ask("get 0 10 5") == "5"
    second.end()


def test_an_l2_adapter_finds_what_another_process_stored(pool_path, make_adapter):
    adapter = make_adapter(pool_path, mode="shared", lease_s=3, durable=True)
    script = (
        "import sys\n"
        "from lmcache_helpers import memory_obj, object_key, store\n"
        "from kvstore.lmcache import KVStoreL2Adapter\n"
        "made = KVStoreL2Adapter({'path': sys.argv[1], 'mode': 'shared', 'lease_s': 3, 'durable': True})\n"
        "store(made, [object_key(i) for i in range(4)], [memory_obj(i) for i in range(4)])\n"
        "made.close()\n"
    )
    folders = [str(Path(kvstore.__file__).parent.parent), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    subprocess.run([sys.executable, "-c", script, pool_path], check=True, env=environment, timeout=ANSWER_S)
    keys = [object_key(i) for i in range(4)]
    eventually(lambda: present(adapter, keys) == [0, 1, 2, 3], VISIBLE_S)
    objects = [memory_obj(-1.0) for _ in keys]
    assert load(adapter, keys, objects) == [0, 1, 2, 3]
    assert [fill_of(obj) for obj in objects] == [0.0, 1.0, 2.0, 3.0]
    assert store(adapter, [object_key(9)], [memory_obj(9.0)]) is not None


def test_a_setting_of_shared_mode_in_owner_mode_is_an_error_that_names_it(pool_path):
    with pytest.raises(kvstore.errors.ConfigError, match=r"adapter_params.engine is for adapter_params.mode"):
        KVStoreL2Adapter({"path": pool_path, "engine": "sqlite:"})
