# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What kvstore relies on in SGLang beyond the storage interface, in one place, and the releases it was tested with.

SGLang promises no stability of these, so the version is checked once, and every use of an attribute that is not part of
``HiCacheStorage`` goes through a function of this file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from kvstore import _releases

TESTED_VERSION = (0, 5, 23)
BELOW_VERSION = (0, 6)

#: What SGLang itself reads in --hicache-storage-backend-extra-config; it takes some of them out, not on every path.
OF_SGLANG = frozenset(
    {
        "backend_name",
        "module_path",
        "class_name",
        "interface_v1",
        "tp_lcm_size",
        "prefetch_threshold",
        "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token",
        "hicache_storage_pass_prefix_keys",
    }
)

# Of a host pool, beside what is always there: those that say how the bytes of a page are to be read.
_SHAPE = ("layer_num", "start_layer", "end_layer", "head_num", "head_dim", "v_head_dim", "kv_cache_dim")
# How SGLang keeps both kinds of 8-bit floats: the pool does not say which.
_AMBIGUOUS_DTYPES = frozenset({"uint8", "int8"})


def version_complaint(version: str | None) -> str | None:
    """Say in one sentence why this version of SGLang cannot be used.

    Parameters
    ----------
    version : as pip shows it; None when SGLang is not installed.

    Returns
    -------
    the sentence, or None when the version can be used.
    """
    tested = ".".join(map(str, TESTED_VERSION))
    if version is None:
        return f"kvstore.sglang needs SGLang, which is not installed here: pip install sglang=={tested}"
    if not TESTED_VERSION <= _releases.release_numbers(version) < BELOW_VERSION:
        return (
            f"kvstore.sglang does not support SGLang {version}, whose storage interface changes between releases: "
            f"pip install sglang=={tested}"
        )
    return None


def installed_version() -> str | None:
    """Return the version of the installed SGLang, or None."""
    return _releases.installed_version("sglang")


def require_supported_version() -> str:
    """Raise ImportError with one sentence unless the installed SGLang is supported; return its version."""
    version = installed_version()
    complaint = version_complaint(version)
    if complaint is not None:
        raise ImportError(complaint)
    return str(version)


def page_tokens(host_pool: Any) -> int:
    """Return how many host indices one storage page has."""
    return int(getattr(host_pool, "logical_page_size", host_pool.page_size))


def dtype_of(host_pool: Any) -> str:
    """Return the name of the pool's dtype, ``bfloat16``."""
    return str(host_pool.dtype).removeprefix("torch.")


def is_ambiguous(dtype: str) -> bool:
    """Whether a host pool of this dtype may hold more than one kind of number."""
    return dtype in _AMBIGUOUS_DTYPES


def shape_of(host_pool: Any) -> dict[str, int]:
    """Return what else tells apart two pools whose pages have equal sizes."""
    found = {name: getattr(host_pool, name, None) for name in _SHAPE}
    return {name: value for name, value in found.items() if isinstance(value, int) and not isinstance(value, bool)}


def arenas_of(host_pool: Any) -> list[tuple[int, int]]:
    """Return ``(pointer, nbytes)`` of the tensors that the pool's pages lie in."""
    buffers = getattr(host_pool, "kv_buffer", None)
    tensors: Sequence[Any] = buffers if isinstance(buffers, (list, tuple)) else [buffers]
    return [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors if tensor is not None]


def storage_metrics(
    prefetch_pgs: Sequence[int],
    backup_pgs: Sequence[int],
    prefetch_bandwidth: Sequence[float],
    backup_bandwidth: Sequence[float],
) -> Any:
    """Return what ``get_stats`` hands to SGLang's metrics collector, which takes its own class only.

    Parameters
    ----------
    prefetch_pgs, backup_pgs : pages of each batch of loads and of stores.
    prefetch_bandwidth, backup_bandwidth : GB/s of each.

    Returns
    -------
    None when SGLang's collector is not there to take them: its module imports half of SGLang, so it is not imported
    for this.
    """
    collector = sys.modules.get("sglang.srt.observability.metrics_collector")
    if collector is None:
        return None
    return collector.StorageMetrics(
        list(prefetch_pgs), list(backup_pgs), list(prefetch_bandwidth), list(backup_bandwidth)
    )
