# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Steps and the signals that end a run: whenever one comes, all that was done is undone, or told.

Method: a tree that raises real signals at this process while it does a step or undoes one.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from nvmf_support import FakeConfigfs

from kvstore.nvmf.signals import deferred, shielded, terminable
from kvstore.nvmf.steps import Step, StepFailed, apply
from kvstore.nvmf.tree import NVMET, KernelWaits

STEPS = [Step("mkdir", path, undo=(Step("rmdir", path),)) for path in ("hosts/a", "hosts/b", "hosts/c")]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _none_is_ignored() -> Iterator[None]:
    """As SIGINT is in what a script starts in the background."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Signalled(FakeConfigfs):
    """Does what it is told, and raises a signal after each change from the ``from_change``-th on."""

    def __init__(self, number: signal.Signals, from_change: int) -> None:
        super().__init__()
        self.number, self.from_change = number, from_change
        self.stuck: set[str] = set()

    def mkdir(self, path: str) -> None:
        super().mkdir(path)
        self._signal()

    def rmdir(self, path: str) -> None:
        if path in self.stuck:
            self._refuse(16, path)
        super().rmdir(path)
        self._signal()

    def _signal(self) -> None:
        if self.changes >= self.from_change:
            signal.raise_signal(self.number)


def do(tree: FakeConfigfs) -> None:
    with terminable():
        apply(STEPS, tree, NVMET, lambda step, error: "")


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_step_that_a_signal_came_in_is_undone_too_and_more_signals_do_not_stop_that(
    number: signal.Signals, at: int
) -> None:
    tree = Signalled(number, at)
    with pytest.raises(KeyboardInterrupt):
        do(tree)
    assert tree.state() == FakeConfigfs().state()


def test_what_could_not_be_undone_is_told_after_a_signal_too() -> None:
    tree = Signalled(signal.SIGTERM, 3)
    tree.stuck = {"hosts/b"}
    with pytest.raises(
        StepFailed, match=r"The run was ended\. Not undone, do it by hand: rmdir \S*/hosts/b \("
    ) as told:
        do(tree)
    assert len(told.value.left) == 1
    assert tree.names("hosts") == ["b"]


def test_a_signal_that_is_ignored_stays_ignored_and_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        for around in (terminable, deferred, shielded):
            with around():
                signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, ignored)
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize(
    ("stuck", "failing", "left"),
    [("mkdir hosts/c", 0, "cba"), ("rmdir hosts/b", 3, "ba")],
    ids=["a step", "what undoes one"],
)
def test_beside_what_the_kernel_does_not_end_nothing_is_tried_and_all_that_is_left_is_told(
    stuck: str, failing: int, left: str
) -> None:
    class Waiting(FakeConfigfs):
        def mkdir(self, path: str) -> None:
            self._wait(f"mkdir {path}")
            super().mkdir(path)

        def rmdir(self, path: str) -> None:
            self._wait(f"rmdir {path}")
            super().rmdir(path)

        def _wait(self, change: str) -> None:
            if change == stuck:
                raise KernelWaits(110, "not ended within 30 s")

    tree = Waiting()
    tree.fail_at = failing
    with pytest.raises(StepFailed, match="Not undone, do it by hand: ") as told:
        do(tree)
    assert [one.split()[1][-1] for one in told.value.left] == list(left)
    assert tree.names("hosts") == ["a", "b"]
