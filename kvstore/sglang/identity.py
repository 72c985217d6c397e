# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""The identity of a space: all that must be equal for a page of one SGLang rank to be right for another.

SGLang's page keys cover tokens and cache salt, nothing else. Here are the model, the rank's share of it, and how the
host pool writes it down, the dtype among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvstore.errors import ConfigError
from kvstore.sglang import compat
from kvstore.sglang.config import WHERE

#: Pieces of a page one after the other, as ``get_page_buffer_meta`` lists them.
PIECES = "pieces"
#: A page as ``get_data_page`` flattens it, for SGLang's generic calls.
FLAT = "flat"


def rank_identity(storage_config: Any, added: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the identity that the model and the rank give.

    Parameters
    ----------
    storage_config : SGLang's ``HiCacheStorageConfig``.
    added : what the user adds.

    Raises
    ------
    ConfigError : nothing names the model.
    """
    of = storage_config
    model = added.get("model") or of.model_name
    if not model:
        raise ConfigError(f'SGLang gives no name of the model: add "identity": {{"model": "…"}} to {WHERE}')
    fields = {
        **added,
        "engine": "sglang",
        "door": "hicache",
        "model": model,
        "pp": [of.pp_rank, of.pp_size],
        "cp": [of.attn_cp_rank, of.attn_cp_size],
    }
    if of.dcp_size > 1:
        fields["dcp"] = [of.dcp_rank, of.dcp_size]
    # With MLA every rank of a tensor-parallel group holds the same bytes, whatever the size of the group.
    fields["tp"] = "replicated" if of.is_mla_model else [of.tp_rank, of.tp_size]
    return fields


def pool_identity(host_pool: Any, pieces: Sequence[int], form: str, added: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the identity that a host pool gives.

    Parameters
    ----------
    pieces : bytes of each piece of a page; empty when the pool does not say.
    form : ``PIECES`` or ``FLAT``.
    added : what the user adds.

    Raises
    ------
    ConfigError : the pool's dtype may be one of several, and ``added`` does not say which.
    """
    dtype = compat.dtype_of(host_pool)
    if compat.is_ambiguous(dtype) and "kv_cache_dtype" not in added:
        raise ConfigError(
            f"the host pool is {dtype}, which is how SGLang keeps both fp8_e4m3 and fp8_e5m2, and their bytes must not "
            f'meet: add "identity": {{"kv_cache_dtype": "fp8_e4m3"}} (or what you run) to {WHERE}'
        )
    return {
        "dtype": dtype,
        "layout": str(host_pool.layout),
        "page_tokens": compat.page_tokens(host_pool),
        "form": form,
        "pieces": list(_runs(pieces)),
        "shape": [f"{name}={value}" for name, value in compat.shape_of(host_pool).items()],
    }


def _runs(pieces: Sequence[int]) -> list[str]:
    """Equal pieces in a row as one text: the layer_first layout has hundreds."""
    runs: list[list[int]] = []
    for size in pieces:
        if runs and runs[-1][1] == size:
            runs[-1][0] += 1
        else:
            runs.append([1, size])
    return [f"{count}x{size}" for count, size in runs]
