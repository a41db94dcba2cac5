"""Rules about arguments, by the names of the ops that they are for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

Named = Mapping[str, Any]  # arguments by the names of the schema
_Rule = TypeVar("_Rule")


def rule_for(names: str, rule: _Rule) -> dict[str, _Rule]:
    """Return a table that has one rule for each of these ops, without overload: ``"gather scatter"``."""
    return dict.fromkeys(names.split(), rule)


def rule_of(rules: Mapping[str, _Rule], name: str) -> _Rule | None:
    """Return the rule for an op; ops in place have that of the op that they are named after."""
    return rules.get(name) or rules.get(name.rstrip("_"))


@lru_cache(maxsize=4096)
def arguments_of(op: Any) -> tuple[tuple[str, ...], Named]:
    """Return the names of an op's arguments in order, and their defaults; torch makes the schema anew when asked."""
    arguments = op._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    return tuple(argument.name for argument in arguments), defaults
