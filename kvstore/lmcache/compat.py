# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""What kvstore relies on in LMCache beyond its two plug-in interfaces, in one place.

LMCache promises no stability of these, so the version is checked once, at import, and every use of an attribute
that is not part of an abstract interface goes through a function of this file.
"""

from __future__ import annotations

from typing import Any

from kvstore import _releases

TESTED_VERSION = (0, 5, 6)
BELOW_VERSION = (0, 6)


def version_complaint(version: str | None) -> str | None:
    """Say in one sentence why this version of LMCache cannot be used.

    Parameters
    ----------
    version : as pip shows it; None when LMCache is not installed.

    Returns
    -------
    the sentence, or None when the version can be used.
    """
    tested = ".".join(map(str, TESTED_VERSION))
    if version is None:
        return f"kvstore.lmcache needs LMCache, which is not installed here: pip install lmcache=={tested}"
    if not TESTED_VERSION <= _releases.release_numbers(version) < BELOW_VERSION:
        return (
            f"kvstore.lmcache does not support LMCache {version}, whose storage interfaces change between minor "
            f"versions: pip install lmcache=={tested}"
        )
    return None


def installed_version() -> str | None:
    """Return the version of the installed LMCache, or None."""
    return _releases.installed_version("lmcache")


def require_supported_version() -> str:
    """Raise ImportError with one sentence unless the installed LMCache is supported; return its version."""
    version = installed_version()
    complaint = version_complaint(version)
    if complaint is not None:
        raise ImportError(complaint)
    return str(version)


def buffer_of(memory_obj: Any) -> Any:
    """Return what the store reads from or writes to for one LMCache memory object.

    Parameters
    ----------
    memory_obj : a ``MemoryObj``; its logical size counts, not the padded one.

    Returns
    -------
    ``(pointer, nbytes)`` of a tensor-backed object, else its byte buffer. The caller keeps ``memory_obj`` alive.
    """
    if isinstance(memory_obj.raw_data, (bytes, bytearray, memoryview)):
        return memory_obj.byte_array
    return (memory_obj.data_ptr, memory_obj.get_size())


def withhold(memory_obj: Any) -> None:
    """Keep LMCache's allocator from giving this object's memory to anybody else.

    LMCache frees the buffer of an unlocked or failed load whatever its reference count says, while the kernel may
    still write into it. An invalidated object is skipped by every free, so its bytes stay out of circulation.
    """
    memory_obj.invalidate()


def restore(memory_obj: Any) -> None:
    """Undo ``withhold`` for an object that LMCache has not tried to free."""
    memory_obj.valid = True


def give_back(memory_obj: Any) -> None:
    """Free a withheld object whose free LMCache has skipped; call it when no write can follow any more."""
    allocator = memory_obj.parent()
    if allocator is None:
        return
    memory_obj.valid = True
    allocator.free(memory_obj)


def device_buffer(nbytes: int, device: str) -> Any:
    """Memory of a GPU as a tensor of bytes that begins at a multiple of 64 KiB, the page of a GPU."""
    import torch

    page = 64 << 10
    tensor = torch.empty(nbytes + page, dtype=torch.uint8, device=device)
    begin = -tensor.data_ptr() % page
    return tensor[begin : begin + nbytes]


class DeviceBuffer:
    """A part of a GPU's memory that no stream writes any more.

    LMCache hands its storage what it has waited for, and takes back what nobody uses any more.
    """

    def __init__(self, memory_obj: Any) -> None:
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (memory_obj.get_size(),),
            "typestr": "|u1",
            "data": (memory_obj.data_ptr, False),
            "strides": None,
            "stream": None,
        }
