# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""fio with io_uring, fixed buffers and registered files: the limit that a device and this machine allow.

fio cannot verify random reads that go over a file more than once. So the blocks are laid out with fio's own headers,
one in each 4 KiB page, and after the gets one pass reads and verifies all of them, outside of the time: that says that
what it read was right on the device, not that it arrived. What it puts in measured runs bears no headers and is not
checked.

Its CPU time is that of the whole process, kernel workers of its ring included, less what a run of one block for each of
its threads takes: it makes buffers for all that is in flight before it begins. It is no less than what fio says of its
threads, who know nothing of those workers.

``get`` is random, ``put`` runs through the places in order. Several sizes at once are given to it as ``bssplit``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from kvstore.bench.cpu import CpuTime, cpu_of_children
from kvstore.bench.engines.base import Measured, Op, SelfTimedEngine, Work
from kvstore.bench.places import usable_bytes

__all__ = ["FioEngine"]

_VERIFY = {"stamp": "meta", "full": "xxhash"}


class FioEngine(SelfTimedEngine):
    """Each measurement is a run of the program."""

    name = "fio"

    def __init__(self) -> None:
        self.runs = 0
        self.laid_out = False
        self.version = ""

    def why_not(self) -> str | None:
        return None if shutil.which("fio") else "fio is missing: apt-get install fio"

    def open(self, work: Work) -> None:
        self.work = work
        self.span = work.population * work.row_bytes
        room = usable_bytes(work.paths[0], work.size_bytes)
        if room < self.span:
            raise RuntimeError(f"{work.paths[0]} has room for {room:,} bytes, not for {self.span:,}")
        self.start: dict[Op, CpuTime] = {}
        self._lay_out()

    def _lay_out(self) -> None:
        self._run(
            "--rw=write",
            f"--bs={self.work.row_bytes}",
            "--iodepth=16",
            "--do_verify=0",
            "--end_fsync=1",
            *self._headers(),
        )
        self.laid_out = True

    def _headers(self) -> list[str]:
        check = _VERIFY.get(self.work.verify)
        return [f"--verify={check}", "--verify_interval=4096"] if check else []

    def check(self) -> int:
        if not (self._headers() and self.laid_out):
            return 0
        self._run("--rw=read", f"--bs={self.work.row_bytes}", "--iodepth=16", "--verify_fatal=1", *self._headers())
        return self.work.population

    def measure(self, op: Op, seconds: float | None, blocks: int | None) -> Measured:
        self.runs += 1
        work = self.work
        if op == "put":
            self.laid_out = False
        elif not self.laid_out:
            self._lay_out()
        if op not in self.start:
            self.start[op] = self._measured(op, [f"--io_size={work.row_bytes}"])[1]
        options = []
        if seconds is not None:
            options.append(f"--runtime={max(round(seconds * 1000), 1)}ms")
        if blocks is None:
            options.append("--time_based=1")
        else:
            options.append(f"--io_size={max(blocks // work.numjobs, 1) * work.row_bytes}")
        job, whole = self._measured(op, options)
        used = whole - self.start[op]
        run_s = job["job_runtime"] / 1000
        side = job["read" if op == "get" else "write"]
        return Measured(
            blocks=side["total_ios"],
            bytes=side["io_bytes"],
            seconds=side["runtime"] / 1000,
            latency_ns={int(ns): count for ns, count in side["clat_ns"].get("bins", {}).items()},
            usr_s=max(used.usr, job["usr_cpu"] / 100 * run_s),
            sys_s=max(used.sys, job["sys_cpu"] / 100 * run_s),
        )

    def _measured(self, op: Op, how_long: Sequence[str]) -> tuple[dict[str, Any], CpuTime]:
        """What fio says of a run, and the CPU time of its process."""
        work = self.work
        options = [
            "--rw=randread" if op == "get" else "--rw=write",
            f"--iodepth={work.iodepth}",
            f"--numjobs={work.numjobs}",
            f"--randseed={work.seed + self.runs}",
            "--norandommap=1",
            "--group_reporting=1",
        ]
        if len(work.block_sizes) > 1:
            total = sum(work.weights)
            split = [f"{s}/{round(100 * w / total)}" for s, w in zip(work.block_sizes, work.weights, strict=True)]
            options.append("--bssplit=" + ":".join(split))
        else:
            options.append(f"--bs={work.row_bytes}")
        before = cpu_of_children()
        job = self._run(*options, *how_long)
        return job, cpu_of_children() - before

    def _run(self, *options: str) -> dict[str, Any]:
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
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"fio failed: {done.stderr.strip() or done.stdout.strip()[-500:]}")
        result = json.loads(done.stdout[done.stdout.index("{") :])  # its notes come before
        self.version = result["fio version"]
        job: dict[str, Any] = result["jobs"][0]
        return job

    def processes(self) -> list[int]:
        """None: it says itself what it used."""
        return []

    def close(self) -> None:
        """Nothing is open between its runs."""

    def facts(self) -> dict[str, Any]:
        return {"version": self.version, "path": "io_uring, fixed buffers, registered files"}
