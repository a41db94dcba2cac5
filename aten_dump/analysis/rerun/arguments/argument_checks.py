"""What is asked of the arguments of an op before it runs: sizes, shapes, indices, so that none ends the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....errors import ReplayError
from ....store.op_names import read_op_name
from .index_checks import check_indices
from .memory_need import check_made
from .shape_checks import check_shapes


def check_arguments(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that an op can be run with these arguments.

    Raises:
        ReplayError: it would take more memory than there is, or reach beyond its tensors.
    """
    arguments = op._schema.arguments
    given = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    given |= dict(zip([argument.name for argument in arguments], args, strict=False)) | dict(kwargs)
    namespace, name, _ = read_op_name(op.name())
    if namespace == "aten":
        try:
            check_shapes(name, given)
            check_indices(name, given)
        except ReplayError:
            raise
        except (KeyError, AttributeError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise ReplayError(f"its arguments are none of {op.name()}: {type(error).__name__}: {error}") from error
    check_made(op, args, kwargs)
