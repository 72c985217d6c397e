# SPDX-FileCopyrightText: 2026 the kvstore authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a YAML file.

Guarantees: whatever is in it, it is values or one ConfigError; no name is there twice in a mapping, of which YAML's own
readers keep the last without a word, with the first one's allowed hosts gone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvstore.errors import ConfigError

__all__ = ["read_yaml"]

_BYTES_MAX = 1 << 20
_DEPTH_MAX = 32  # of brackets: PyYAML's own reader takes time by the square of it, and then the stack


def read_yaml(path: Path) -> Any:
    """The value in the file.

    Raises
    ------
    ConfigError : it cannot be read, is no YAML, or names something twice.
    """
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ConfigError("nvmf-setup reads YAML, and PyYAML is missing: pip install 'nvme-kvstore[nvmf]'") from error
    text = _text(path)
    try:
        _check_depth(path, yaml.scan(text, yaml.SafeLoader), yaml)
        _check_names(path, yaml.compose(text, yaml.SafeLoader), yaml)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    # What looks like a date, or bears a tag of YAML's, is made a value by code that raises what it likes.
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path} has a value that YAML cannot read ({error}): write texts in quotes") from error


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise ConfigError(f"{path} has {path.stat().st_size:,} bytes: such a file has a few thousand")
        return path.read_text()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text: {error.reason} at byte {error.start}") from error
    except ValueError as error:  # a name with a NUL
        raise ConfigError(f"{str(path)!r} is no file name: {error}") from error


def _check_depth(path: Path, tokens: Any, yaml: Any) -> None:
    begins = (yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken, yaml.BlockSequenceStartToken,
              yaml.BlockMappingStartToken)  # fmt: skip
    ends = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)
    depth = 0
    for token in tokens:
        depth += isinstance(token, begins) - isinstance(token, ends)
        if depth > _DEPTH_MAX:
            raise ConfigError(f"{path}, line {token.start_mark.line + 1}: lists within lists, deeper than {_DEPTH_MAX}")


def _check_names(path: Path, root: Any, yaml: Any) -> None:
    """Of every mapping in the file."""
    seen: set[int] = set()  # an alias leads to a node again, and may lead around in a circle
    left = [root]
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left += node.value
        elif isinstance(node, yaml.MappingNode):
            names = [(name.value, name) for name, _ in node.value if isinstance(name, yaml.ScalarNode)]
            for at, (text, name) in enumerate(names):
                if text in [other for other, _ in names[:at]]:
                    raise ConfigError(f"{path}, line {name.start_mark.line + 1}: {text} is there twice")
            left += [value for _, value in node.value]
