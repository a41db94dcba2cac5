"""Both sides of a step, evaluated from the same sources, and the ends that one side lacks.

Theory of operation
    The baseline is evaluated from the target's sources. Where ends differ, values are numbered once more by what
    rounding leaves of them: a second evaluation, in which every result is moved a little, shows how far each goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import torch

from ...dump import RankDump, Value
from ...store.op_names import read_op_name
from ..cone.cone import cone_of
from ..ends.ends import (
    AS_LEFT,
    End,
    Left,
    ends_of,
    first_states,
    made_alone,
    of_sizes,
    starts_of_roots,
    taken_besides,
    unmatched,
    unread_alike,
    unread_of,
    wanted_of,
)
from ..ends.left import LeftEnds
from ..evaluation.evaluation import JITTER, Chooser, EvaluatedStep, Evaluation, Shared
from ..evaluation.numbers_in_python import COMPUTED, NearCall, is_near
from ..flow.data_flow import DataFlow
from ..parts.blocks import Covered
from ..parts.parts import PartsFound, are_of_other_shapes, may_be_in_parts
from ..signatures.signature import Signature
from ..sources.alike_sources import alike_sources, are_made_alike, reads_the_same
from ..sources.batch_order import BatchOrder, batch_order, is_met
from ..sources.stand_ins import LeftBefore, Recorded, Sources, match_sources, rounded_sources
from .left_alone import SIDES
from .means import without_means
from .same_rows import let_same_rows_meet

_CHOSEN: Final[Mapping[Chooser, str]] = {
    "float64": "near ties: rounding decides some choices; both sides are compared with what float64 chooses",
    "baseline": "near ties: rounding decides some choices; both sides are compared with what the baseline chose",
}
_SCALES: Final = frozenset({"mul", "mul_", "div", "div_"})
_MOST_FACTORS: Final = 4


@dataclass(slots=True)
class Evaluated:
    """Both sides of a step, evaluated from the same sources."""

    sides: tuple[Evaluation, Evaluation]
    sources: Sources
    ends: tuple[list[End], list[End]]
    odd: tuple[list[End], list[End]]  # ends that the other side does not have
    steps: tuple[EvaluatedStep, EvaluatedStep]
    unclear: list[End]  # ends of one side that the other side goes on from: unknown which of the two the program uses
    unknown: tuple[str, ...] = ()  # ends that the other side may or may not have
    near: list[NearCall] = field(default_factory=list)  # calls with another number whose effect is hardly visible
    parts: PartsFound | None = None  # where parts of the other side's values were looked for
    notes: tuple[str, ...] = ()  # which part of the other side's work one side does, or the order in which it does it
    contents: tuple[Mapping[int, torch.Tensor], Mapping[int, torch.Tensor]] = ({}, {})  # of sources, as they were given
    reordered: bool = False  # the sides were given the rows of their batch in different orders
    unmet: BatchOrder | None = None  # the batch has another order than on the ranks that compute with it
    ask: Callable[[tuple[Evaluation, Evaluation]], Evaluated] | None = None  # compares the ends of other evaluations

    @property
    def covered(self) -> Sequence[Covered]:
        """The values of one side that parts of the other side cover."""
        return () if self.parts is None else self.parts.covered

    @property
    def differs(self) -> bool:
        return bool(self.odd[0] or self.odd[1] or self.near)

    def with_target(self, target: Evaluation, contents: Mapping[int, torch.Tensor]) -> Evaluated | None:
        """Compare another evaluation of the target; return None if no comparison was asked for.

        Args:
            target: the target, evaluated from other contents or with other values.
            contents: of the target's sources, by id, that were not taken as recorded.
        """
        if self.ask is None or (self.parts is not None and any(self.parts.places)):
            return None  # what lies in parts would have to be found anew
        baseline, shared = copy(self.sides[1]), Shared()
        pairs = (target, self.sides[0]), (baseline, self.sides[1])
        for side, known in pairs[::-1] if target.has_unseen else pairs:
            side.renumber(shared, {number: one.noise for number, one in known.signatures.items()})
        found = self.ask((target, baseline))
        return replace(found, ask=self.ask, contents=(contents, self.contents[1]))


def evaluate(ranks: tuple[RankDump, RankDump], before: LeftBefore | None, *, by_role: bool) -> Evaluated:
    """Evaluate both sides of a step.

    Args:
        ranks: of the target and the baseline.
        before: what the step before left.
        by_role: sources that differ stand for each other where they are read in the same role.
    """
    flows = DataFlow(ranks[0], "aten"), DataFlow(ranks[1], "aten")
    left = Left(flows[0]), Left(flows[1])
    steps = _step(flows[0], left[0]), _step(flows[1], left[1])
    shared = Shared()
    shared.in_python.apart = 0.0 if before is None else before.apart
    target = Evaluation(steps[0], shared, leads=True)
    target.run()
    sources = match_sources(target, flows[1], before, by_role=by_role, recorded=Recorded())
    baseline = Evaluation(steps[1], shared, sources.stand_ins)
    baseline.run()
    target.unproven |= dict.fromkeys(shared.in_python.unknown, COMPUTED)
    found = _settled(
        (target, baseline),
        steps,
        ({}, sources.stand_ins),
        lambda sides: _with_ends(sides, sources, steps, left, before),
    )
    if found.differs:
        found = _chosen_otherwise(found, shared.choices.differ, left, before)
        (target, baseline), steps = found.sides, found.steps
    stand_ins: Mapping[int, torch.Tensor] = sources.stand_ins
    order = batch_order(flows, sources)
    if order is not None and not is_met(flows, order):
        found = replace(found, unmet=order)
    elif order is not None:
        found, stand_ins = _reordered(found, order, steps, left, before)
        target, baseline = found.sides
    is_fixed = found.differs or target.rests_on_unseen or baseline.rests_on_unseen
    apart = None if is_fixed else alike_sources(target, baseline, stand_ins)
    if apart is None or are_made_alike((target, baseline), found.ends, apart):
        return found
    shared, contents = Shared(), apart.contents
    sides = Evaluation(steps[0], shared, contents[0], leads=True), Evaluation(steps[1], shared, contents[1])
    for side, one in zip(sides, (target, baseline), strict=True):
        side.run()
        if not reads_the_same(one, side):
            return found
    again = _settled(sides, steps, contents, lambda sides: _with_ends(sides, sources, steps, left, before))
    return again if again.differs and not shared.choices.differ else found


def _chosen_otherwise(
    found: Evaluated, has_taken: bool, left: tuple[Left, Left], before: LeftBefore | None
) -> Evaluated:
    """Evaluate both sides with other choices; return the earlier result if they still differ.

    Where the baseline makes the same choice as the target, it goes on with what the target chose. Two cases need
    another evaluation. One side may keep the mask or the index of a maximum where the other side compares again: then
    both follow the choice of float64. And a program may run nothing for what it did not choose (an expert without
    tokens): it cannot be evaluated with the other side's choice.

    Args:
        found: the result with what the target chose.
        has_taken: True if the target's program chose something else than float64 does.
        left: what each side left in memory.
        before: what the step before left.
    """
    choosers: list[Chooser] = ["float64"] * has_taken
    if found.sides[1].took:
        choosers.append("baseline")
    for chooser in choosers:
        one, other = (copy(step) for step in found.steps)
        one.chooser = other.chooser = chooser
        steps, stand_ins, shared = (one, other), found.sources.stand_ins, Shared()
        sides = Evaluation(one, shared, leads=True), Evaluation(other, shared, stand_ins)
        for side in sides[::-1] if chooser == "baseline" else sides:
            side.run()
        ask = partial(_with_ends, sources=found.sources, steps=steps, left=left, before=before)
        if _odd_names(found) <= _odd_names(ask(sides)):
            continue  # none of the ends that differ rests on these choices
        again = _settled(sides, steps, ({}, stand_ins), ask)
        if not again.differs:
            return replace(again, notes=(*again.notes, _CHOSEN[chooser]))
    return found


def _odd_names(found: Evaluated) -> set[tuple[int, str, str]]:
    return {(side, end.kind, end.name) for side in (0, 1) for end in found.odd[side]}


def _reordered(
    found: Evaluated,
    order: BatchOrder,
    steps: tuple[EvaluatedStep, EvaluatedStep],
    left: tuple[Left, Left],
    before: LeftBefore | None,
) -> tuple[Evaluated, Mapping[int, torch.Tensor]]:
    """Evaluate both sides on the target's batch, if the baseline's batch has its rows in another order.

    Returns:
        What was found, and what the baseline was given for its sources.
    """
    stand_ins = found.sources.stand_ins
    if not found.differs:  # what they end with is the same for any order, as a mean is
        return replace(found, notes=(*found.notes, str(order)), reordered=True), stand_ins
    shared, contents = Shared(), {**stand_ins, **order.contents}
    sides = Evaluation(steps[0], shared, leads=True), Evaluation(steps[1], shared, contents)
    for side in sides:
        side.run()
    again = _settled(sides, steps, ({}, contents), lambda sides: _with_ends(sides, found.sources, steps, left, before))
    return replace(again, notes=(*again.notes, str(order)), reordered=True), contents


def _settled(
    sides: tuple[Evaluation, Evaluation],
    steps: tuple[EvaluatedStep, EvaluatedStep],
    contents: tuple[Mapping[int, torch.Tensor], Mapping[int, torch.Tensor]],
    ask: Callable[[tuple[Evaluation, Evaluation]], Evaluated],
) -> Evaluated:
    """Compare the ends of both sides; if they differ, once more with what rounding leaves of the target's values.

    Args:
        sides: evaluated.
        steps: the same, as they were recorded.
        contents: of both sides' sources, by id, that were not taken as recorded.
        ask: compares the ends.
    """
    found = ask(sides)
    if not found.differs:
        return found
    flows = sides[0].flow, sides[1].flow
    rounded = rounded_sources(flows, found.sources, 0), rounded_sources(flows, found.sources, 1)
    moved = Evaluation(steps[0], Shared(), {**contents[0], **rounded[0]}, leads=True, jitter=JITTER)
    alone = sides[0].alone(sides[1]), sides[1].alone(sides[0])
    unseen = sides[0].has_unseen or sides[1].has_unseen
    moved.rounded, moved.rounds, moved.took = alone[0], unseen, sides[0].took
    moved.run()
    noise = [sides[0].noise_beside(moved), {}]
    sources = found.sources
    in_parts = (
        bool(sources.relaid)
        or sources.were_in_parts
        or sources.are_shifted
        or may_be_in_parts(found.ends, (sources.target, sources.baseline))
        or are_of_other_shapes(sides)
    )
    if rounded[1] or alone[1] or unseen or in_parts:
        other = Evaluation(steps[1], Shared(), {**contents[1], **rounded[1]}, jitter=JITTER)
        other.rounded, other.rounds, other.took = alone[1], unseen, sides[1].took
        other.run()
        noise[1] = sides[1].noise_beside(other)
    shared = Shared()
    for side in (1, 0) if sides[0].has_unseen else (0, 1):  # noise is recognized on the side where it occurs
        sides[side].renumber(shared, noise[side])
    found = ask(sides)
    if found.differs and in_parts:
        found = _laid_out(sides, found, partial(_watch, steps, contents), ask)
    return replace(found, contents=contents, ask=ask)


def _laid_out(
    sides: tuple[Evaluation, Evaluation],
    found: Evaluated,
    watch: Callable[..., None],
    ask: Callable[[tuple[Evaluation, Evaluation]], Evaluated],
) -> Evaluated:
    """Let what is a part of the other side's, or has its rows in other places, meet; compare the ends again."""
    parts, shared = PartsFound(sides, found.ends, found.sources.relaid), Shared()
    for side in (0, 1):
        watch(side, partial(parts.watch, side), shared=shared)
    notes: tuple[str, ...] = ()
    if parts.meet():
        notes = parts.notes
        found = ask(sides)
    if found.differs:
        more = taken_besides(sides)
        with_more = [*found.odd[0], *more[0]], [*found.odd[1], *more[1]]
        tried = (let_same_rows_meet(sides, odd, partial(watch, shared=Shared())) for odd in (with_more, found.odd))
        if same := next(filter(None, tried), ""):
            notes = (*notes, same)
            found = ask(sides)
    return replace(found, notes=(*found.notes, *notes), parts=parts)


