"""Which elements of a call's results depend on memory that nothing had written: it is run with other bytes there.

Theory of operation
    An element *depends* on such memory if it comes out otherwise with other finite numbers there. One that does not may
    still, if what lies there is NaN or Inf: 0 times it. Then it depends on it where NaN or Inf was recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from ...dump import Call, Value
from ...errors import AtenDumpError
from .arguments.memory_need import check_given
from .run_op import SECOND_FILL, Run, bits, find_op, recorded_slots, result_slots, run_in, same_bits
from .shared_memory import Moment, Surroundings

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
    check_given({value.id: value for _, value in call.input_values()}.values(), cast=False)

    def run(fill: int, least: int) -> Run:
        return run_in(op, call, Surroundings(fill=fill, unwritten={m: u >= least for m, u in unwritten.items()}))

    first, second = (dict(result_slots(run(fill, DEPENDS))) for fill in (0, SECOND_FILL))
    try:
        third = dict(result_slots(run(_NAN, MAY_DEPEND)))
    except AtenDumpError:
        third = second
    found = {}
    for slot, recorded in recorded_slots(call):
        if isinstance(recorded, Value) and isinstance(first.get(slot), torch.Tensor):
            if any(getattr(run.get(slot), "shape", None) != recorded.shape for run in (first, second)):
                found[slot] = _ALL.expand(recorded.shape)  # how many elements it has depends on that memory
                continue
            depends, may = (_unlike(first[slot], other[slot]) for other in (second, third))
            depends |= may & _not_finite(recorded)
            found[slot] = (depends * DEPENDS).maximum(may * MAY_DEPEND).to(torch.uint8)
    return found


def _not_finite(recorded: Value) -> torch.Tensor:
    known = recorded.is_floating and recorded.has_data and recorded.layout_name == "strided"
    return ~recorded.shared_tensor().isfinite() if known else torch.tensor(False)


def _unlike(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return which elements of two results differ, bit by bit; all where that cannot be told."""
    whole = torch.ones(one.shape, dtype=torch.bool)
    if same_bits(one, other):
        return ~whole
    if one.shape != other.shape or one.layout is not torch.strided or one.is_quantized:
        return whole
    elements = (bits(item).view(one.numel(), -1) for item in (one, other))
    return torch.ne(*elements).any(1).view(one.shape)
