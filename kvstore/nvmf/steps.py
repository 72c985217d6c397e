# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Step: one operation on a tree, with what undoes it. ``apply`` does all of them, or none.

Guarantees: after a step that failed, or a signal that ends the run, everything before it is undone, in reverse, and the
tree is as it was; where that fails, too, the error says what is left. A signal waits for the end of a step, and of
undoing. No key is ever part of a text.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kvstore.errors import KvStoreError
from kvstore.nvmf.signals import deferred, shielded
from kvstore.nvmf.tree import KernelWaits, Tree

__all__ = ["NotedStep", "RestoreStep", "Step", "StepFailed", "apply"]

Action = Literal["mkdir", "rmdir", "write", "link", "unlink"]


class StepFailed(KvStoreError):
    """A step could not be done; says which, why, and whether all is as before: ``left`` could not be undone."""

    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """One operation.

    ``value`` is what is written, or where a link leads. ``undo`` are the operations that take it back, in their order.
    """

    action: Action
    path: str
    value: str = field(default="", repr=False)  # it may be a key
    undo: tuple[Step, ...] = ()
    is_secret: bool = False

    def do(self, tree: Tree) -> None:
        """OSError: the kernel refuses it."""
        if self.action == "write":
            tree.write(self.path, self.value)
        elif self.action == "link":
            tree.link(self.path, self.value)
        else:
            {"mkdir": tree.mkdir, "rmdir": tree.rmdir, "unlink": tree.unlink}[self.action](self.path)

    def command(self, root: Path) -> str:
        """As a shell's, to read or to do by hand."""
        path = shlex.quote(str(root / self.path))
        if self.action == "write":
            return f"printf %s {'KEY' if self.is_secret else shlex.quote(self.value)} > {path}"
        if self.action == "link":
            return f"ln -s {shlex.quote(str(root / self.value))} {path}"
        return f"{'rm' if self.action == 'unlink' else self.action} {path}"


@dataclass(frozen=True)
class RestoreStep(Step):
    """Writes what an attribute was, unless it is that: some attributes take no write of what they are."""

    def do(self, tree: Tree) -> None:
        """OSError: the kernel refuses it."""
        if tree.read(self.path) != self.value:
            super().do(tree)


@dataclass(frozen=True)
class NotedStep(Step):
    """One after which something is to be noted."""

    note: Callable[[], None] = lambda: None

    def do(self, tree: Tree) -> None:
        """OSError: the kernel refuses it, or it cannot be noted; it is not done then."""
        super().do(tree)
        try:
            self.note()
        except OSError:
            for back in self.undo:
                back.do(tree)
            raise


def apply(steps: Sequence[Step], tree: Tree, root: Path, mend: Callable[[Step, OSError], str]) -> None:
    """Do all steps.

    Parameters
    ----------
    root : of the tree, for texts.
    mend : what to say of a step that the kernel refused.

    Raises
    ------
    StepFailed : see above; also where the run was ended and not all could be undone.
    """
    done: list[Step] = []
    try:
        for step in steps:
            with deferred():  # a step that is done and not noted would not be undone
                step.do(tree)
                done.append(step)
    except BaseException as error:
        with shielded():
            if isinstance(error, KernelWaits):
                # It may be done yet, and what undoes it comes first: nothing is tried beside it.
                left = _undo([*done, steps[len(done)]], tree, root, is_stuck=True)
            else:
                left = _undo(done, tree, root)
        if isinstance(error, OSError):
            step = steps[len(done)]
            told = f"{step.command(root)}: {error.strerror or error}. {mend(step, error)}"
        elif left:
            told = "The run was ended."
        else:
            raise
        end = f"Not undone, do it by hand: {'; '.join(left)}" if left else "All is as it was before."
        failed = StepFailed(f"{told} {end}")
        failed.left = tuple(left)
        raise failed from error


def _undo(done: Sequence[Step], tree: Tree, root: Path, *, is_stuck: bool = False) -> list[str]:
    """In reverse; what could not be, as commands.

    One that fails keeps no other from being tried; one that the kernel does not end does: the rest would wait, too.
    """
    left = []
    for step in reversed(done):
        for back in step.undo:
            if is_stuck:
                left.append(back.command(root))
                continue
            try:
                back.do(tree)
            except OSError as error:
                is_stuck = isinstance(error, KernelWaits)
                left.append(f"{back.command(root)} ({error.strerror or error})")
    return left