def _watch(
    steps: tuple[EvaluatedStep, EvaluatedStep],
    contents: tuple[Mapping[int, torch.Tensor], Mapping[int, torch.Tensor]],
    side: int,
    look: Callable[[Value, torch.Tensor], None],
    shared: Shared,
) -> None:
    """Evaluate a side once more, and call a function with each value and its tensor."""
    again = Evaluation(steps[side], shared, contents[side], leads=side == 0)
    again.watch_all = look
    again.run()


def _with_ends(
    sides: tuple[Evaluation, Evaluation],
    sources: Sources,
    steps: tuple[EvaluatedStep, EvaluatedStep],
    left: tuple[Left, Left],
    before: LeftBefore | None,
) -> Evaluated:
    """Compare the ends of both sides; if an inference agrees, compare what was made of its results too."""
    ends = ends_of(sides[0], left[0]), ends_of(sides[1], left[1])
    lost = unmatched(*ends, sides)
    in_memory, others = LeftEnds(ends, sides, before), without_means(lost, ends, sides)
    notes = _of_means(lost, others)
    odd = [*others[0], *in_memory.odd[0]], [*others[1], *in_memory.odd[1]]
    if _is_divided_later(odd, ends, sides):
        odd, notes = (
            ([], []),
            (*notes, "the losses do not add up to the same, and the gradients that come of them are the same"),
        )
    elif _are_means(odd, ends, sides):
        odd, notes = (
            ([], []),
            (
                *notes,
                "losses and gradients differ, and the optimizer gets the same, as where a loss is scaled",
            ),
        )
    unknown = tuple(in_memory.unknown)
    if all(_is_lost(sides[side], end) for side in (0, 1) for end in odd[side]):
        unknown = (*unknown, *dict.fromkeys(f"{end.name}, of which nothing is finite" for end in odd[0] or odd[1]))
        odd = [], []
    elif vague := _unknown(odd, sides):
        odd, unknown = ([], []), (*unknown, *vague)
    if unseen := _behind_unseen(odd, sides):
        odd, unknown = ([], []), (*unknown, *unseen)
    near = [one for one in sides[1].near if is_near(one, sides[0].signatures, sides[1].signatures)]
    is_trained = any(end.kind != "output" and end.is_changed and not end.is_read for side in ends for end in side)
    if is_trained and not (any(odd) or near or unseen):
        unread = list(unread_of(sides[0])), list(unread_of(sides[1]))
        odd, notes = unread_alike(sides, unread), (*notes, *_of_one_side(sides, made_alone(sides, unread)))
        odd = odd if any(odd) else first_states(sides)
    if any(odd) or near or is_trained:
        return Evaluated(sides, sources, ends, odd, steps, [], unknown, near, notes=notes)
    more = taken_besides(sides)
    odd = of_sizes(more[0], more[1]), of_sizes(more[1], more[0])
    if vague := _unknown(odd, sides):
        odd, unknown = ([], []), (*unknown, *vague)
    unclear = [end for side in (0, 1) for end in more[side] if _goes_on(sides, side, end, [*ends[0], *ends[1]])]
    return Evaluated(sides, sources, ends, odd, steps, [] if any(odd) else unclear, unknown, near, notes=notes)


