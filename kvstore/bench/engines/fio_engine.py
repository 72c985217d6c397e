# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""fio with io_uring, fixed buffers and registered files: the limit that a device and this machine allow.

fio cannot verify random reads that go over a file more than once. So the blocks are laid out with fio's own headers,
one in each 4 KiB page, and bytes behind them that no other laying out has; after the gets one pass reads and verifies
all of it, outside of the time: that says that what it read was right on the device, not that it arrived. What it puts
in measured runs bears no headers and is not checked.

Its CPU time is that of the whole process, kernel workers of its ring included, less what a run of one block for each of
its threads takes: it makes buffers for all that is in flight before it begins. It is no less than what fio says of its
threads, who know nothing of those workers.

``get`` is random, ``put`` runs through the places in order, each thread through a part of its own. Several sizes at
once are given to it as ``bssplit``. It moves whole pages, as all do, and is credited the bytes of the blocks in them.
With Zipf it draws by its own generator; which blocks are popular differs from thread to thread and turn to turn.

``fio`` keeps ``iodepth`` requests in flight, whatever ``iodepth_batch`` says: a new one for each that is done.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from kvstore.bench.content import whole_pages
from kvstore.bench.cpu import CpuTime, cpu_of_children
from kvstore.bench.engines.base import Measured, Op, SelfTimedEngine, Work
from kvstore.bench.engines.processes import PATIENCE_S, outcome, start
from kvstore.bench.places import sync, usable_bytes

__all__ = ["FioBatches", "FioEngine"]

#: Of the bytes behind the headers, which come again and again: no sector or page is like another one.
_PATTERN_BYTES = 509
#: Whoever is slower than this hangs.
_SLOWEST_BYTES_PER_S = 1e6


