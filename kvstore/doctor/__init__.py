# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The doctor: what is wrong, or slower than it need be, about a machine and its devices, and how to mend it.

Guarantees: writes nothing, loads no library of NVIDIA into this process, imports no engine, ends. Opens each device as
its only owner for a moment, to learn who else holds it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from kvstore.doctor import device, software, system
from kvstore.doctor.finding import Finding, Level
from kvstore.doctor.gpu import check_gpu_path
from kvstore.doctor.machine import Machine, Target, find_target

__all__ = ["DEVICE_CHECKS", "MACHINE_CHECKS", "Finding", "Level", "Machine", "Target", "examine", "find_target"]

MACHINE_CHECKS: tuple[Callable[[Machine], Finding], ...] = (
    software.check_package,
    system.check_kernel,
    system.check_uring,
    system.check_memlock,
    system.check_hugepages,
    software.check_lmcache,
    software.check_cuda,
    software.check_cufile,
)

DEVICE_CHECKS: tuple[Callable[[Machine, Target], Finding], ...] = (
    device.check_name,
    device.check_content,
    device.check_direct_io,
    device.check_alignment,
    device.check_write_cache,
    device.check_scheduler,
    device.check_request_size,
    device.check_space,
)


def examine(paths: Sequence[str], machine: Machine | None = None, *, gpu: int | None = None) -> Iterator[Finding]:
    """Run all checks, one finding each.

    Parameters
    ----------
    paths : devices or files of one pool; none: the machine only.
    machine : where to look; this one by default.
    gpu : CUDA's number of one into whose memory the devices are read; None: none is touched.
    """
    machine = machine or Machine()
    for machine_check in MACHINE_CHECKS:
        yield machine_check(machine)
    all_there = bool(paths)
    for path in paths:
        try:
            target = find_target(path)
        except (OSError, ValueError) as error:
            all_there = False
            text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            yield Finding("name", "fail", text, f"kvstore format {path} --size 4GiB makes a file of that name", path)
            continue
        for device_check in DEVICE_CHECKS:
            yield dataclasses.replace(device_check(machine, target), path=path)
    if all_there:
        yield dataclasses.replace(device.check_engine(machine, paths), path=", ".join(paths))
        if gpu is not None:
            yield dataclasses.replace(check_gpu_path(paths, gpu), path=", ".join(paths))
