"""Why a call made NaN or Inf, as far as the numbers of its tensors show."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ...dump import Call
from ...dump.loss_scale import LossScale
from ...dump.shown.short_texts import format_exactly
from ...store.op_names import is_collective, read_op_name
from .value_range import Contents, greatest_of

OF_UNWRITTEN: Final = "it depends on memory that nothing had written (torch.empty)"
_OVERFLOW: Final = "overflow of "


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of a call, and what is known of it."""

    name: str
    value: int
    dtype: str
    contents: Contents


@dataclass(frozen=True, slots=True)
class Why:
    """What the numbers suggest of a call that made NaN or Inf."""

    text: str
    is_exact: bool = False  # its infinities are the right result: what is computed from them and finite is right, too


def explain(call: Call, inputs: list[Slot], bad: list[Slot], given: list[Slot], undefined: bool) -> Why:
    """Return what the numbers suggest about a call that made NaN or Inf.

    Args:
        call: the call.
        inputs: its floating inputs.
        bad: its results that are not finite.
        given: its inputs that are not finite: masks.
        undefined: what is not finite depends on memory that nothing had written.
    """
    doubt = _doubt(call, given, undefined)
    if doubt:
        return Why(doubt)
    pole = _pole(call, inputs, bad)
    if pole:
        return Why(pole, is_exact=not any(slot.contents.nan for slot in bad))
    base = read_op_name(call.op).name.removeprefix("_foreach_").rstrip("_")
    infinite = next((slot for slot in bad if slot.contents.posinf or slot.contents.neginf), None)
    greatest = max(((_size(slot), slot.dtype) for slot in inputs), default=(0.0, bad[0].dtype))
    if infinite is None and (base in _NORMS or greatest[0] > greatest_of(bad[0].dtype)):
        infinite = bad[0]  # of infinite squares, or in a dtype that has no infinity
    if infinite is not None:
        limit = greatest_of(infinite.dtype)
        return Why(
            f"{_OVERFLOW}{infinite.dtype}, whose greatest number is {format_exactly(limit, infinite.dtype)}; "
            f"the greatest input is {format_exactly(*greatest)}"
        )
    return Why("an operation that has no result: 0/0, or inf - inf on the way")


def _doubt(call: Call, given: list[Slot], undefined: bool) -> str:
    """Return what may have brought NaN or Inf into a call, whatever the op computes; "" for nothing."""
    if is_collective(call.op):
        return "a collective: another rank sent it, see that rank's dump, or the sum overflowed"
    if any(number != number for number in numbers_given(call)):
        return "the program gave it NaN as a number"
    if given:
        return "it makes NaN of a mask: a row that is masked entirely, or 0 * inf"
    return OF_UNWRITTEN if undefined else ""


def _pole(call: Call, inputs: list[Slot], bad: list[Slot]) -> str:
    """Return the inputs for which the op has no finite result; "" for none."""
    base = read_op_name(call.op).name.removeprefix("_foreach_").rstrip("_")
    is_nan = any(slot.contents.nan for slot in bad)
    if base in _DIVISIONS and _may_divide_by_zero(call, inputs):
        return "a division by zero: 0/0" if is_nan and base not in _REMAINDERS else "a division by zero"
    if base in _NO_RESULT and is_nan and not (base in _NORMS and _squares_overflow(inputs)):
        return _NO_RESULT[base]
    if base in _POLES:
        return _POLES[base]
    least = min((slot for slot in inputs if slot.contents.low is not None), key=_low, default=None)
    for names, limit, text in _CAUSES:
        if base in names and (least is None or _low(least) <= limit):
            return text if least is None else f"{text}: {_odd(least, limit)}"
    return ""


def _may_divide_by_zero(call: Call, inputs: list[Slot]) -> bool:
    """Return True if what a division is given last is the number zero, or may have an element that is."""
    args = call.inputs[0]
    number = args[1] if len(args) > 1 else None
    if isinstance(number, (int, float, complex)):
        return number == 0
    divisor = inputs[-1].contents if inputs else None
    return divisor is None or divisor.low is None or divisor.low <= 0 <= (divisor.high or 0.0)


def _squares_overflow(inputs: list[Slot]) -> bool:
    """Return True if the square of an element of an input is beyond its dtype's greatest number, or float32's."""
    return any(_size(slot) > math.sqrt(max(greatest_of(slot.dtype), greatest_of("float32"))) for slot in inputs)