def _behind_unseen(odd: tuple[list[End], list[End]], sides: tuple[Evaluation, Evaluation]) -> list[str]:
    """Return a sentence if all ends rest on gradients and a side compiled its autograd, which shows none."""
    notes = ({note.code for note in side.flow.rank.notes} for side in sides)
    blind = [name for name, codes in zip(SIDES, notes, strict=True) if "compiled_autograd" in codes]
    ends = [*odd[0], *odd[1]]
    if not blind or any(end.kind not in ("gradient", "left") for end in ends):
        return []
    return [*dict.fromkeys(f"{end.name}, as autograd was compiled in the {blind[0]}" for end in ends)]


def _is_divided_later(
    odd: tuple[list[End], list[End]], ends: tuple[list[End], list[End]], sides: tuple[Evaluation, Evaluation]
) -> bool:
    """Return True if only losses differ, and a side may divide what it computes from them.

    That side has more losses, or multiples of the other side's losses.
    """
    losses = [sum(end.kind == "loss" for end in some) for some in ends]
    is_trained = all(
        any(end.kind == "gradient" or (end.kind == "left" and end.is_changed) for end in some) for some in ends
    )
    if not any(odd) or not is_trained or any(end.kind != "loss" for some in odd for end in some):
        return False
    return losses[0] != losses[1] or (
        len(odd[0]) == len(odd[1])
        and all(_is_multiple(sides, *pair) or _is_multiple(sides[::-1], *pair[::-1]) for pair in zip(*odd, strict=True))
    )


