"""What is asked of the arguments of an op before it runs: sizes, shapes, indices, so that none ends the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ....errors import ReplayError
from ....store.op_names import read_op_name
from .index_checks import INDEX_RULES, check_indices
from .memory_need import check_made
from .named_rules import arguments_of, rule_of
from .shape_checks import SHAPE_RULES, check_shapes


def check_arguments(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that an op can be run with these arguments.

    Raises:
        ReplayError: it would take more memory than there is, or reach beyond its tensors.
    """
    name, is_checked = _asked_of(op)
    if is_checked:
        names, defaults = arguments_of(op)
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        try:
            check_shapes(name, given)
            check_indices(name, given)
        except ReplayError:
            raise
        except (KeyError, AttributeError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise ReplayError(f"its arguments are none of {op.name()}: {type(error).__name__}: {error}") from error
    check_made(op, args, kwargs)


@lru_cache(maxsize=4096)
def _asked_of(op: Any) -> tuple[str, bool]:
    """Return the name of an op without overload, and True if there is a rule about its arguments."""
    namespace, name, _ = read_op_name(op.name())
    is_checked = any(rule_of(rules, name) is not None for rules in (SHAPE_RULES, INDEX_RULES))
    return name, namespace == "aten" and is_checked
