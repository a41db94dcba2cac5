"""Where a recorded op follows torch's default dtype, which may be another here, and is float64 in a float64 replay.

Theory of operation
    Ops that are given floating tensors follow these. A factory without a dtype makes torch's default, and so does what
    makes floating numbers of integers: in a float64 replay both would be float32 among tensors of float64, which some
    ops refuse and which rounds what should be exact. In the recorded dtype a factory would draw other numbers where
    the program had set another default.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from ...dump import Call
from ...store.op_names import read_op_name
from .allowed_ops import allowed_op

_CHOOSES: Final = ("where",)  # among numbers, by a mask that has to be one


def factory_dtype(call: Call, named: dict[str, Any]) -> torch.dtype | None:
    """Return the recorded dtype, to ask for where a factory was given none; `named` has the keyword arguments."""
    made = call.output_values()
    if named.get("dtype") is not None or call.input_values() or not made:
        return None
    asked = any(argument.name == "dtype" and argument.kwarg_only for argument in allowed_op(call.op)._schema.arguments)
    return made[0][1].dtype if asked else None


def makes_floats_of_integers(call: Call) -> bool:
    """Return True if an op makes floating numbers of integers or masks alone, element by element."""
    given = [value for _, value in call.input_values()]
    if not given or any(value.is_floating for value in given):
        return False
    is_pointwise = torch.Tag.pointwise in allowed_op(call.op).tags and read_op_name(call.op).name not in _CHOOSES
    return is_pointwise and any(value.is_floating for _, value in call.output_values())
