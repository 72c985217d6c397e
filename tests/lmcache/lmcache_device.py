# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The real store on a simulated disk, whose reads of one block can be spoiled, refused or kept waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import kvstore
from kvstore.testing import SimDisk

ALWAYS = 1_000_000


class Disk:
    """A formatted simulated disk.

    Attributes
    ----------
    path : what ``kvstore.open`` takes.
    """

    def __init__(self, size: str = "128MiB", region_bytes: str = "4MiB") -> None:
        self._disk = SimDisk(size)
        self.path = self._disk.path
        superblock = kvstore.format(self.path, region_bytes=region_bytes, min_block_bytes=4096)[0]
        self._payload_offset = superblock["geometry"]["data_offset"]

    def corrupt(self, pool: Any, chosen: Callable[[bytes], bool]) -> None:
        """Flip a bit in the middle of the payload of one block."""
        offset = (block := _block(pool, chosen)).offset_bytes + block.nbytes // 2
        self._disk.poke(offset, bytes([self._disk.peek(offset, 1)[0] ^ 0x10]))

    def refuse(self, pool: Any, chosen: Callable[[bytes], bool]) -> None:
        """Answer reads of one block with EIO from now on."""
        self._fault("error", _block(pool, chosen))

    def hold(self, pool: Any, chosen: Callable[[bytes], bool] = lambda key: True) -> None:
        """Leave reads of blocks unanswered from now on, until ``let_go``. Only the first one chosen, in key order."""
        self._fault("stuck", _block(pool, chosen))

    def refuse_writes(self, *, skip: int, times: int) -> None:
        """Answer writes of payloads with EIO, after ``skip`` more of them."""
        self._disk.fault("error", op="write", first_byte=self._payload_offset, skip=skip, times=times)

    def _fault(self, fault: Any, block: Any) -> None:
        last_byte = block.offset_bytes + block.nbytes - 1
        self._disk.fault(fault, op="read", first_byte=block.offset_bytes, last_byte=last_byte, times=ALWAYS)

    def wait_for_held(self) -> None:
        """Wait until a read is held."""
        end = time.monotonic() + 10
        while not self._disk.stuck_count:
            assert time.monotonic() < end, "no read was held"
            time.sleep(0.002)

    @property
    def holds(self) -> bool:
        return self._disk.stuck_count > 0

    def let_go(self) -> None:
        """Heal the disk and answer what is held."""
        self._disk.clear_faults()
        self._disk.release_stuck()

    def let_go_after(self, delay_s: float) -> None:
        threading.Thread(target=lambda: (time.sleep(delay_s), self.let_go()), daemon=True).start()

    def remove(self) -> None:
        self.let_go()
        self._disk.remove()


def _block(pool: Any, chosen: Callable[[bytes], bool]) -> Any:
    pool.flush()
    return min((block for block in pool.blocks() if chosen(block.key)), key=lambda block: block.key)
