"""Ends that the other side has in another layout, and gradients that are a term or a multiple of the other side's.

Theory of operation
    If modules return results in another order, what the program makes of them shows whether that matters. Losses of
    parts, and gradients that add up to the other side's, show in what the step leaves. So the cause is looked for
    behind these.
    Autograd adds up the losses of parts: each must be divided by their number to be as good as the loss of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Final

from ...dump import Call, Value
from ..ends.ends import AS_LEFT, End, number_of, taken_besides
from ..evaluation.evaluation import Evaluation
from ..facts.ratio import simple_numbers
from ..flow.leaves import ACCUMULATES
from ..parts.laid_out import LaidOut, Term, may_hold
from ..parts.parts import PartsFound
from ..signatures.signature import Signature
from .left_alone import SIDES

_LEAST: Final = 2  # least number of gradients for a common factor
_ROUNDING: Final = 1e-5  # relative tolerance of a factor and of signatures
FORWARD: Final = ("loss", "output", "read")

Odd = tuple[Sequence[End], Sequence[End]]
Lacking = tuple[int, Call, str]  # side, call, sentence


class OtherLayout:
    """What differs, and what of it is only laid out in another way.

    Attributes:
        is_in_other_order: True if one side's rows are in another order than the other's.
        rest: the ends that differ by more than their layout; all ends if there are none.
    """

    def __init__(self, sides: tuple[Evaluation, Evaluation], ends: Odd, odd: Odd, parts: PartsFound | None) -> None:
        """Look at ends that differ. Afterwards each side has the numbers of what the other has in another layout."""
        self._sides = sides
        self._ends = ends
        counts = [sum(end.kind == "loss" for end in some) for some in ends]
        kinds = ("output",) if counts[0] == counts[1] else ("loss", "gradient", "output")
        later: Odd = ([], [])
        if all(end.kind == "output" and end.call for some in odd for end in some):
            later = _floating(taken_besides(sides))
        shown = {id(end) for some in odd for end in some if end.kind in kinds}
        lost = [end for some in (*odd, *later) for end in some if id(end) not in shown]
        layout = LaidOut(sides, {end.number for end in lost if end.number is not None}, parts)
        self._terms: tuple[dict[int, Term], dict[int, Term]] = layout.terms
        self.is_in_other_order = layout.is_in_other_order
        rest: Odd = (
            [end for end in odd[0] if id(end) not in shown or not self._is_laid_out(0, end)],
            [end for end in odd[1] if id(end) not in shown or not self._is_laid_out(1, end)],
        )
        self.rest = next((some for some in (rest, later) if any(some)), odd)

    def _is_laid_out(self, side: int, end: End) -> bool:
        number = number_of(self._sides[side], end.value)
        terms = [self._terms[at].get(number or 0) for at in (0, 1)]
        if end.kind == "loss" and self._accumulates and any(term is not None and term.is_mean for term in terms):
            return False
        return number in self._sides[1 - side].holders

    @cached_property
    def _accumulates(self) -> bool:
        """True if autograd accumulates several gradients of one side in the step."""
        return any(
            call.mutated and call.parent is not None and call.parent.op.endswith(ACCUMULATES)
            for side in self._sides
            for call in side.flow.calls()
        )

    def is_reordered(self, target: Value, baseline: Value) -> bool:
        """Return True if one side reorders its rows, and two values may hold the same elements."""
        signatures = self._sides[0].signatures.get(target.id), self._sides[1].signatures.get(baseline.id)
        return (
            self.is_in_other_order
            and signatures[0] is not None
            and signatures[1] is not None
            and may_hold([signatures[0]], signatures[1])
        )

    def lacking_terms(self, odd: Odd) -> Lacking | None:
        """Return the cause if the rest of the ends are not of the forward, and a gradient is only one term."""
        if any(end.kind in FORWARD for some in self.rest for end in some):
            return None
        for side in (0, 1):
            theirs = {end.name: end for end in self._ends[1 - side] if end.is_named}
            for end in odd[side]:
                partner = theirs.get(end.name)
                if partner is not None and (found := self._with_a_term(side, end.value, partner.value, end.name)):
                    return found
        return None

    def reading_a_term(self, target: Call, baseline: Call) -> Lacking | None:
        """Return the cause if the target's optimizer reads one term of what the baseline's reads."""
        theirs = dict(self._sides[1].flow.reads(baseline))
        for slot, value in self._sides[0].flow.reads(target) if target.phase == "optimizer" else ():
            found = self._with_a_term(0, value, theirs[slot], f"{slot} of {target.name}") if slot in theirs else None
            if found is not None:
                return found
        return None

    def _with_a_term(self, side: int, value: Value, other: Value, name: str) -> Lacking | None:
        """Return the cause if one value is a term of its counterpart."""
        term = self._terms[side].get(number_of(self._sides[side], value) or 0)
        call = self._sides[side].flow.maker(value)
        if term is None or term.of != number_of(self._sides[1 - side], other) or call is None:
            return None
        text = (
            f"{name} of the {SIDES[side]} is one of the {term.count} terms that the {SIDES[1 - side]}'s is the "
            f"{'mean' if term.is_mean else 'sum'} of: the others are not in it"
        )
        return side, self._adding(side) or call, text

    def _adding(self, side: int) -> Call | None:
        """Return the first call that adds up terms, if the program does it."""
        terms, evaluation = self._terms[side], self._sides[side]
        for call in evaluation.flow.calls():
            read = {evaluation.numbers.get(value.id, 0) for _, value in evaluation.flow.reads(call)} & terms.keys()
            if len(read) > 1 and len({terms[one].of for one in read}) == 1:
                return call
        return None


def _floating(ends: Odd) -> Odd:
    return [end for end in ends[0] if end.value.is_floating], [end for end in ends[1] if end.value.is_floating]


def factor_sentence(sides: tuple[Evaluation, Evaluation], ends: tuple[Sequence[End], Sequence[End]]) -> str:
    """Return a clause with the factor between all gradients of both sides; "" if there is none, or it is 1."""
    ours, theirs = (_as_left(some) for some in ends)
    pairs = [(end, theirs[name]) for name, end in ours.items() if name in theirs]
    signatures = [(_signature(sides[0], one), _signature(sides[1], other)) for one, other in pairs]
    known = [(one, other) for one, other in signatures if one and other and other.norm > other.noise]
    if len(known) < max(_LEAST, len(pairs)):
        return ""
    one, other = known[0]
    measured = math.copysign(one.norm / other.norm, one.first * other.first)
    simple = simple_numbers(measured, _ROUNDING)
    text = next((text for number, text in simple if all(_is_times(*pair, number) for pair in known)), "")
    return f"each gradient is exactly {text} times the baseline's" if text else ""


def _as_left(ends: Sequence[End]) -> dict[str, End]:
    """Return the gradients of parameters by name, as they were left where the program changed them."""
    found = {end.name: end for end in ends if end.is_named}
    left = {end.name.removesuffix(AS_LEFT): end for end in ends if end.name.endswith(AS_LEFT)}
    return found | {name: end for name, end in left.items() if name in found}


def _signature(side: Evaluation, end: End) -> Signature | None:
    writer = side.flow.writer(end.value)
    return side.signatures.get(end.value.id) or (None if writer is None else side.signatures.get(writer[2].id))


def _is_times(one: Signature, other: Signature, factor: float) -> bool:
    allowed = _ROUNDING * abs(factor) * other.norm + one.noise + abs(factor) * other.noise
    apart = one.norm - abs(factor) * other.norm, one.first - factor * other.first, one.second - factor * other.second
    return one.numel == other.numel and all(abs(part) <= 5 * allowed for part in apart)
