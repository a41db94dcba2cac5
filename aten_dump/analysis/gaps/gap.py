"""The gap between two recordings of one value: what makes it up, and the first op of each part.

Theory of operation
    Each side is evaluated in float64 from its own sources; where one side holds a source with fewer digits, from the
    other's. That is the *meaning* of its value. Then, element by element,

        target - baseline = (target - its meaning) + (meaning - meaning) + (the baseline's meaning - baseline)

    The middle part is another function: other code, other weights, other tokens. The others are precision and kernels.
    A replay distinguishes a kernel that is wrong for its own inputs from rounding; an evaluation with that error added
    shows what it becomes at the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from ...dump import Call, Value
from ...errors import MissingDataError
from ..cone.cone import cone_of
from ..distance.element_chunks import place_in
from ..ends.ends import End, number_of
from ..evaluation.evaluation import EvaluatedStep, Evaluation, Shared
from ..evaluation.memory import UNREADABLE
from ..evidence.findings import place_of
from ..explanation.both_sides import Evaluated
from ..explanation.causes import Cause, Causes
from ..flow.computed_dtype import computed_dtype, dtype_text
from ..precision.lost_precision import Distances, exact_sources
from ..rerun.op_errors import Replays
from ..rerun.rounding_error import SUSPECT
from ..rerun.run_op import result_slots, run_on
from ..rerun.start_tensors import start_tensors
from .named_values import joined

_MOST: Final = 5  # elements that are named
_SIDES: Final = ("target", "baseline")
_SHARE: Final = 1e-3  # of the difference: less is left out of a line

SAME: Final = 1e-6  # relative L2 of two meanings that are the same function
_LEAST: Final = 1e-7  # relative L2: nearer recordings have not parted
_ROUNDINGS: Final = 16.0  # times the eps of a dtype: what honest ops come to
_FACTOR: Final = 4.0  # times as far from its meaning: more than a call passes on


@dataclass(frozen=True, slots=True)
class WrongKernel:
    """A call whose result is wrong for its own inputs."""

    call: Call
    slot: str
    error: float
    side: int  # 0 of the target


@dataclass(frozen=True, slots=True)
class Parting:
    """The first call at which both sides part by more than rounding explains."""

    call: Call
    partner: Call | None  # of the baseline
    given: float  # distance of what the target's call read from its meaning, relative L2
    distances: tuple[float, float]  # of the results of both


@dataclass(slots=True)
class Gap:
    """What lies between two recordings of one value. All tensors are float64 and have one shape."""

    names: tuple[str, str]
    recorded: tuple[torch.Tensor, torch.Tensor]
    meanings: tuple[torch.Tensor, torch.Tensor]
    kernels: tuple[torch.Tensor, torch.Tensor]  # what wrong kernels add to either side
    dtypes: tuple[torch.dtype, torch.dtype]  # that each side computes in
    wrong: list[WrongKernel] = field(default_factory=list)
    cause: Cause | None = None  # of another function
    parting: Parting | None = None
    unproven: tuple[str, ...] = ()  # calls behind it that were not evaluated: their recorded results were taken

    @property
    def parts(self) -> dict[str, torch.Tensor]:
        """What the difference of both is the sum of."""
        one, other = (self.recorded[side] - self.meanings[side] - self.kernels[side] for side in (0, 1))
        return {
            "other function": self.meanings[0] - self.meanings[1],
            "precision of the target": one,
            "precision of the baseline": -other,
            "kernels of the target": self.kernels[0],
            "kernels of the baseline": -self.kernels[1],
        }

    @property
    def difference(self) -> torch.Tensor:
        """The target's elements minus the baseline's."""
        return self.recorded[0] - self.recorded[1]

    def relative(self, part: torch.Tensor) -> float:
        """Return the L2 norm of a part over that of the baseline's meaning, of finite elements."""
        size = float(_finite(self.meanings[1]).norm())
        found = float(_finite(part).norm())
        return found / size if size else float(found > 0)

    @property
    def is_other_function(self) -> bool:
        return self.relative(self.meanings[0] - self.meanings[1]) > SAME

    @property
    def is_rounding(self) -> bool:
        """True if nothing but rounding puts the two apart."""
        return not (self.is_other_function or self.wrong or self.parting)


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.where(tensor.isfinite(), 0.0)


