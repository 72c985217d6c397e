# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The fake GPU of a test session: the core loads one driver in its life, so all tests of a process share it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpu_support import FakeGpu, build_fake

import kvstore
from kvstore import _core

_made: list[FakeGpu] = []  # one for a process, though each folder of tests has a fixture of its own


@pytest.fixture(scope="session")
def gpu_of_session(tmp_path_factory: pytest.TempPathFactory) -> FakeGpu:
    if _made:
        return _made[0]
    library = build_fake(tmp_path_factory.mktemp("fakes"))
    if library is None:
        pytest.skip("a C++ compiler is missing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVSTORE_LIBCUDA", library)
        # The driver is loaded with the first pointer that is asked for; child processes are to see none.
        with pytest.raises(kvstore.ConfigError):
            _core.gpu_of_pointer(4096)
    _made.append(FakeGpu(library))
    return _made[0]


@pytest.fixture
def gpu(gpu_of_session: FakeGpu) -> Iterator[FakeGpu]:
    """Two fake GPUs, without faults."""
    yield gpu_of_session
    gpu_of_session.lib.fake_cuda_reset()