class FioEngine(SelfTimedEngine):
    """Each measurement is a run of the program."""

    name = "fio"

    def __init__(self) -> None:
        self.runs = 0
        self.laid_out = False
        self.verified_on_device = 0
        self.version = self.pattern = ""

    def why_not(self) -> str | None:
        return None if shutil.which("fio") else "fio is missing: apt-get install fio"

    def open(self, work: Work) -> None:
        self.work = work
        self.span = work.population * work.row_bytes
        room = usable_bytes(work.paths[0], work.size_bytes)
        if room < self.span:
            raise RuntimeError(f"{work.paths[0]} has room for {room:,} bytes, not for {self.span:,}")
        os.close(os.open(work.paths[0], os.O_RDWR | os.O_CREAT, 0o644))  # fails now, and not in the first turn
        self.start: dict[Op, CpuTime] = {}
        self.laid_out = False

    def lay_out(self) -> None:
        if self.laid_out:
            return
        self.pattern = secrets.token_hex(_PATTERN_BYTES)
        self._run(
            self._at_least_s(self.span),
            "--rw=write",
            f"--bs={self.work.row_bytes}",
            "--iodepth=16",
            "--do_verify=0",
            "--end_fsync=1",
            *self._headers(),
        )
        self.laid_out = True

    def flush(self) -> None:
        sync(self.work.paths[0])

    def _headers(self) -> list[str]:
        if self.work.verify == "none":
            return []
        return ["--verify=meta", "--verify_interval=4096", f"--verify_pattern=0x{self.pattern}"]

    def check(self) -> int:
        self.verified_on_device = 0
        if self.work.verify == "none" or not self.laid_out:
            return 0
        self._run(
            self._at_least_s(self.span),
            "--rw=read",
            f"--bs={self.work.row_bytes}",
            "--iodepth=16",
            "--verify_fatal=1",
            *self._headers(),
        )
        self.verified_on_device = self.work.population
        return self.work.population

    def measure(
        self,
        op: Op,
        seconds: float | None,
        blocks: int | None,
        zipf: float | None = None,
        stopped: threading.Event | None = None,
    ) -> Measured:
        self.runs += 1
        work = self.work
        if op == "put":
            self.laid_out = False
        else:
            self.lay_out()
        if op not in self.start:
            self.start[op] = self._measured(op, [f"--io_size={work.row_bytes}"], PATIENCE_S, stopped)[1]
        options = [f"--random_distribution=zipf:{_theta(zipf)}"] if op == "get" and zipf else []
        if seconds is not None:
            options.append(f"--runtime={max(round(seconds * 1000), 1)}ms")
        if blocks is None:
            options.append("--time_based=1")
        else:
            options.append(f"--io_size={max(round(blocks / work.numjobs * self._mean(whole=True)), work.row_bytes)}")
        limit_s = seconds + PATIENCE_S if seconds is not None else self._at_least_s((blocks or 0) * work.row_bytes)
        job, whole = self._measured(op, options, limit_s, stopped)
        used = whole - self.start[op]
        run_s = job["job_runtime"] / 1000
        side = job["read" if op == "get" else "write"]
        return Measured(
            blocks=side["total_ios"],
            bytes=round(side["io_bytes"] * self._mean() / self._mean(whole=True)),
            seconds=side["runtime"] / 1000,
            latency_ns={int(ns): count for ns, count in side["clat_ns"].get("bins", {}).items()},
            usr_s=max(used.usr, job["usr_cpu"] / 100 * run_s),
            sys_s=max(used.sys, job["sys_cpu"] / 100 * run_s),
        )

    def _mean(self, whole: bool = False) -> float:
        """Bytes of a block, or of the pages that it takes."""
        sizes = [whole_pages(size) if whole else size for size in self.work.block_sizes]
        weights = self.work.weights
        return sum(s * w for s, w in zip(sizes, weights, strict=True)) / sum(weights)

    @staticmethod
    def _at_least_s(nbytes: int) -> float:
        """How long it may take to move so much."""
        return nbytes / _SLOWEST_BYTES_PER_S + PATIENCE_S

    def _measured(
        self, op: Op, how_long: Sequence[str], limit_s: float, stopped: threading.Event | None
    ) -> tuple[dict[str, Any], CpuTime]:
        """What fio says of a run, and the CPU time of its process."""
        work = self.work
        options = [
            "--rw=randread" if op == "get" else "--rw=write",
            f"--iodepth={work.iodepth * work.calls}",
            *self._batches(),
            f"--numjobs={work.numjobs}",
            f"--randseed={work.seed + self.runs}",
            "--norandommap=1",
            "--group_reporting=1",
        ]
        if op == "put":
            part = max(work.population // work.numjobs, 1) * work.row_bytes
            options += [f"--size={part}", f"--offset_increment={part}"]
        if len(work.block_sizes) > 1:
            options.append("--bssplit=" + _split(work))
        else:
            options.append(f"--bs={work.row_bytes}")
        before = cpu_of_children()
        job = self._run(limit_s, *options, *how_long, stopped=stopped)
        return job, cpu_of_children() - before

    def _run(self, limit_s: float, *options: str, stopped: threading.Event | None = None) -> dict[str, Any]:
        command = [
            "fio",
            "--name=kvbench",
            f"--filename={self.work.paths[0]}",
            f"--size={self.span}",
            "--ioengine=io_uring",
            "--direct=1",
            "--fixedbufs=1",
            "--registerfiles=1",
            "--thread=1",
            "--invalidate=1",
            "--allow_file_create=1",
            "--verify_state_save=0",
            "--output-format=json+",
            *options,
        ]
        process = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        output, complaint = outcome(process, limit_s, stopped)
        if process.returncode:
            raise RuntimeError(f"fio failed: {complaint.strip() or output.strip()[-500:]}")
        result = json.loads(output[output.index("{") :])  # its notes come before
        self.version = result["fio version"]
        job: dict[str, Any] = result["jobs"][0]
        return job

    def processes(self) -> list[int]:
        """None: it says itself what it used."""
        return []

    def _batches(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing is open between its runs."""

    def facts(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "path": "io_uring, fixed buffers, registered files",
            "verified_on_device": self.verified_on_device,
        }


class FioBatches(FioEngine):
    """Submits the blocks of a call together and waits for all of them: what a call can reach that does nothing else."""

    name = "fio-batches"

    def _batches(self) -> list[str]:
        return [f"--iodepth_batch_submit={self.work.iodepth}", f"--iodepth_batch_complete_min={self.work.iodepth}"]


def _split(work: Work) -> str:
    """Sizes in whole pages with their shares of 100, which fio wants to be whole and to add up."""
    total, upto, told, parts = sum(work.weights), 0.0, 0, []
    for size, weight in zip(work.block_sizes, work.weights, strict=True):
        upto += weight
        share = round(100 * upto / total) - told
        told += share
        parts.append(f"{whole_pages(size)}/{share}")
    return ":".join(parts)


def _theta(zipf: float) -> float:
    """fio refuses 1."""
    return 1.0001 if zipf == 1 else zipf