def _is_multiple(sides: tuple[Evaluation, Evaluation], end: End, other: End) -> bool:
    """Return True if a side computes its end from the other side's end, multiplied or divided by numbers."""
    value, flow = end.value, sides[0].flow
    for _ in range(_MOST_FACTORS):
        maker = flow.maker(value)
        read = [] if maker is None else flow.reads(maker)
        if maker is None or not read or not (flow.is_view(maker) or read_op_name(maker.op).name in _SCALES):
            return False
        if any(sides[0].numbers.get(one.id) == other.number for _, one in read):
            return True
        value = read[0][1]
    return False


def _are_means(
    odd: tuple[list[End], list[End]], ends: tuple[list[End], list[End]], sides: tuple[Evaluation, Evaluation]
) -> bool:
    """Return True if nothing but losses and gradients differs, and an optimizer gets the same.

    A program may scale its loss and divide the gradients before the optimizer takes them, or make some gradients by
    itself and add them to those of a loss.
    """
    ours, theirs = (
        {end.name.removesuffix(AS_LEFT): end.number for end in some if end.kind == "gradient"} for some in ends
    )  # a gradient as it is left replaces the one that backward made
    differ = [end for some in odd for end in some if end.kind != "loss"]
    if not differ or any(end.kind != "gradient" or end.name.endswith(AS_LEFT) for end in differ):
        return False
    is_same = all(None is not ours.get(end.name) == theirs.get(end.name) for end in differ)
    if not is_same:
        given = _given_to_optimizers(sides[0])
        is_same = bool(given) and given == _given_to_optimizers(sides[1])
    return is_same and not (_is_normed(sides, odd[0]) or _is_normed(sides[::-1], odd[1]))


