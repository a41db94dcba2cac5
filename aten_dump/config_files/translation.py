"""What becomes of the keys of another tool's config."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import ConfigError

REGEX: Final = "name-regex("  # of both tools: name-regex(...)


@dataclass
class Translation:
    """Fields of DumpConfig, and for each key what became of it.

    Args:
        tool: whose config it is; ``"aten_dump"`` for ours.
        source: names the file in errors.
    """

    tool: str
    source: str
    fields: dict[str, Any] = field(default_factory=dict)
    mapped: dict[str, str] = field(default_factory=dict)  # key -> the fields it set, as text
    without_meaning: dict[str, str] = field(default_factory=dict)  # key -> why, and what there is in its place

    def put(self, key: str, **fields: Any) -> None:
        """Note that a key set some fields."""
        self.fields.update(fields)
        self.mapped[key] = ", ".join(f"{name} = {value!r}" for name, value in fields.items())

    def drop(self, key: str, why: str) -> None:
        """Note that a key has no meaning here."""
        self.without_meaning[key] = why

    def choose(self, key: str, found: object, allowed: Mapping[Any, Any]) -> Any:
        """Return what a value stands for.

        Raises:
            ConfigError: it is none of those allowed.
        """
        if isinstance(found, str | int) and not isinstance(found, bool) and found in allowed:
            return allowed[found]
        raise self.wrong(key, found, ", ".join(repr(one) for one in allowed))

    def wrong(self, key: str, found: object, allowed: str) -> ConfigError:
        """Return the error for a value that the other tool does not allow either."""
        return ConfigError(f"{self.source}: {key} is {found!r:.200}; {self.tool} allows: {allowed}")

    def strings(self, key: str, found: object) -> list[str]:
        """Return a list of strings; a single one counts as a list of it."""
        names = [found] if isinstance(found, str) else found
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self.wrong(key, found, "a list of strings")
        return names

    def each(self, keys: Mapping[str, Any], table: Mapping[str, Callable[[Translation, str, Any], None]]) -> None:
        """Translate all keys by a table; a key that is not in it is an error.

        Raises:
            ConfigError: the other tool has no such key.
        """
        unknown = sorted(set(keys) - set(table))
        if unknown:
            raise ConfigError(
                f"{self.source} has unknown keys {', '.join(unknown)}; {self.tool} has: {', '.join(table)}"
            )
        for key, found in keys.items():
            table[key](self, key, found)


@dataclass(frozen=True, slots=True)
class OtherConfig:
    """A config of another tool: how it is known by its fields, and how they are translated; a text names the file."""

    is_theirs: Callable[[Mapping[str, Any]], bool]
    translate: Callable[[Mapping[str, Any], str], Translation]


def numbers(found: Iterable[object]) -> str:
    """Return ints and ranges such as ``"2-4"`` in our grammar; ``"all"`` for none."""
    return "|".join(str(one) for one in found) or "all"


def pattern(name: str) -> str:
    """Return a name, a part of one, or ``name-regex(...)`` as DumpConfig.ops has it."""
    if name.startswith(REGEX) and name.endswith(")"):
        return f"regex:{name[len(REGEX) : -1]}"
    return name


def no_meaning(why: str) -> Callable[[Translation, str, Any], None]:
    """Return a translator that drops a key."""
    return lambda translation, key, found: translation.drop(key, why)


def path_field(translation: Translation, key: str, found: object) -> None:
    """Take the directory of the dump."""
    if not isinstance(found, str) or not found:
        raise translation.wrong(key, found, "a directory's path")
    translation.put(key, path=os.fspath(found))
