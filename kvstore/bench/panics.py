# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Libraries in Rust panic with what is no ``Exception``: here it becomes one, so that it is an engine's failure and not
the end of this process. What does end the process passes: an interrupt, an exit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["as_error", "panics_as_errors"]


def as_error(failure: BaseException) -> Exception:
    """The failure itself, or an error that tells a panic. Of threads, where nothing ends the process."""
    if isinstance(failure, Exception):
        return failure
    error = RuntimeError(f"{type(failure).__name__}: {failure}")
    error.__cause__ = failure
    return error


@contextlib.contextmanager
def panics_as_errors() -> Iterator[None]:
    """For what the main thread asks of an engine."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as panic:
        raise as_error(panic) from panic