def _is_normed(sides: tuple[Evaluation, Evaluation], odd: Sequence[End]) -> bool:
    """Return True if gradients that differ are multiplied by what is computed from them, as if their norm is clipped.

    That makes the same of a sum as of a mean, and is no division that the program has for it.
    """
    flow = sides[0].flow
    places = {end.value.record.place for end in odd if end.kind == "gradient"}
    for call in flow.calls():
        read = flow.reads(call) if call.mutated and call.phase != "optimizer" else []
        if any(value.record.place in places for _, value in read):
            factors = [value for _, value in read if value.numel == 1 and value.record.place not in places]
            behind = cone_of(sides[0], sides[1].holders, factors).calls.values()
            if any(value.record.place in places for one in behind for _, value in flow.reads(one)):
                return True
    return False


def _given_to_optimizers(evaluation: Evaluation) -> set[int | None]:
    """Return the numbers of what the step made before an optimizer read it."""
    flow = evaluation.flow
    read = (value for call in flow.calls() if call.phase == "optimizer" for _, value in flow.reads(call))
    writers = ((value, flow.writer(value)) for value in read)
    made = (value for value, writer in writers if writer is not None and writer[0].phase != "optimizer")
    return {evaluation.numbers.get(value.id) for value in made}


def _of_means(lost: tuple[list[End], list[End]], others: tuple[list[End], list[End]]) -> tuple[str, ...]:
    """Return a sentence if outputs differ from which the program makes the same."""
    names = [end.name for side in (0, 1) for end in lost[side] if end.kind == "output" and end not in others[side]]
    return (f"{names[0]} differs, and what the program makes of it is the same",) if names else ()


def _of_one_side(sides: tuple[Evaluation, Evaluation], alone: tuple[list[End], list[End]]) -> Iterator[str]:
    """Yield a sentence for each side that makes something the other does not, as a score in a training step."""
    for name, ends, side in zip(SIDES, alone, sides, strict=True):
        if ends:
            maker = side.flow.maker(ends[0].value)
            line = f" ({maker.where})" if maker is not None and maker.where else ""
            more = f", and {len(ends) - 1} more" if len(ends) > 1 else ""
            shape = list(ends[0].value.shape)
            yield f"the {name} alone makes {ends[0].name} {shape}{line}{more}, which nothing reads; it was not compared"


def _is_lost(evaluation: Evaluation, end: End) -> bool:
    """Return True if no element of an end is finite: two such ends cannot be compared."""
    found = _signature_of(evaluation, end)
    return found is not None and found.has_no_contents


def _signature_of(evaluation: Evaluation, end: End) -> Signature | None:
    return evaluation.signatures.get(end.value.id) if end.buffer is None else evaluation.left_as(end.buffer)


def _unknown(odd: tuple[list[End], list[End]], sides: tuple[Evaluation, Evaluation]) -> list[str]:
    """Return a sentence for each end if rounding alone decides what all of them are."""
    ends = [(end, sides[side]) for side in (0, 1) for end in odd[side]]
    known = ((end, _signature_of(side, end)) for end, side in ends)
    found = {(end.kind, end.name) for end, signature in known if signature is not None and signature.is_unknown}
    names = dict.fromkeys(end.name for end, _ in ends)
    is_all = all((end.kind, end.name) in found for end, _ in ends)
    return [f"{name}, of which rounding alone decides what it is" for name in names] if is_all else []


def _goes_on(sides: tuple[Evaluation, Evaluation], side: int, end: End, known: list[End]) -> bool:
    """Return True if a side makes something of the same size from the other side's end, or from a part of it."""
    cut = cone_of(sides[side], sides[1 - side].holders, [end.value]).cut.values()
    behind = {sides[side].numbers.get(value.id) for value in cut}
    return any(other.number in behind for other in of_sizes(known, [end]))


def _step(flow: DataFlow, left: Left) -> EvaluatedStep:
    return EvaluatedStep(flow, [value for value, _ in left.buffers], wanted_of(flow), starts_of_roots(flow))
