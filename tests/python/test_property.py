# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Random sequences of operations against a dict: the store hits exactly what the model holds, byte for byte.

Method: hypothesis drives one pool through puts, gets, deletes, prefix matches and reopenings; few keys, so they meet.
The pool is far from full, so a miss of a block that the model holds is a failure.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from python_support import random_bytes

import kvstore
from kvstore.space import canonical_identity
from kvstore.testing import SimDisk

# By name, so that a failing example can be read.
KEYS = {"short": b"a", "raw": b"b" * 48, "digest": b"c" * 49, "long": b"d" * 1024, "zero": b"\x00", "high": b"\xff\xfe"}
SALTS = {"none": b"", "salt": b"salt", "zeros": b"\x00" * 64}
SIZES = [1, 100, 4095, 4096, 4097, 20_000, 70_001]

keys = st.sampled_from(sorted(KEYS))
salts = st.sampled_from(sorted(SALTS))
sizes = st.sampled_from(SIZES)
identities = st.sampled_from([{"model": "m", "rank": 0}, {"model": "m", "rank": 1}, {"model": "m", "rank": "0"}])


class StoreAgainstDict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk("1GiB", seed=5)
        kvstore.format(self.disk.path, region_bytes="1MiB", min_block_bytes=4096)
        self.pool = kvstore.open(self.disk.path)
        self.model: dict[tuple[str, bytes, bytes], bytes] = {}
        self.seed = 0

    def place(self, identity, key, salt):
        return (canonical_identity(identity), SALTS[salt], KEYS[key])

    @rule(identity=identities, key=keys, salt=salts, size=sizes, durable=st.booleans(), pages=st.booleans())
    def put(self, identity, key, salt, size, durable, pages):
        self.seed += 1
        value = random_bytes(size, self.seed)
        place = self.place(identity, key, salt)
        result = self.pool.space(**identity).put(KEYS[key], value, salt=SALTS[salt], durable=durable, page_hashes=pages)
        assert result.status == ("present" if place in self.model else "stored")
        self.model.setdefault(place, value)

    @rule(identity=identities, batch=st.lists(st.tuples(keys, sizes), min_size=1, max_size=6), salt=salts)
    def put_many(self, identity, batch, salt):
        self.seed += 1
        values = [random_bytes(size, self.seed * 10 + i) for i, (_, size) in enumerate(batch)]
        results = (
            self.pool.space(**identity).put_many([KEYS[key] for key, _ in batch], values, salts=SALTS[salt]).wait(30)
        )
        for (key, _), value, result in zip(batch, values, results, strict=True):
            place = self.place(identity, key, salt)
            if result.status == "stored":
                assert place not in self.model
                self.model[place] = value
            else:
                assert result.status == "present"

    @rule(identity=identities, key=keys, salt=salts)
    def get(self, identity, key, salt):
        out = bytearray(70_001)
        nbytes = self.pool.space(**identity).get(KEYS[key], out, salt=SALTS[salt])
        expected = self.model.get(self.place(identity, key, salt))
        assert (None if nbytes is None else bytes(out[:nbytes])) == expected

    @rule(identity=identities, key=keys, salt=salts, data=st.data())
    def get_part(self, identity, key, salt, data):
        expected = self.model.get(self.place(identity, key, salt))
        if expected is None:
            return
        offset = data.draw(st.integers(0, len(expected) - 1))
        nbytes = data.draw(st.integers(1, len(expected) - offset))
        out = bytearray(nbytes)
        space = self.pool.space(**identity)
        assert space.get(KEYS[key], out, salt=SALTS[salt], offset=offset, nbytes=nbytes) == nbytes
        assert out == expected[offset : offset + nbytes]

    @rule(identity=identities, some=st.lists(keys, min_size=1, max_size=4, unique=True), salt=salts)
    def delete(self, identity, some, salt):
        results = self.pool.space(**identity).delete([KEYS[key] for key in some], salts=SALTS[salt])
        for key, result in zip(some, results, strict=True):
            known = self.model.pop(self.place(identity, key, salt), None)
            assert result.status == ("miss" if known is None else "deleted")

    @rule(identity=identities, some=st.permutations(sorted(KEYS)), salt=salts)
    def match_prefix(self, identity, some, salt):
        expected = 0
        while expected < len(some) and self.place(identity, some[expected], salt) in self.model:
            expected += 1
        assert self.pool.space(**identity).match_prefix([KEYS[key] for key in some], salts=SALTS[salt]) == expected

    @rule(clean=st.booleans())
    def reopen(self, clean):
        if clean:
            self.pool.close()
        else:  # killed after a flush: what was flushed is there, what was deleted stays deleted
            self.pool.flush(timeout_s=10)
            self.disk.stop()
            with pytest.raises(kvstore.KvStoreError):
                self.pool.close(timeout_s=5)
            self.disk.power_cut(cache_survives=True)
        self.pool = kvstore.open(self.disk.path)

    @invariant()
    def nothing_was_reclaimed(self):
        assert self.pool.stats()["regions_reclaimed"] == 0

    def teardown(self):
        listed = {(block.space_json, block.salt, block.nbytes) for block in self.pool.blocks()}
        assert {(space, salt, len(value)) for (space, salt, _), value in self.model.items()} == listed
        self.pool.close()
        self.disk.remove()


def test_the_store_behaves_as_a_dict():
    run_state_machine_as_test(
        StoreAgainstDict,
        settings=settings(
            max_examples=12,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