def _low(slot: Slot) -> float:
    return math.inf if slot.contents.low is None else slot.contents.low


def _size(slot: Slot) -> float:
    return max(abs(slot.contents.low or 0.0), abs(slot.contents.high or 0.0))


def _odd(slot: Slot, limit: float) -> str:
    """Return the element that an op has no result for: the least, or of an op without such a limit the greatest."""
    low, high = _low(slot), slot.contents.high
    ends = (low,) if math.isfinite(limit) or high is None else (low, high)
    return format_exactly(max(ends, key=abs), slot.dtype)


def numbers_given(call: Call) -> Iterator[float | complex]:
    """Yield the floating numbers among a call's arguments."""
    args, kwargs = call.inputs
    waiting: list[Any] = [*args, *kwargs.values()]
    while waiting:
        item = waiting.pop()
        if isinstance(item, (list, tuple)):
            waiting += item
        elif isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, (float, complex)):
            yield item


def explain_scaled(
    why: str, bad: tuple[Slot, ...], inputs: tuple[Slot, ...], update: LossScale, written_by: str
) -> str | None:
    """Explain an Inf of a backward by a gradient scaler that found it; None if no scaler did.

    Without the scale, what the call was given would have been in range.

    Args:
        why: what the numbers suggest of the call.
        bad: its results that are not finite.
        inputs: its floating inputs.
        update: what the scaler did.
        written_by: the call that wrote it on to the parameters all the same; "" where the step was skipped.
    """
    scale = update.scale
    if not update.found_inf or scale is None or scale <= 1 or not why.startswith(_OVERFLOW):
        return None
    sizes = map(_size, inputs)
    if any(slot.contents.nan for slot in bad) or max(sizes, default=0.0) / scale > greatest_of(bad[0].dtype):
        return None
    text = f"{why}; under a loss scale of {scale:.6g}: the gradient scaler found it"
    if written_by:
        return f"{text}, but the optimizer's step ran: {written_by} wrote what came of it to memory that is left"
    then = "" if update.next_scale is None else f"; the next scale is {update.next_scale:.6g}"
    return f"{text} and skipped the optimizer's step{then}"


_REMAINDERS: Final = frozenset(("remainder", "fmod"))
_DIVISIONS: Final = frozenset(("div", "true_divide", "floor_divide", "addcdiv", "reciprocal")) | _REMAINDERS
_NORMS: Final = ("native_layer_norm", "native_group_norm", "native_batch_norm", "_fused_rms_norm")
_FLAT: Final = "the variance of a row or channel is zero, and eps is too"
# What NaN means that these make of finite inputs.
_NO_RESULT: Final = {
    "nll_loss_forward": "a mean over no element: every target is ignored",
    "nll_loss2d_forward": "a mean over no element: every target is ignored",
    "mean": "a mean over no element",
    "var": "a variance of too few elements",
    "std": "a deviation of too few elements",
    "var_mean": "a variance of too few elements",
    **dict.fromkeys(_NORMS, _FLAT),
}
# What NaN or Inf means that these make of finite inputs.
_GAMMA: Final = "a pole of the gamma function: zero or a negative whole number"
_SINGULAR: Final = "a matrix that cannot be inverted"
_POLES: Final = {
    "logit": "a logit of 0, of 1, or of what is no probability",
    "erfinv": "an argument of -1 or 1, or beyond them",
    "lgamma": _GAMMA,
    "digamma": _GAMMA,
    "polygamma": _GAMMA,
    "linalg_inv_ex": _SINGULAR,
    "_linalg_solve_ex": _SINGULAR,
    "_ctc_loss": "a target that its input is too short for (zero_infinity=True takes its loss for zero)",
    "_cudnn_ctc_loss": "a target that its input is too short for (zero_infinity=True takes its loss for zero)",
}
# Op, and the input up to which it is the cause.
_CAUSES: Final = (
    (frozenset(("log", "log2", "log10", "xlogy")), 0.0, "a logarithm of zero or less"),
    (frozenset(("log1p",)), -1.0, "a logarithm of zero or less: log1p of -1 or less"),
    (frozenset(("sqrt",)), -math.ulp(0.0), "a square root of a negative number"),
    (frozenset(("rsqrt",)), 0.0, "an inverse square root of zero or less"),
    (frozenset(("pow",)), 0.0, "a power that has no result: zero to a negative, or a root of a negative"),
    (frozenset(("acos", "asin", "atanh")), math.inf, "an argument outside of [-1, 1]"),
)
