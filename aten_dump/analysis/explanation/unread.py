"""A parameter that only one side reads: a bias that was left out, but is still zero."""

from __future__ import annotations

from collections.abc import Iterator

from ...dump import Call, Value
from ..evaluation.evaluation import Evaluation


def unread(sides: tuple[Evaluation, Evaluation], side: int, value: Value) -> tuple[Call | None, Call] | None:
    """Return the call that does not read a source, if the side has it, and the other side's call that reads it.

    Args:
        sides: evaluated.
        side: the side that may not read it.
        value: a source of the other side; other sources may hold the same elements (zeros).

    Returns:
        None if the side reads sources with the same elements as often.
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
    """Return how often calls of the forward read sources of a number, except to write them in place."""
    found = 0
    for call in evaluation.flow.calls():
        if call.phase == "forward":
            written = {value.storage for _, value in call.written_values()}
            for _, value in evaluation.flow.reads(call):
                is_source = evaluation.numbers.get(value.id) == number and value.id in evaluation.sources
                found += is_source and value.storage not in written
    return found
