"""Reads a config file: its syntax by its suffix, its tool by its keys."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from ..errors import ConfigError
from ..extensions import CONFIGS, extensions
from ..yaml_text import read_yaml
from .translation import Translation

VARIABLES: Final = ("ATEN_DUMP_CONFIG", "MINDSPORE_DUMP_CONFIG")  # the first that is set counts


def read_config_file(path: str | os.PathLike[str]) -> Translation:
    """Read a config file of aten_dump or of another tool.

    Raises:
        ConfigError: the file is missing, is not valid, or holds a key or value that its tool does not allow.
    """
    content = read_named_fields(path)
    source = f"config file {Path(path)}"
    for _, tool in extensions(CONFIGS):
        if tool.is_theirs(content):
            return cast(Translation, tool.translate(content, source))
    return Translation("aten_dump", source, dict(content))


def read_named_fields(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Read what a JSON, TOML or YAML file holds.

    Raises:
        ConfigError: the file is missing, is not valid, or holds no named fields.
    """
    file = Path(path)
    parse = _PARSERS.get(file.suffix.lower())
    if parse is None:
        raise ConfigError(f"config file {file} has suffix {file.suffix!r}; allowed: {', '.join(_PARSERS)}")
    try:
        content = parse(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read config file {file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        found = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError(f"config file {file} is not valid {file.suffix[1:].upper()}: {found}") from error
    if not isinstance(content, Mapping):
        raise ConfigError(f"config file {file} holds a {type(content).__name__}; it must hold named fields")
    for name in _names(content):
        if not isinstance(name, str):
            raise ConfigError(f"config file {file} holds a field named {name!r}, which is no text; put it in quotes")
    return content


def _names(content: object) -> Iterator[object]:
    """Yield the names of all fields; those of YAML may be numbers and dates."""
    waiting = [content]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping | list):
            yield from item if isinstance(item, Mapping) else ()
            waiting += item.values() if isinstance(item, Mapping) else item


def _parse_toml(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    ".json": json.loads,
    ".toml": _parse_toml,
    ".yaml": read_yaml,
    ".yml": read_yaml,
}