class GapFinder:
    """Finds the gap between named values of two evaluated sides."""

    def __init__(self, found: Evaluated, values: tuple[Sequence[Value], Sequence[Value]]) -> None:
        self._found, self._values = found, values
        self._exact = tuple(exact_sources(found.sources.pairs, side) for side in (0, 1))
        wanted = [{value.id for value in some} for some in values]
        self._own = tuple(Distances(found.steps[side], self._exact[side], wanted[side]) for side in (0, 1))
        self._replays = Replays()

    def find(self, names: tuple[str, str]) -> Gap:
        """Return the gap.

        Raises:
            MissingDataError: the two do not have as many elements, or one was not made in the step.
        """
        whole = [[start_tensors([value])[value.id] for value in some] for some in self._values]
        shapes = [some[0].shape if len(some) == 1 else None for some in whole]
        shape = shapes[0] or shapes[1]
        recorded = joined(whole[0], shape), joined(whole[1], shape)
        if recorded[0].shape != recorded[1].shape:
            one, other = (list(tensor.shape) for tensor in recorded)
            raise MissingDataError(
                f"{names[0]} has the shape {one}, {names[1]} of the baseline {other}; save one value"
            )
        wrong, errors = self._wrong_kernels()
        meanings = self._meanings(self._own, shape)
        kernels = [torch.zeros_like(meanings[0])] * 2
        for side in (0, 1):
            if errors[side]:
                moved = _meanings_with(self._found.steps[side], self._exact[side], errors[side], self._values[side])
                kernels[side] = joined(moved, shape) - meanings[side]
        sides = self._found.sides
        dtypes = _computed_in(sides[0], self._values[0][0]), _computed_in(sides[1], self._values[1][0])
        gap = Gap(names, recorded, meanings, (kernels[0], kernels[1]), dtypes, wrong)
        gap.unproven = self._unproven()
        if gap.is_other_function:
            gap.cause = self._cause(names)
        elif not wrong and gap.relative(gap.difference) > _LEAST:
            gap.parting = self._parting(torch.finfo(dtypes[0]).eps if dtypes[0].is_floating_point else 0.0)
        return gap

    def _meanings(self, sides: Sequence[Distances], shape: torch.Size | None) -> tuple[torch.Tensor, torch.Tensor]:
        found = []
        for side, one in enumerate(sides):
            lacking = [value for value in self._values[side] if value.id not in one.meanings]
            for value in lacking:
                try:
                    one.meanings[value.id] = start_tensors([value])[value.id]  # what the step was given
                except UNREADABLE as error:
                    raise MissingDataError(f"a named value cannot be read: {error}") from error
            found.append(joined([one.meanings[value.id] for value in self._values[side]], shape))
        return found[0], found[1]

    def _calls(self, side: int) -> list[Call]:
        cone = cone_of(self._found.sides[side], (), self._values[side])
        return [call for _, call in sorted(cone.calls.items())]

    def _unproven(self) -> tuple[str, ...]:
        side = self._found.sides[0]
        return tuple(call.name for call in self._calls(0) if call.id in side.unproven)

    def _wrong_kernels(self) -> tuple[list[WrongKernel], tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]]:
        """Return the calls behind the values whose results are wrong for their inputs, and by how much."""
        wrong: list[WrongKernel] = []
        errors: tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]] = {}, {}
        for side in (0, 1):
            for call in self._calls(side):
                known = self._replays.errors(call)
                odd = {} if isinstance(known, str) else {s: one for s, one in known.items() if one.ratio > SUSPECT}
                if odd:
                    wrong += [WrongKernel(call, slot, one.error, side) for slot, one in odd.items()]
                    errors[side].update(_errors_of(call))
        return wrong, errors

    def _cause(self, names: tuple[str, str]) -> Cause:
        """Return the first call behind the values that makes them other functions."""
        found = self._found
        ends = tuple(
            [End("output", names[side], value, number_of(found.sides[side], value)) for value in self._values[side]]
            for side in (0, 1)
        )
        odd = [[end for end in ends[side] if end.number not in found.sides[1 - side].holders] for side in (0, 1)]
        if not (odd[0] or odd[1]):
            odd = [ends[0], ends[1]]
        return Causes(found.sides, found.sources, (ends[0], ends[1])).find((odd[0], odd[1]))

    def _parting(self, eps: float) -> Parting | None:
        """Return the first call whose result is farther from its meaning than what it read, and than the baseline's.

        Rounding in the dtype that the target computes in is none: it puts all results that far apart.
        """
        target, baseline = self._found.sides
        for call in self._calls(0):
            given = self._own[0].given(call)
            for _, value in target.flow.results(call):
                made = self._own[0].by_value.get(value.id, 0.0)
                partner = self._partner(value) if made > max(_ROUNDINGS * eps, _FACTOR * given) else None
                if partner is not None and made > _FACTOR * self._own[1].of(partner):
                    return Parting(call, baseline.flow.maker(partner), given, (made, self._own[1].of(partner)))
        return None

    def _partner(self, value: Value) -> Value | None:
        baseline = self._found.sides[1]
        for held in baseline.holders.get(self._found.sides[0].numbers.get(value.id, 0), ()):
            other = baseline.flow.rank.value_by_id(held)
            if other.is_floating and baseline.flow.maker(other) is not None:
                return other
        return None


