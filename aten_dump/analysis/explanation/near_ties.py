"""Choices among floating-point numbers in which the two sides differ: a router's experts, a greedy token.

Theory of operation
    Both sides compute the same scores, and rounding decides which of two nearly equal ones is greater. The evaluation
    continues with one side's choice on both sides (`evaluation`). A choice is a near tie if the two scores differ by no
    more than the two recordings of them do. Otherwise rounding does not explain the choice, and the note says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from ...dump import Call, Value
from ...store.op_names import read_op_name
from ..evaluation.evaluation import Evaluation
from ..evaluation.memory import UNREADABLE
from ..evidence.evidence_rows import Pair

_CHOOSE: Final = {  # op -> position of its dim, default of the dim, slot of the indices
    "aten::topk": (2, -1, "output.1"),
    "aten::sort": (1, -1, "output.1"),
    "aten::argmax": (1, None, "output.0"),
    "aten::argmin": (1, None, "output.0"),
    "aten::max": (1, None, "output.1"),
    "aten::min": (1, None, "output.1"),
}
_ORDERED: Final = "aten::sort"
_MOST: Final = 8  # most calls to name


def near_ties(sides: tuple[Evaluation, Evaluation], pairs: Sequence[Pair]) -> list[str]:
    """Return sentences about choices in which the sides differ although their scores are the same."""
    found = [text for pair in pairs if (text := _of_pair(sides, pair)) is not None]
    more = len(found) - _MOST
    return [*found[:_MOST], *([f"{more} more calls choose otherwise"] if more > 0 else [])]


def _of_pair(sides: tuple[Evaluation, Evaluation], pair: Pair) -> str | None:
    calls = pair.target, pair.baseline
    known = _CHOOSE.get(read_op_name(calls[0].op).without_overload)
    if calls[0].op != calls[1].op or known is None or not sides[0].flow.takes_part(calls[0]):
        return None
    scores = [dict(call.input_values()).get("input.0") for call in calls]
    chosen = [dict(call.output_values()).get(known[2]) for call in calls]
    if not all(isinstance(one, Value) and one.has_data for one in (*scores, *chosen)):
        return None
    numbers = [side.numbers.get(one.id) for side, one in zip(sides, scores, strict=True) if one is not None]
    if numbers[0] is None or numbers[0] != numbers[1]:
        return None  # other scores, which is a difference of its own
    try:
        read = [one.shared_tensor() for one in (*scores, *chosen) if one is not None]
    except UNREADABLE:
        return None
    text = _text(calls[0], _dim_of(calls[0], *known[:2]), read)
    if text is None or sides[0].chooser != "target":  # a note of its own says whose choice it is
        return text
    return f"{text}; both sides are compared with the target's choice"


def _dim_of(call: Call, position: int, default: int | None) -> int | None:
    args, kwargs = call.shared_inputs()
    given: Any = kwargs.get("dim", args[position] if position < len(args) else default)
    return given if isinstance(given, int) and not isinstance(given, bool) else default


def _text(call: Call, dim: int | None, read: Sequence[torch.Tensor]) -> str | None:
    if read[0].shape != read[1].shape or not read[0].is_floating_point():
        return None
    ours, theirs = (_rows(one.double(), dim) for one in read[:2])
    chosen = [_rows(one, dim) if dim is not None else one.reshape(1, -1) for one in read[2:]]
    if chosen[0].shape != chosen[1].shape or chosen[0].shape[0] != ours.shape[0] or torch.equal(*chosen):
        return None
    if not call.op.startswith(_ORDERED):
        chosen = [one.sort(-1).values for one in chosen]
    rows = (chosen[0] != chosen[1]).any(-1).nonzero().flatten().tolist()
    if not rows:
        return None
    margins = [_margin(ours[row], theirs[row], chosen[0][row], chosen[1][row]) for row in rows]
    margin, apart = max(margins)
    first = rows[0]
    one, other = next(_changes(chosen[0][first], chosen[1][first]))
    where = f" ({call.where})" if call.where else ""
    share = f"{len(rows)} of {len(chosen[0])} rows"
    return (
        f"near tie: {call.name}{where} chooses otherwise in {share}, first in row {first}: "
        f"{one} where the baseline has {other}; the scores are at most {margin:.2g} apart, "
        f"those of the two sides differ by {apart:.2g} there"
    )


def _rows(tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
    """Return a tensor with the dimension of the choice as the last one, and one other dimension."""
    if dim is None or tensor.dim() == 0:
        return tensor.reshape(1, -1)
    if not -tensor.dim() <= dim < tensor.dim():
        return tensor.reshape(-1, 1)  # the dimension is gone: one choice for each row
    return tensor.movedim(dim, -1).reshape(-1, tensor.shape[dim])


def _changes(ours: torch.Tensor, theirs: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Yield each choice of one side alone, with the choice that the other made instead."""
    mine, yours = ours.tolist(), theirs.tolist()
    alone = [one for one in mine if one not in yours], [other for other in yours if other not in mine]
    if alone[0]:
        yield from zip(*alone, strict=False)
    else:  # the same, in another order
        yield from ((one, other) for one, other in zip(mine, yours, strict=True) if one != other)


def _margin(ours: torch.Tensor, theirs: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """Return the distance of the two scores of a choice, and how far apart the two recordings of them are."""
    changes = torch.tensor(list(_changes(one, other)))
    margin = (ours[changes[:, 0]] - ours[changes[:, 1]]).abs().max()
    noise = (ours[changes] - theirs[changes]).abs().sum(-1).max()
    return float(margin), float(noise)
