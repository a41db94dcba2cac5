"""The precision in which each side computes. Its effects count as rounding, except for casts at single places.

Theory of operation
    Autocast, another dtype of the weights and casts of a parallel layout set the precision of a whole program. A
    comparison reports that in a note. A cast that the program makes at some calls alone, while its other products keep
    the dtype they have in the other program, is a finding: one program does it and the other does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

from ...dump import Call, RankDump
from ...dump.shown.source_lines import is_beyond_torch
from ..evidence.findings import Finding, Row, place_of
from ..flow.computed_dtype import calls_by_dtype, dtype_text, is_of_most_products
from ..flow.counterparts import Side

_CASTS: Final = frozenset(f"torch.Tensor.{name}" for name in ("to", "type", "type_as", "half", "bfloat16"))
_NAMES: Final = ("target", "baseline")
_SIDES: Final[tuple[Side, Side]] = (0, 1)

ByDtype = dict[torch.dtype, list[Call]]


def precisions_of(
    ranks: tuple[RankDump, RankDump], *, cast_sources: bool, in_target_order: Callable[[Call], int]
) -> tuple[list[Finding], list[str]]:
    """Return findings and notes about dtypes of one side that are coarser than all dtypes of the other.

    A finding is the first cast to a dtype that some products of a side have, but not most.

    Args:
        ranks: the target and the baseline.
        cast_sources: True if the sides hold their weights in different dtypes.
        in_target_order: gives the id of the target's call at which a baseline's call stands.
    """
    findings, notes = [], []
    by_dtype = [calls_by_dtype(rank) for rank in ranks]
    for side in _SIDES:
        for dtype, calls in _coarser(by_dtype[side], by_dtype[1 - side]).items():
            cast = next((call for call in calls if _is_cast_by_the_program(call)), None)
            if cast is None or cast_sources or is_of_most_products(ranks[side], dtype):
                notes.append(_note(side, dtype, calls))
            else:
                at = in_target_order(cast) if side else cast.id
                findings.append(_finding(cast, side, dtype, at))
    return findings, notes


def _note(side: Side, dtype: torch.dtype, calls: Sequence[Call]) -> str:
    return (
        f"the {_NAMES[side]} computes in {dtype_text(dtype)} ({len(calls)} calls, {calls[0].name} the first), "
        f"the {_NAMES[1 - side]} does not: what differs by that counts as rounding"
    )


def _coarser(ours: ByDtype, theirs: ByDtype) -> ByDtype:
    """Return the calls of one side by dtype, for dtypes that are coarser than all of the other side."""
    coarsest = max((torch.finfo(dtype).eps for dtype in theirs), default=1.0)
    return {dtype: calls for dtype, calls in ours.items() if torch.finfo(dtype).eps > coarsest}


def _is_cast_by_the_program(call: Call) -> bool:
    """Return True if a line outside of torch rounds a tensor to a coarser dtype."""
    parent = call.parent
    if parent is None or parent.op not in _CASTS or (call.stack and not is_beyond_torch(call.stack[0])):
        return False
    given, made = (next((v for _, v in values), None) for values in (call.input_values(), call.output_values()))
    if given is None or made is None or not given.is_floating or given.dtype.is_complex:
        return False
    return torch.finfo(given.dtype).eps < torch.finfo(made.dtype).eps


def _finding(cast: Call, side: Side, dtype: torch.dtype, at: int) -> Finding:
    there = place_of(cast)
    row = Row(None if side else there, there if side else None, "", "output", "different")
    text = (
        f"it rounds to {dtype_text(dtype)}, in which the {_NAMES[1 - side]} computes nowhere, "
        f"and the {_NAMES[side]} few of its products"
    )
    return Finding("dtype", row, text, "", (at, 0))
