"""A parameter that one side reads and the other does not: a bias that was left out, while it is still zero."""

from __future__ import annotations

from collections.abc import Iterator

from ...dump import Call, Value
from ..evaluation.evaluation import Evaluation


def unread(sides: tuple[Evaluation, Evaluation], side: int, value: Value) -> tuple[Call | None, Call] | None:
    """Return the call of a side that goes without a source, if it has one, and the call of the other that reads it.

    Args:
        sides: evaluated.
        side: that may not read it.
        value: a source of the other side; others may hold the same (zeros).

    Returns:
        None if the side reads as often what holds the same.
    """
    there = sides[1 - side]
    number = there.numbers.get(value.id)
    reader = next(_readers(there, value), None)
    if number is None or reader is None or _reads(sides[side], number) >= _reads(there, number):
        return None
    here = sides[side].flow
    for _, made in there.flow.results(reader):
        for held in sides[side].holders.get(there.numbers.get(made.id, 0), ()):
            maker = here.maker(here.rank.value_by_id(held))
            if maker is not None and not here.is_view(maker):
                return maker, reader
    return None, reader


def _readers(evaluation: Evaluation, value: Value) -> Iterator[Call]:
    """Yield the calls of the forward that compute with a value, also through views, before anything writes to it."""
    shown = {value.id}
    for call in evaluation.flow.calls():
        if call.phase != "forward" or not shown.intersection(v.id for _, v in evaluation.flow.reads(call)):
            continue
        if evaluation.flow.is_view(call):
            shown |= {v.id for _, v in call.output_values()}
        else:
            yield call


def _reads(evaluation: Evaluation, number: int) -> int:
    """Return how often calls of the forward read sources of a number; what is written in place is changed, not read."""
    found = 0
    for call in evaluation.flow.calls():
        if call.phase == "forward":
            written = {value.storage for _, value in call.written_values()}
            for _, value in evaluation.flow.reads(call):
                is_source = evaluation.numbers.get(value.id) == number and value.id in evaluation.sources
                found += is_source and value.storage not in written
    return found
