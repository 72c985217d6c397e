# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What surrounds the backend in SGLang: its factory, a host pool, and the controller that loads and stores.

SGLang's modules of the pool and the controller import what no machine without a GPU has. So the methods that matter
here are taken out of its source as they are, and put on small classes: addresses of pages, and the loops that call the
backend are SGLang's own code.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import logging
import mmap
from collections.abc import Sequence
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.mem_cache import hicache_storage
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
from sglang.srt.mem_cache.utils import get_storage_hash_str

SRT = Path(importlib.util.find_spec("sglang").origin).parent / "srt"  # type: ignore[union-attr, arg-type]


def methods_of(file: str, class_name: str, names: Sequence[str], **namespace: Any) -> dict[str, Any]:
    """Compile methods out of SGLang's source.

    Parameters
    ----------
    file : below SGLang's ``srt`` folder.
    namespace : the names of the module that they use.
    """
    methods = [node for node in _class_in(file, class_name).body if getattr(node, "name", None) in names]
    scope = _run(file, methods, namespace)
    return {name: scope[name] for name in names}  # a KeyError: SGLang renamed it


def class_of(file: str, class_name: str) -> Any:
    """Compile a whole dataclass out of SGLang's source."""
    names = {"dataclass": dataclasses.dataclass, "field": dataclasses.field, "List": list}
    return _run(file, [_class_in(file, class_name)], names)[class_name]


def _class_in(file: str, class_name: str) -> ast.ClassDef:
    tree = ast.parse((SRT / file).read_text())
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)


def _run(file: str, code: Sequence[ast.stmt], namespace: dict[str, Any]) -> dict[str, Any]:
    module = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), *code], type_ignores=[])
    scope = {"__name__": __name__, **namespace}
    exec(compile(ast.fix_missing_locations(module), str(SRT / file), "exec"), scope)
    return scope


class HostPool:
    """A host pool of a multi-head model, or with ``mla`` of one with latent attention, in page-aligned memory."""

    def __init__(
        self,
        layout: str = "page_first",
        dtype: torch.dtype = torch.bfloat16,
        *,
        pages: int = 8,
        page_size: int = 16,
        layers: int = 4,
        heads: int = 2,
        head_dim: int = 64,
        mla: bool = False,
    ) -> None:
        self.layout, self.dtype, self.device, self.pin_memory = layout, dtype, "cpu", False
        self.page_size, self.page_num, self.size = page_size, pages, pages * page_size
        self.logical_page_size = page_size
        self.layer_num, self.start_layer, self.end_layer = layers, 0, layers
        self.head_num, self.head_dim, self.kv_cache_dim = heads, head_dim, heads * head_dim
        self.dcp_size = 1
        dims = _MLA["init_dims"](self) if mla else _MHA["init_dims"](self)
        count = int(torch.tensor(dims).prod())
        self._memory = mmap.mmap(-1, count * dtype.itemsize)
        self.kv_buffer = torch.frombuffer(self._memory, dtype=torch.uint8).view(dtype).reshape(dims)
        self._methods = _MLA if mla else _MHA

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.__dict__.get("_methods", {}):
            raise AttributeError(name)
        return self._methods[name].__get__(self)

    def indices(self, *pages: int) -> torch.Tensor:
        """Of all tokens of some pages, as SGLang gives them."""
        return torch.cat([torch.arange(page * self.page_size, (page + 1) * self.page_size) for page in pages])

    def fill(self, seed: int) -> None:
        """Bytes that no other seed gives."""
        raw = self.kv_buffer.view(torch.uint8)
        raw.copy_(torch.randint(0, 256, raw.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)))

    def write(self, page: int, content: bytes) -> None:
        """Put ``content`` into one page, piece after piece."""
        pointers, sizes = self.get_page_buffer_meta(self.indices(page))
        base, at = self.kv_buffer.data_ptr(), 0
        for pointer, size in zip(pointers, sizes, strict=True):
            self._memory[pointer - base : pointer - base + size] = content[at : at + size]
            at += size

    def zero(self) -> None:
        self.kv_buffer.view(torch.uint8).zero_()

    def page(self, page: int) -> bytes:
        """The bytes of one page."""
        pointers, sizes = self.get_page_buffer_meta(self.indices(page))
        base = self.kv_buffer.data_ptr()
        return b"".join(
            self._memory[pointer - base : pointer - base + size] for pointer, size in zip(pointers, sizes, strict=True)
        )


def _mha_dims(pool: HostPool) -> tuple[int, ...]:
    page, layer, head, dim = pool.page_size, pool.layer_num, pool.head_num, pool.head_dim
    return {
        "layer_first": (2, layer, pool.size, head, dim),
        "page_first": (2, pool.size, layer, head, dim),
        "page_first_direct": (2, pool.page_num, layer, page, head, dim),
        "page_head": (2, pool.page_num, head, page, layer, dim),
    }[pool.layout]


