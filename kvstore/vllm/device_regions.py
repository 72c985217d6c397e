# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Where the blocks of a KV cache in GPU memory are, by nothing but addresses, shapes and strides.

Guarantees: the same regions as vLLM's own view gives for a cache in host memory (a test compares them), or a refusal
that names the layer: what is not understood would be stored wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvstore._transfer import Region
from kvstore.errors import ConfigError


def device_regions(kv_caches: Mapping[str, Any], kv_cache_config: Any, group_ids: list[int]) -> dict[int, list[Region]]:
    """The regions of each KV cache group, in the order of its layers.

    Parameters
    ----------
    kv_caches : one tensor for each layer; of it ``data_ptr``, ``shape``, ``stride``, ``dtype`` and ``device`` are used.
    kv_cache_config : vLLM's.
    group_ids : the groups whose blocks are stored.

    Raises
    ------
    ConfigError : a layer that is no attention layer, or whose blocks are not each in one piece.
    """
    found = {}
    for group_id in group_ids:
        group = kv_cache_config.kv_cache_groups[group_id]
        layers: dict[tuple[int, int, int], list[str]] = {}  # some layers are the same memory
        for name in group.layer_names:
            spec = getattr(group.kv_cache_spec, "kv_cache_specs", {}).get(name, group.kv_cache_spec)
            place = _place(name, kv_caches[name], kv_cache_config.num_blocks, spec)
            layers.setdefault(place, []).append(name)
        found[group_id] = [
            Region(tuple(names), address, stride, nbytes, kv_cache_config.num_blocks)
            for (address, stride, nbytes), names in layers.items()
        ]
    return found


def _place(name: str, tensor: Any, blocks: int, spec: Any) -> tuple[int, int, int]:
    """Address, stride and bytes of a layer's blocks."""
    nbytes = getattr(spec, "unpadded_page_size_bytes", None)
    if nbytes is None:
        raise ConfigError(
            f"layer {name}: KVStoreConnector takes attention layers in GPU memory, and this one is a "
            f"{type(spec).__name__}: use KVStoreTier"
        )
    item_bytes = int(tensor.dtype.itemsize)
    shape = [int(size) for size in tensor.shape]
    strides = [int(tensor.stride(number)) * item_bytes for number in range(len(shape))]
    if shape[0] % blocks:
        raise ConfigError(f"layer {name} has {shape[0]} blocks of the kernel's for {blocks} of vLLM's: use KVStoreTier")
    run = item_bytes
    inner = sorted((stride, size) for stride, size in zip(strides[1:], shape[1:], strict=True) if size != 1)
    parts = shape[0] // blocks  # vLLM's block may be several of the kernel's
    for stride, size in [*inner, *([(strides[0], parts)] if parts > 1 else [])]:
        if stride != run:
            raise ConfigError(
                f"the KV cache's layout has blocks of layer {name} in pieces: {run} bytes every {stride}; choose "
                "another with VLLM_KV_CACHE_LAYOUT"
            )
        run *= size
    if run != nbytes:
        raise ConfigError(f"layer {name}: a block has {run} bytes, and vLLM says {nbytes}: use KVStoreTier")
    return int(tensor.data_ptr()), strides[0] * parts, run
