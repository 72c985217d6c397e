# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""HeldDrive: from the time a drive was looked at until it is exported nobody else gets it, and its name leads to it.

Guarantees: a block device is open with O_EXCL, so that it cannot be mounted, partitioned or formatted meanwhile; nvmet
takes no holder, so exporting it goes on. The kernel follows the name when it exports: exported is what was held, or
it is taken back at once.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from kvstore.errors import BusyError
from kvstore.nvmf.steps import Step
from kvstore.nvmf.tree import Tree

__all__ = ["ExportStep", "HeldDrive"]


class HeldDrive:
    """A context manager.

    Raises
    ------
    BusyError : somebody took it since it was looked at.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            # O_NONBLOCK: what the name leads to by now may be anything.
            is_block = Path(path).is_block_device()
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_EXCL if is_block else 0))
        except OSError as error:
            raise BusyError(f"{path} was free and is not any more ({error.strerror}): look what took it") from error

    def __enter__(self) -> HeldDrive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def check_name(self) -> None:
        """OSError (ESTALE): the name leads to another drive than this one."""
        held, named = os.fstat(self._fd), Path(self._path).stat()
        if (held.st_rdev or (held.st_dev, held.st_ino)) != (named.st_rdev or (named.st_dev, named.st_ino)):
            raise OSError(errno.ESTALE, "the name leads to another drive than a moment ago", self._path)


@dataclass(frozen=True)
class ExportStep(Step):
    """Enables a namespace whose drive is held."""

    drive: HeldDrive | None = None

    def do(self, tree: Tree) -> None:
        """OSError: also where the name does not lead to the drive, before or after; nothing is exported then."""
        assert self.drive is not None
        self.drive.check_name()
        super().do(tree)
        try:
            self.drive.check_name()
        except OSError:
            tree.write(self.path, "0")
            raise