def _mla_dims(pool: HostPool) -> tuple[int, ...]:
    return {
        "layer_first": (pool.layer_num, pool.size, 1, pool.kv_cache_dim),
        "page_first": (pool.size, pool.layer_num, 1, pool.kv_cache_dim),
    }[pool.layout]


_PAGES = ("get_page_buffer_meta", "get_data_page", "get_dummy_flat_data_page", "set_from_flat_data_page")
_MHA = {
    **methods_of("mem_cache/pool_host/mha.py", "MHATokenToKVPoolHost", _PAGES, torch=torch),
    "init_dims": _mha_dims,
}
_MLA = {
    **methods_of(
        "mem_cache/pool_host/mla.py", "MLATokenToKVPoolHost", ("get_page_buffer_meta", "_storage_page_index"),
        torch=torch,
    ),
    "init_dims": _mla_dims,
}  # fmt: skip
# What _storage_page_index compares with.
HostPool.logical_size = property(lambda self: self.size)  # type: ignore[attr-defined]


def storage_config(path: str, *, extra: dict[str, Any] | None = None, **rank: Any) -> Any:
    """SGLang's config of one rank; the first of one, and ``path`` with the fast interface, unless said otherwise."""
    fields: dict[str, Any] = {
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1,
        "is_mla_model": False, "enable_storage_metrics": False, "is_page_first_layout": True, "model_name": "tiny",
    }  # fmt: skip
    config = {
        "backend_name": "kvstore",
        "module_path": "kvstore.sglang",
        "class_name": "KVStoreHiCache",
        "interface_v1": 1,
        "path": path,
        **(extra or {}),
    }
    return hicache_storage.HiCacheStorageConfig(**{**fields, **rank}, extra_config=config)


def create_backend(path: str, **options: Any) -> Any:
    return StorageBackendFactory.create_backend("dynamic", storage_config(path, **options), None)


class Controller:
    """The parts of SGLang's cache controller that call a storage backend."""

    def __init__(self, backend: Any, host_pool: HostPool) -> None:
        self.storage_backend, self.storage_host_pool, self.mem_pool_host = backend, host_pool, host_pool
        self.page_size = host_pool.page_size
        self.prefetch_sync_queue: Queue[Any] = Queue()
        self.page_get_func, self.page_set_func = self._page_get_zero_copy, self._page_set_zero_copy

    def use_generic_calls(self) -> None:
        """As SGLang does without interface_v1."""
        self.page_get_func, self.page_set_func = self._generic_page_get, self._generic_page_set

    def backup(self, tokens: list[int], pages: Sequence[int]) -> int:
        """Store the pages that hold ``tokens``; return how many tokens are in the store."""
        operation = self._operation(tokens, pages)
        operation.hash_value = get_storage_hash_str(tokens, page_size=self.page_size)
        self._page_backup(operation)
        return operation.completed_tokens

    def prefetch(self, tokens: list[int], pages: Sequence[int]) -> int:
        """Load what is there of ``tokens`` into pages; return how many pages hold theirs."""
        operation = self._operation(tokens, pages)
        operation.hash_value, _ = self._storage_hit_query(operation)
        operation.host_indices = operation.host_indices[: len(operation.hash_value) * self.page_size]
        return self._page_transfer(operation)

    def _operation(self, tokens: list[int], pages: Sequence[int]) -> Any:
        return SimpleNamespace(
            request_id="request", token_ids=tokens, last_hash=None, host_indices=self.mem_pool_host.indices(*pages),
            prefix_keys=[], completed_tokens=0, hash_value=[], pool_transfers=None, is_terminated=lambda: False,
        )  # fmt: skip


_CALLS = (
    "_page_get_zero_copy",
    "_page_set_zero_copy",
    "_generic_page_get",
    "_generic_page_set",
    "_page_transfer",
    "_page_transfer_kv_batch",
    "_page_backup",
    "_storage_hit_query",
)
for _name, _method in methods_of(
    "managers/cache_controller.py",
    "HiCacheController",
    _CALLS,
    HiCacheStorageExtraInfo=hicache_storage.HiCacheStorageExtraInfo,
    STORAGE_BATCH_SIZE=hicache_storage.STORAGE_BATCH_SIZE,
    PoolName=hicache_storage.PoolName,
    PoolTransfer=hicache_storage.PoolTransfer,
    count_pool_hits=hicache_storage.count_pool_hits,
    get_storage_hash_str=get_storage_hash_str,
    PrefetchAck=SimpleNamespace,
    logger=logging.getLogger("sglang"),
).items():
    setattr(Controller, _name, _method)
