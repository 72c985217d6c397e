# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Pager: a long listing handed out page by page, each page going on where the last one stopped."""

from __future__ import annotations

import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

Entry = TypeVar("Entry")

# Listings that were begun and not read to their end; the oldest is forgotten, and begun again if it is asked for.
_OPEN_MAX = 8
_CURSOR = re.compile(r"(\d{1,18})-(\d{1,18})")


class Page(NamedTuple, Generic[Entry]):
    """Some entries, and the cursor of the next page; None after the last one."""

    entries: list[Entry]
    cursor: str | None


class Pager(Generic[Entry]):
    """Pages of one kind of listing. Thread-safe; pages of different listings are made one after the other.

    Parameters
    ----------
    begin : starts the listing anew.
    """

    def __init__(self, begin: Callable[[], Iterator[Entry]]) -> None:
        self._begin = begin
        self._numbers = itertools.count(1)
        self._open: OrderedDict[int, tuple[int, Iterator[Entry]]] = OrderedDict()
        self._lock = threading.Lock()

    def page(self, size: int, cursor: str | None, keep: Callable[[Entry], bool]) -> Page[Entry]:
        """Return the next ``size`` entries for which ``keep`` is true.

        Parameters
        ----------
        size : at least 1.
        cursor : from the page before; None for the first one.
        keep : the same for every page of a listing.

        Raises
        ------
        ValueError : a bad size or cursor.
        """
        if size <= 0:
            raise ValueError(f"page_size must be at least 1, got {size}")
        with self._lock:
            number, position, entries = self._resume_locked(cursor)
            found: list[Entry] = []
            for entry in entries:
                position += 1
                if keep(entry):
                    found.append(entry)
                    if len(found) == size:
                        self._open[number] = (position, entries)
                        while len(self._open) > _OPEN_MAX:
                            self._open.popitem(last=False)
                        return Page(found, f"{number}-{position}")
            return Page(found, None)

    def _resume_locked(self, cursor: str | None) -> tuple[int, int, Iterator[Entry]]:
        if cursor is None:
            return next(self._numbers), 0, self._begin()
        match = _CURSOR.fullmatch(cursor)
        if match is None:
            raise ValueError(f"not a cursor of this listing: {cursor!r}")
        number, wanted = int(match[1]), int(match[2])
        position, entries = self._open.pop(number, (-1, None))
        if entries is None or position != wanted:
            entries, number = itertools.islice(self._begin(), wanted, None), next(self._numbers)
        return number, wanted, entries
