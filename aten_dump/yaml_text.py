"""YAML that a user wrote, or a stranger: read in time that grows with its length, to no more than it is long.

In: nothing from this package.
Out: plain values.
"""

from __future__ import annotations

import re
from typing import Any, Final

_BRACKET: Final = re.compile(r"[\[\]{}]")
_DEEPEST: Final = 100  # PyYAML's time grows with the square of open brackets
_MOST_ITEMS: Final = 1_000_000  # with all aliases written out, as an error that shows them has them


def read_yaml(text: str) -> Any:
    """Return what a text of YAML holds.

    Raises:
        ValueError: it is not valid, or nested too deeply.
    """
    import yaml

    depth = 0
    for bracket in _BRACKET.findall(text):
        depth = depth + 1 if bracket in "[{" else max(depth - 1, 0)
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply")
    try:
        found = yaml.safe_load(text)
        _count(found, {})
        return found
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (yaml.YAMLError, ArithmeticError, LookupError, TypeError, AttributeError) as error:  # PyYAML's own slips
        raise ValueError(str(error)) from error


def _count(item: Any, known: dict[int, int]) -> int:
    """Return the items of a tree in which many aliases may stand for one list, which is counted each time.

    Raises:
        ValueError: there are too many.
        RecursionError: a list holds itself.
    """
    if not isinstance(item, dict | list):
        return 1
    if id(item) not in known:
        inner = [*item, *item.values()] if isinstance(item, dict) else item
        known[id(item)] = 1 + sum(_count(one, known) for one in inner)
        if known[id(item)] > _MOST_ITEMS:
            raise ValueError("its aliases stand for more than a million items")
    return known[id(item)]
