"""Which infinities the program put there on purpose."""

from __future__ import annotations

import math
from typing import Final

from ...dump import Call, Value
from ...store.op_names import LIFT_FRESH, read_op_name
from .explanations import Slot, greatest_of, numbers_given

MASK_FILL: Final = 0.45  # a share of the lowest number from which on a negative value is a mask, or half of one
_FACTORIES: Final = frozenset(("ones", "zeros", "eye", "ones_like", "zeros_like", "new_ones", "new_zeros"))
_KEEP_FLAGS: Final = frozenset(
    ("_to_copy", "copy", "clone", "detach", "tril", "triu", "rsub", "mul", "view", "_unsafe_view", "expand", "alias")
) | frozenset(("unsqueeze", "squeeze", "transpose", "t", "permute", "slice", "select", "cat", "stack", "repeat"))
_DEPTH: Final = 16  # calls that a mask is followed back through


def places(call: Call) -> bool:
    """Return True if a call was given an infinity or NaN as a literal: it puts it there on purpose."""
    return any(_odd(number) for number in numbers_given(call))


def is_constant(call: Call, slot: Slot) -> bool:
    """Return True if the program wrote an infinity as a tensor of its own: ``best = torch.tensor(float("inf"))``."""
    return call.op == LIFT_FRESH and slot.contents.count == 1 and not slot.contents.nan


def adds_masks(inputs: list[Slot], bad: list[Slot]) -> bool:
    """Return True if -inf is what became of values that were filled with a dtype's lowest number to mask."""
    if any(slot.contents.nan or slot.contents.posinf for slot in bad):
        return False
    return any(
        slot.contents.low is not None and slot.contents.low <= -MASK_FILL * greatest_of(slot.dtype) for slot in inputs
    )


def makes_mask_of_flags(call: Call, inputs: list[Slot], bad: list[Slot]) -> bool:
    """Return True if -inf was made of the zeros of a mask of zeros and ones: ``mask.float().log()``.

    That they are flags is seen by how they came about: of what is true or whole, of ones and zeros, by nothing that
    computes. Zeros that were computed, as of a softmax that is saturated, are an error.
    """
    if any(slot.contents.nan or slot.contents.posinf for slot in bad):
        return False
    if not inputs or any((slot.contents.low, slot.contents.high) != (0.0, 1.0) for slot in inputs):
        return False
    return all(_are_flags(value, _DEPTH) for _, value in call.input_values())


def _are_flags(value: Value, depth: int) -> bool:
    if not value.is_floating:
        return True
    found = value.producer
    if found is None or not depth:
        return False
    call = found[0]
    base = read_op_name(call.op).name.rstrip("_")
    if base in _FACTORIES:
        return True
    given = call.input_values()
    return base in _KEEP_FLAGS and bool(given) and all(_are_flags(one, depth - 1) for _, one in given)


def _odd(number: float | complex) -> bool:
    parts = (number.real, number.imag) if isinstance(number, complex) else (number,)
    return not all(math.isfinite(part) for part in parts)