def _computed_in(evaluation: Evaluation, value: Value) -> torch.dtype:
    return computed_dtype(evaluation.flow.rank) or value.dtype


def _errors_of(call: Call) -> dict[int, torch.Tensor]:
    """Return what the results of a call are beside those in float64 of its recorded inputs, by value id."""
    found = {}
    try:
        made = dict(result_slots(run_on(call, lambda value: start_tensors([value])[value.id])))
        for slot, value in call.output_values():
            right = made.get(slot)
            if isinstance(right, torch.Tensor) and value.is_floating:
                found[value.id] = start_tensors([value])[value.id] - right
    except UNREADABLE:
        return {}
    return found


def _meanings_with(
    step: EvaluatedStep, exact: dict[int, torch.Tensor], errors: dict[int, torch.Tensor], values: Sequence[Value]
) -> list[torch.Tensor]:
    """Return what values become in float64 where the results of some calls are off by what they were."""
    kept: dict[int, torch.Tensor] = {}
    wanted = {value.id for value in values}

    def add(value: Value, tensor: torch.Tensor) -> None:
        if value.id in errors and errors[value.id].shape == tensor.shape:
            tensor.add_(_finite(errors[value.id]))

    def keep(value: Value, tensor: torch.Tensor) -> None:
        if value.id in wanted:
            kept[value.id] = tensor.detach().clone()

    evaluation = Evaluation(step, Shared(), exact, leads=True)
    evaluation.watch, evaluation.watch_all = add, keep
    evaluation.run()
    return [kept[value.id] for value in values]


def gap_lines(gap: Gap) -> Iterator[str]:
    """Yield the answer: how far, of what it is made, from which op on, where most."""
    yield _headline(gap)
    yield "What makes up the gap (relative L2, of the baseline's value in float64):"
    for name, part in gap.parts.items():
        size = gap.relative(part)
        if size or not name.startswith("kernels"):
            side = 0 if name.endswith("target") else 1
            dtype = f" ({dtype_text(gap.dtypes[side])})" if name.startswith("precision") else ""
            yield f"  {size:<10.3g} {name}{dtype}"
    yield from _where(gap)
    yield from _elements(gap)
    if gap.unproven:
        names = ", ".join(gap.unproven[:_MOST])
        yield f"Note: {len(gap.unproven)} calls behind it were taken as recorded: {names}"


