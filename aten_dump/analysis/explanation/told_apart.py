"""Values of both sides that are equal by chance get numbers of their own.

Theory of operation
    What a call makes may be equal to another value of the other side by chance: few integers are, so are angles of a
    position that is 0, and what a product with ones leaves as it is. What two calls at one place make otherwise is no
    other value of the other side, unless that makes it at the same place too, as a loop may in another order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

from ...dump import Call, Value
from ..evaluation.evaluation import Evaluation
from ..evidence.evidence_rows import Pair
from ..pairing.call_keys import line_of, place_of

Sides = tuple[Evaluation, Evaluation]
Made = tuple[Value, Call]


def tell_apart(sides: Sides, pairs: Sequence[Pair], *, floats: bool) -> None:
    """Give numbers of their own to values that two calls at one place make otherwise.

    Args:
        sides: evaluated.
        pairs: of calls of both sides.
        floats: also floats, and not only integers and truth values.
    """
    for ours, theirs in (*_of_pairs(pairs, floats=floats), *_of_other_ops(sides)):
        numbers = [side.numbers.get(value.id) for side, (value, _) in zip(sides, (ours, theirs), strict=True)]
        if None not in numbers and numbers[0] != numbers[1]:
            _part(sides, ours)
            _part(sides[::-1], theirs)


def _of_pairs(pairs: Sequence[Pair], *, floats: bool) -> Iterator[tuple[Made, Made]]:
    """Yield what two calls at one place make in one slot."""
    for pair in pairs:
        if pair.target.kind != "aten" or place_of(pair.target) != place_of(pair.baseline):
            continue
        theirs = dict(pair.baseline.result_values())
        for slot, value in pair.target.result_values():
            other = theirs.get(slot)
            if other is None or value.is_floating != other.is_floating or value.shape != other.shape:
                continue
            if floats or not value.is_floating:
                yield (value, pair.target), (other, pair.baseline)


def _of_other_ops(sides: Sides) -> Iterator[tuple[Made, Made]]:
    """Yield integers and truth values that both sides make at one line, as often, by another op."""
    made: tuple[dict[Hashable, list[Made]], ...] = (defaultdict(list), defaultdict(list))
    for side, found in zip(sides, made, strict=True):
        for call in side.flow.calls():
            for _, value in side.flow.results(call):
                if not value.is_floating:
                    found[line_of(call), call.phase, value.dtype_name, tuple(value.shape)].append((value, call))
    for line, ours in made[0].items():
        if len(ours) == len(made[1].get(line, ())):
            yield from (pair for pair in zip(ours, made[1][line], strict=True) if pair[0][1].op != pair[1][1].op)


def _part(sides: Sides, made: Made) -> None:
    """Give a value of the first side a number of its own, unless the other side makes the same at the same place."""
    (evaluation, other), (value, call) = sides, made
    maker = evaluation.flow.maker(value)
    if maker is None or maker.id != call.id:  # it shows what another call made
        return
    held = other.holders.get(evaluation.numbers[value.id], ())
    makers = [other.flow.maker(other.flow.rank.value_by_id(id)) for id in held]
    if not any(one is not None and place_of(one) == place_of(call) for one in makers):
        evaluation.numbers[value.id] = evaluation.numbering.new()
