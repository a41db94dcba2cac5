"""Rules of the user's: for calls and slots that match a regular expression, what counts as the same.

Theory of operation
    Rules are tried in order; the first whose expression is found in ``{call name}.{slot}`` decides alone, above any
    noise floor. A predicate is a Python callable of `Metrics`, or a text such as ``rel_l2 <= 1e-3 and cosine > 0.999``
    over the fields of `Metrics`, parsed and never executed as code; ``ignore`` lets everything through. Rules fail
    closed: a predicate that cannot be evaluated (no tensors, a NaN, an exception in the callable) is not met.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from ...errors import ConfigError
from ...patterns import regular_expression
from ..distance.metrics import Metrics
from ..yaml_file import load_yaml

Predicate: TypeAlias = "str | Callable[[Metrics], bool]"
IGNORE: Final = "ignore"

_FIELDS: Final = frozenset(field.name for field in dataclasses.fields(Metrics)) | {"bitwise"}
_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_SHOWN: Final = 100  # characters of a pattern
_FAILURES: Final = (ArithmeticError, TypeError, ValueError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Rule:
    """A regular expression and a predicate."""

    pattern: str
    predicate: Predicate

    def __post_init__(self) -> None:
        regular_expression(self.pattern, f"rule {self.pattern!r:.{_SHOWN}}")
        if isinstance(self.predicate, str) and self.predicate != IGNORE:
            _check(self.predicate)

    def __str__(self) -> str:
        return f"{self.pattern}: {self.predicate}"

    def met(self, metrics: Metrics | None) -> bool:
        """Return True if the predicate holds; False if it cannot be evaluated."""
        if self.predicate == IGNORE:
            return True
        if metrics is None:
            return False
        try:
            if callable(self.predicate):
                return self.predicate(metrics) is True
            return _evaluate(ast.parse(self.predicate, mode="eval").body, metrics) is True
        except _FAILURES:
            return False


def find_rule(rules: Sequence[Rule], name: str, op: str = "") -> Rule | None:
    """Return the first rule whose expression is found in `name`, or in the name of the op."""
    return next((rule for rule in rules if re.search(rule.pattern, name) or re.search(rule.pattern, op)), None)


def make_rules(rules: Iterable[Rule | tuple[str, Predicate]]) -> tuple[Rule, ...]:
    """Return rules from rules and pairs, checked."""
    return tuple(rule if isinstance(rule, Rule) else Rule(*rule) for rule in rules)


def read_rules(path: str | os.PathLike[str]) -> tuple[Rule, ...]:
    """Read rules from a YAML list of one-entry mappings ``- pattern: predicate``.

    Raises:
        ConfigError: the file is missing or holds something else.
    """
    file = Path(path)
    loaded = load_yaml(file, "rules", "are")
    if not isinstance(loaded, list) or not all(isinstance(item, dict) for item in loaded):
        raise ConfigError(f"rules {file} must be a list of '- pattern: predicate', in the order they are tried in")
    return tuple(Rule(str(pattern), str(predicate)) for item in loaded for pattern, predicate in item.items())


def parse_rule(text: str) -> Rule:
    """Read ``pattern: predicate``; the last ``: `` divides them."""
    pattern, colon, predicate = text.rpartition(": ")
    if not colon:
        raise ConfigError(f"rule {text!r} has no ': '; write 'pattern: predicate', as in 'softmax: rel_l2 <= 1e-2'")
    return Rule(pattern, predicate.strip())


def _check(text: str) -> None:
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the parser's, where it is nested deeply
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigError(f"rule predicate {text!r:.{_SHOWN}} is not an expression: {why}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in _FIELDS:
            raise ConfigError(f"rule predicate {text!r} names {node.id!r}; allowed: {', '.join(sorted(_FIELDS))}")
        if not isinstance(node, _ALLOWED):
            raise ConfigError(
                f"rule predicate {text!r} has a {type(node).__name__}; allowed are comparisons of numbers and fields, "
                "joined by and, or, not"
            )


_ALLOWED: Final = (
    ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, *_COMPARE, ast.Name, ast.Load,
    ast.Constant,
)  # fmt: skip


def _evaluate(node: ast.AST, metrics: Metrics) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            found = getattr(metrics, name)
            if isinstance(found, float) and math.isnan(found):
                raise ValueError(name)
            return found
        case ast.UnaryOp(ast.USub(), operand):
            return -_evaluate(operand, metrics)
        case ast.UnaryOp(ast.Not(), operand):
            return not _evaluate(operand, metrics)
        case ast.BoolOp(op, values):
            found = [_evaluate(value, metrics) for value in values]
            return all(found) if isinstance(op, ast.And) else any(found)
        case ast.Compare(left, ops, comparators):
            items = [_evaluate(item, metrics) for item in (left, *comparators)]
            return all(_COMPARE[type(op)](a, b) for op, a, b in zip(ops, items, items[1:], strict=False))
    raise TypeError(type(node).__name__)