def gap_record(gap: Gap) -> dict[str, Any]:
    """Return the answer as plain values: distances are relative L2, of the baseline's value in float64."""
    apart, cause = gap.relative(gap.difference), gap.cause
    parting = gap.parting
    return {
        "target": gap.names[0],
        "baseline": gap.names[1],
        "verdict": _verdict(gap) if apart else "They are equal.",
        "is_rounding": gap.is_rounding,
        "elements": gap.difference.numel(),
        "distance": apart,
        "greatest": float(gap.difference.abs().nan_to_num(0.0).max()) if gap.difference.numel() else 0.0,
        "parts": {name: gap.relative(part) for name, part in gap.parts.items()},
        "cause": None if cause is None else {**_call_record(cause.named), "text": cause.text},
        "wrong_kernels": [
            {**_call_record(one.call), "slot": one.slot, "error": one.error, "side": _SIDES[one.side]}
            for one in gap.wrong
        ],
        "parting": None if parting is None else {**_call_record(parting.call), "distances": list(parting.distances)},
        "unproven": list(gap.unproven),
    }


def _call_record(call: Call) -> dict[str, str]:
    return {"call": call.name, "place": _place(call)}


def _headline(gap: Gap) -> str:
    one, other = gap.names
    count = gap.difference.numel()
    apart = gap.relative(gap.difference)
    if not apart:
        return f"{one} and {other} of the baseline are equal: {count} elements."
    largest = gap.difference.abs().nan_to_num(0.0)
    at = list(place_in(largest.shape, int(largest.argmax())))
    what = (
        f"{one} is {apart:.3g} from {other} of the baseline: {count} elements, most {float(largest.max()):.3g} at {at}"
    )
    return f"{what}. {_verdict(gap)}"


def _verdict(gap: Gap) -> str:
    if gap.is_other_function:
        return "They are other functions."
    if gap.wrong:
        return "They are the same function, and a kernel is wrong."
    if gap.parting is not None:
        return "They are the same function; precision is lost."
    return "They are the same function, and rounding explains it."


def _where(gap: Gap) -> Iterator[str]:
    if gap.cause is not None:
        cause, named = gap.cause, gap.cause.named
        side = "" if cause.target is not None else " of the baseline"
        beside = f" (baseline {cause.baseline.name})" if cause.target is not None and cause.baseline is not None else ""
        yield f"Other function from {named.name}{side}{beside} on: {cause.text}."
        yield f"  {_place(named)}"
    for wrong in gap.wrong[:_MOST]:
        yield f"Wrong kernel of the {_SIDES[wrong.side]}: {wrong.call.name}, {wrong.slot}, own error {wrong.error:.3g}."
        yield f"  {_place(wrong.call)}"
    if gap.parting is not None:
        parting = gap.parting
        beside = f" (baseline {parting.partner.name})" if parting.partner is not None else ""
        far, near = parting.distances
        yield (
            f"They part by more than rounding from {parting.call.name}{beside} on: its result is {far:.3g} from "
            f"float64, what it read {parting.given:.3g}, the baseline's result {near:.3g}."
        )
        yield f"  {_place(parting.call)}"


def _elements(gap: Gap) -> Iterator[str]:
    """Yield the elements that are most apart, each with its parts."""
    sizes = gap.difference.abs().nan_to_num(0.0).reshape(-1)
    count = min(_MOST, int((sizes > 0).sum()))
    if not count:
        return
    yield "Most apart:"
    parts = {name: part.reshape(-1) for name, part in gap.parts.items()}
    for place in sizes.topk(count).indices.tolist():
        ours, theirs = (float(side.reshape(-1)[place]) for side in gap.recorded)
        least = _SHARE * abs(ours - theirs)
        said = [f"{float(part[place]):+.3g} {name}" for name, part in parts.items() if abs(float(part[place])) > least]
        at = list(place_in(gap.difference.shape, place))
        yield f"  {at} {ours:.6g} against {theirs:.6g}: {ours - theirs:+.3g} = {', '.join(said)}"


def _place(call: Call) -> str:
    place = place_of(call)
    where = [f"op {place.op}", f"phase {place.phase}"]
    where += [f"module {place.module}"] if place.module else []
    where += [f"source {place.source}"] if place.source else []
    return ", ".join(where)
