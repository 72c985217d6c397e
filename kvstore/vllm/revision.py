# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Which weights a model's name stands for here.

vLLM's keys have the tokens and its configuration for tiers has the model's name, and neither says which weights. Two
checkpoints saved at one path, or two revisions of one name, would read each other's keys and values. So the revision is
part of the space: the commit of a model in the Hugging Face cache, or a digest of the files of a local model. Where
neither tells it, the user must, because a guess would be wrong bytes some day.

The digest reads samples of each file of weights, not all of it: fine-tuning changes nearly every weight, and a
checkpoint that differs in fewer places than are sampled must be told apart by the setting ``revision``.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from kvstore.errors import ConfigError

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SAMPLE_BYTES = 4096
_SAMPLES = 64


def revision_of(model: str, where: str) -> str:
    """Tell the revision of the weights.

    Parameters
    ----------
    model : a folder, a file, or a name in the Hugging Face cache.
    where : names the tier, for messages.

    Raises
    ------
    ConfigError : it cannot be told; the message says what to set.
    """
    path = Path(model)
    if path.exists():
        try:
            return _digest([path] if path.is_file() else _files(path), model, where)
        except OSError as error:
            raise ConfigError(f"{where}.revision is missing, and the weights cannot be read: {error}") from None
    commits = sorted(entry.name for entry in _snapshots(model).glob("*") if entry.is_dir())
    if len(commits) == 1:
        return commits[0]
    found = f"{len(commits)} revisions of it are" if commits else "no revision of it is"
    raise ConfigError(
        f"{where}.revision is missing: which weights {model!r} stands for cannot be told, {found} in the Hugging Face "
        "cache here, and KV blocks of other weights would be wrong; set it to the revision you serve"
    )


def _snapshots(model: str) -> Path:
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    return cache / f"models--{model.replace('/', '--')}" / "snapshots"


def _files(folder: Path) -> list[Path]:
    weights = [path for path in folder.iterdir() if path.suffix in _WEIGHTS and path.is_file()]
    return sorted([*folder.glob("config.json"), *weights])


def _digest(files: list[Path], model: str, where: str) -> str:
    if not any(path.suffix in _WEIGHTS for path in files):
        raise ConfigError(f"{where}.revision is missing: {model} has no files of weights to tell it from; set it")
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}:".encode())
        step = max(_SAMPLE_BYTES, size // _SAMPLES)
        with path.open("rb") as file:
            for offset in range(0, size, step):
                file.seek(offset)
                digest.update(file.read(_SAMPLE_BYTES))
    return f"files:{digest.hexdigest()}"
