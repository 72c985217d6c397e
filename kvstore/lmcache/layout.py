# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Layout: the shapes, dtypes and format of an in-process memory object, for any number of tokens.

A layout is kept once, as text in the space's identity, so that it is part of what a key means; a block carries only
its index there and its token count, in the descriptor's meta. Formats and dtypes are named, not numbered: LMCache
numbers formats by position.
"""

from __future__ import annotations

import dataclasses
import math
import struct

import torch
from lmcache.v1.memory_management import MemoryFormat, MemoryObj
from lmcache.v1.metadata import LMCacheMetadata

_TOKENS = -1
_META = struct.Struct("<BBHI")  # version, layout index, reserved, tokens
_META_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Layout:
    """One format and the groups of one memory object.

    Parameters
    ----------
    format_name : name of a ``MemoryFormat``.
    groups : dtype name and dimensions of each group; the one dimension that counts tokens is -1.
    """

    format_name: str
    groups: tuple[tuple[str, tuple[int, ...]], ...]

    def __str__(self) -> str:
        groups = (f"{dtype}[{','.join('T' if d == _TOKENS else str(d) for d in dims)}]" for dtype, dims in self.groups)
        return " ".join([self.format_name, *groups])

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read what ``str`` wrote.

        Raises
        ------
        ValueError : not a layout.
        """
        format_name, *groups = text.split(" ")
        parsed = []
        for group in groups:
            dtype, bracket, dims = group.rstrip("]").partition("[")
            if not bracket:
                raise ValueError(f"not a layout: {text!r}")
            parsed.append((dtype, tuple(_TOKENS if d == "T" else int(d) for d in dims.split(","))))
        if not parsed:
            raise ValueError(f"not a layout: {text!r}")
        return cls(format_name, tuple(parsed))

    @property
    def format(self) -> MemoryFormat:
        return MemoryFormat[self.format_name]

    @property
    def is_binary(self) -> bool:
        """Whether the object is a run of bytes, as a serializer makes it; its "tokens" are bytes then."""
        return self.format is MemoryFormat.BINARY_BUFFER

    @property
    def token_bytes(self) -> int:
        if self.is_binary:
            return 1
        return sum(
            math.prod(d for d in dims if d != _TOKENS) * getattr(torch, dtype).itemsize for dtype, dims in self.groups
        )

    def tokens_in(self, payload_bytes: int) -> int | None:
        """Return how many tokens these bytes are; None when they are not a whole number of them, or none."""
        tokens, rest = divmod(payload_bytes, self.token_bytes)
        return tokens if tokens > 0 and rest == 0 else None

    def shapes(self, tokens: int) -> list[torch.Size]:
        return [torch.Size(tokens if d == _TOKENS else d for d in dims) for _, dims in self.groups]

    def dtypes(self) -> list[torch.dtype | None]:
        return [None if self.is_binary else getattr(torch, dtype) for dtype, _ in self.groups]

    def fits(self, memory_obj: MemoryObj) -> bool:
        """Whether ``memory_obj`` would come back the same if it were rebuilt from its size and this layout."""
        if memory_obj.get_memory_format().name != self.format_name:
            return False
        tokens = self.tokens_in(memory_obj.get_size())
        return tokens is not None and _groups_of(memory_obj) == list(
            zip(self.shapes(tokens), self.dtypes(), strict=True)
        )


def _groups_of(memory_obj: MemoryObj) -> list[tuple[torch.Size, torch.dtype | None]]:
    meta = memory_obj.metadata
    if meta.shapes is None or meta.dtypes is None:
        return [(memory_obj.get_shape(), memory_obj.get_dtype())]
    return list(zip(memory_obj.get_shapes(), memory_obj.get_dtypes(), strict=True))


def describe_object(memory_obj: MemoryObj) -> str:
    """Name an object's format, shapes and dtypes, for a message."""
    groups = " ".join(f"{str(dtype).removeprefix('torch.')}{list(shape)}" for shape, dtype in _groups_of(memory_obj))
    return f"{memory_obj.get_memory_format().name} {groups}"


def layouts_of_engine(metadata: LMCacheMetadata, *, layerwise: bool, blending: bool, binary: bool) -> list[Layout]:
    """Work out which layouts this engine stores, in the order of their indexes.

    Parameters
    ----------
    metadata : of the engine, after it knows its KV layer groups.
    layerwise, blending : the engine's ``use_layerwise`` and ``enable_blending``.
    binary : a serializer other than the naive one turns every object into bytes.

    Returns
    -------
    the layout of whole chunks (index 0); with ``layerwise`` also that of one layer of a chunk (index 1).
    """
    if binary:
        return [Layout(MemoryFormat.BINARY_BUFFER.name, (("uint8", (_TOKENS, 0, 0, 0)),))]
    names = [str(dtype).removeprefix("torch.") for dtype in metadata.get_dtypes()]
    # Dimension 2 of [kv, layers, tokens, hidden] counts tokens, in every group.
    dims = [(shape[0], shape[1], _TOKENS, shape[3]) for shape in metadata.get_shapes(1)]
    chunk_format = MemoryFormat.KV_MLA_FMT if metadata.use_mla else MemoryFormat.KV_2LTD
    layouts = [Layout(chunk_format.name, tuple(zip(names, dims, strict=True)))]
    if layerwise:
        hidden = dims[0][3]
        if metadata.use_mla:
            layer = Layout(MemoryFormat.KV_MLA_FMT.name, ((names[0], (_TOKENS, hidden)),))
        elif blending:
            layer = Layout(MemoryFormat.KV_2TD.name, ((names[0], (2, _TOKENS, hidden)),))
        else:
            layer = Layout(MemoryFormat.KV_T2D.name, ((names[0], (_TOKENS, 2, hidden)),))
        layouts.append(layer)
    return layouts


def pack_meta(layout_index: int, tokens: int) -> bytes:
    """Make the descriptor's meta of one block."""
    return _META.pack(_META_VERSION, layout_index, 0, tokens)


def unpack_meta(meta: bytes) -> tuple[int, int]:
    """Read the layout index and the token count of one block.

    Raises
    ------
    ValueError : not written by this version.
    """
    if len(meta) != _META.size or meta[0] != _META_VERSION:
        raise ValueError(f"not the meta of an in-process LMCache block: {meta.hex()}")
    _, layout_index, _, tokens = _META.unpack(meta)
    return layout_index, tokens
