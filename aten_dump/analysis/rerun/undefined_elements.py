"""Which elements of a call's results depend on memory that nothing had written: it is run with other bytes there.

Theory of operation
    An element *depends* on such memory if it comes out otherwise with other finite numbers there. One that does not may
    still, if what lies there is NaN or Inf: 0 times it. Then it depends on it where NaN or Inf was recorded. An op that
    picks, sorts or compares numbers may make the same of two sets of them by chance: it is run with more, of other
    orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import torch

from ...dump import Call, Value
from ...errors import AtenDumpError
from .memory_need import check_given
from .run_op import SECOND_FILL, bits, find_op, is_view_op, recorded_slots, result_slots, run_in, same_bits
from .shared_memory import FALLING, HIGHEST, LOWEST, RISING, Moment, Surroundings, moment_of

MAY_DEPEND: Final = 1  # if NaN or Inf lies in that memory
DEPENDS: Final = 2
_NAN: Final = 0xFF
_ALL: Final = torch.tensor(DEPENDS, dtype=torch.uint8)


def undefined_elements(call: Call, unwritten: Mapping[Moment, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return for each element of a call's results whether it depends on memory that nothing had written, by slot.

    Args:
        call: an aten call.
        unwritten: the same of each byte of storages; of others, values that are undefined count as a whole.

    Returns:
        uint8 tensors of 0, `MAY_DEPEND` and `DEPENDS`.

    Raises:
        ReplayError, MissingDataError: it cannot be run; the message says why.
    """
    op = find_op(call)
    blank = any(v.undefined and v.numel and moment_of(v) not in unwritten for _, v in call.input_values())
    if blank and is_view_op(op):  # it is not run: a view of a few elements may lie in a buffer of gigabytes
        return {slot: _ALL.expand(made.shape) for slot, made in recorded_slots(call) if isinstance(made, Value)}
    check_given({value.id: value for _, value in call.input_values()}.values(), cast=False)

    def run(fill: int, least: int = DEPENDS) -> dict[str, Any]:
        told = {moment: undefined >= least for moment, undefined in unwritten.items()}
        return dict(result_slots(run_in(op, call, Surroundings(fill=fill, unwritten=told))))

    first, second = run(0), run(SECOND_FILL)
    others, third = [second], second
    with suppress(AtenDumpError):
        third = run(_NAN, MAY_DEPEND)
    recorded = {slot: value for slot, value in recorded_slots(call) if isinstance(value, Value)}
    if not all(value.is_floating for value in recorded.values()):
        for fill in (RISING, FALLING, LOWEST, HIGHEST):
            with suppress(AtenDumpError):  # as indices they may be out of range
                others.append(run(fill))
    found = {}
    for slot, value in recorded.items():
        if not isinstance(first.get(slot), torch.Tensor):
            continue
        if any(getattr(made.get(slot), "shape", None) != value.shape for made in (first, *others)):
            found[slot] = _ALL.expand(value.shape)  # how many elements it has depends on that memory
            continue
        may = _unlike(first[slot], third[slot])
        depends = may & _not_finite(value)
        for made in others:
            depends = depends | _unlike(first[slot], made[slot])
        found[slot] = (depends * DEPENDS).maximum(may * MAY_DEPEND).to(torch.uint8)
    return found


def _not_finite(recorded: Value) -> torch.Tensor:
    known = recorded.is_floating and recorded.has_data and recorded.layout_name == "strided"
    return ~recorded.shared_tensor().isfinite() if known else torch.tensor(False)


def _unlike(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return which elements of two results differ, bit by bit; all where that is unknown."""
    whole = torch.ones(one.shape, dtype=torch.bool)
    if same_bits(one, other):
        return ~whole
    if one.shape != other.shape or one.layout is not torch.strided or one.is_quantized:
        return whole
    elements = (bits(item).view(one.numel(), -1) for item in (one, other))
    return torch.ne(*elements).any(1).view(one.shape)
