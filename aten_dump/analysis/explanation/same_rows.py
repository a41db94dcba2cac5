"""Outputs of both sides that have the same rows in other places, as where an engine serves several requests together.

Theory of operation
    All that a program makes at one place is taken as one long list of rows, whatever calls made them. Two lists have
    the same rows if each row is found there, and if what both programs make at all other places, in as many rows,
    allows the same places for it: a row is one word, or one sample, from the first layer to the last. So an output that
    is put back in a wrong order is found, though it holds the right rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from typing import Final

import torch

from ...dump import Call, Value
from ..ends.ends import End
from ..evaluation.evaluation import Evaluation
from ..pairing.call_keys import place_of
from ..signatures.signature import TOLERANCE
from .arrangement import RowSums, alike_rows, can_hold
from .other_rows import Watch, made_in_rows, sums_of

_LEAST_PLACES: Final = 3  # at which both programs make the same rows

Sides = tuple[Evaluation, Evaluation]
_Line = tuple[str, str, str, str, str]  # module, op, phase, slot and line of a call
_Place = tuple[_Line, int]  # of a program, and the size of a row
_Counts = tuple[int, int]  # of the rows of both sides


def let_same_rows_meet(sides: Sides, odd: tuple[Sequence[End], Sequence[End]], watch: Watch) -> str:
    """Let outputs that have the same rows have each other's numbers; return a sentence, "" if they have not.

    Args:
        sides: evaluated.
        odd: their ends that differ.
        watch: evaluates a side once more, and calls a function with each value and its tensor.
    """
    ends = [*odd[0], *odd[1]]
    if not ends or any(end.kind != "output" for end in ends):
        return ""
    lists = _lists_of(sides[0]), _lists_of(sides[1])
    of_ends = {_place_of(side, end) for side, some in zip(sides, odd, strict=True) for end in some}
    wide = {_without_line(place) for place in of_ends if place and not (place in lists[0] and place in lists[1])}
    if wide:  # a program may compute them at one line for a prompt, and at another for each word after it
        of_ends = {_without_line(place) if place and _without_line(place) in wide else place for place in of_ends}
        _add_without_lines(lists, wide)
    counts = {place: (_rows_of(lists[0][place]), _rows_of(lists[1][place])) for place in lists[0] if place in lists[1]}
    if not of_ends <= counts.keys():
        return ""
    groups = _grouped({place: rows for place, rows in counts.items() if place not in wide})
    of_own = {counts[one] for one in of_ends if one and len(groups.get(counts[one], ())) >= _LEAST_PLACES}
    most = max(groups, key=lambda rows: len(groups[rows]))
    checked = of_own or {most}  # where only some rows are output, as the last ones, those of all others must agree
    asked = {place for place in (*(one for rows in checked for one in groups[rows]), *of_ends) if place is not None}
    if not all(can_hold(counts[place]) for place in asked):
        return ""
    sums = [sums_of(side, {value.id for place in asked for value in lists[side][place]}, watch) for side in (0, 1)]
    alike = {place: _alike(sums, (lists[0][place], lists[1][place])) for place in asked}
    for rows in checked:
        found = [one for place in groups[rows] if (one := alike[place]) is not None]
        if len(found) < _LEAST_PLACES or not _has_all(torch.stack(found).all(0)):
            return ""
    if not all(_has_all(alike[place]) for place in of_ends if place is not None):
        return ""
    for side, some in enumerate(odd):
        for end in some:
            if end.number is not None:
                sides[1 - side].holders.setdefault(end.number, [])
    shown = " and ".join(f"{rows[0]} rows against {rows[1]}" for rows in sorted(checked))
    return f"both compute the same rows in other places, {shown}: the outputs have the same"


def _alike(
    sums: Sequence[Mapping[int, RowSums]], lists: tuple[Sequence[Value], Sequence[Value]]
) -> torch.Tensor | None:
    """Return which rows of two lists are the same, bool[rows, rows there]; None if not all were made."""
    if any(value.id not in sums[side] for side in (0, 1) for value in lists[side]):
        return None
    ours, theirs = (torch.cat([sums[side][value.id].sums for value in lists[side]]) for side in (0, 1))
    return alike_rows(ours, theirs, TOLERANCE)


def _grouped(counts: Mapping[_Place, _Counts]) -> dict[_Counts, list[_Place]]:
    """Return the places by how many rows both sides make there."""
    found: dict[_Counts, list[_Place]] = defaultdict(list)
    for place, rows in counts.items():
        found[rows].append(place)
    return found


def _has_all(alike: torch.Tensor | None) -> bool:
    """Return True if each row of a side has a row of its own on the other side: bool[rows, rows there]."""
    if alike is None:
        return False
    ours, theirs = alike.any(1), alike.any(0)
    has_ours = bool(ours.all()) and int(theirs.sum()) >= len(ours)
    return has_ours or (bool(theirs.all()) and int(ours.sum()) >= len(theirs))


def _lists_of(side: Evaluation) -> dict[_Place, list[Value]]:
    """Return the floats that the calls of a side make, in two dimensions or more, by place and size of a row."""
    found: dict[_Place, list[Value]] = defaultdict(list)
    for call, slot, value in made_in_rows(side):
        found[_at(call, slot), value.shape[-1]].append(value)
    return found


def _place_of(side: Evaluation, end: End) -> _Place | None:
    """Return the place at which the program makes an output, or what it shows; None if it shows other rows of that."""
    writer = side.flow.writer(end.value)
    if writer is None or not end.value.shape or writer[2].shape[-1:] != end.value.shape[-1:]:
        return None
    return _at(writer[0], writer[1]), writer[2].shape[-1]


def _at(call: Call, slot: str) -> _Line:
    """Return the place at which a program makes a result: the line in a module, which several layers share."""
    op, phase, line = place_of(call)
    return call.module, op, phase, slot, line


def _without_line(place: _Place) -> _Place:
    """Return the place of all results of one op outside of modules, whatever line; of others, the place itself."""
    (module, op, phase, slot, line), size = place
    return (module, op, phase, slot, line if module else ""), size


def _add_without_lines(lists: tuple[dict[_Place, list[Value]], ...], wanted: Container[_Place]) -> None:
    """Add what both sides make at some places, whatever lines they have."""
    for found in lists:
        for place, values in list(found.items()):
            if (wide := _without_line(place)) in wanted and wide != place:
                found[wide] = [*found.get(wide, ()), *values]


def _rows_of(values: Sequence[Value]) -> int:
    return sum(value.numel // value.shape[-1] for value in values)
