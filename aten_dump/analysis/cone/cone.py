"""Walks back from values that the other side lacks to values that it has.

Theory of operation
    The walk stops where both sides are the same: that is the cut. If rewritten code leads to the same value again, it
    is not in the cone. Views count as calls, so that a wrong slice is found.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from ...dump import Call, Value
from ..evaluation.evaluation import Evaluation
from ..flow.flat_memory import parts_of
from ..rerun.shared_memory import extent


@dataclass(slots=True)
class Cone:
    """The part of a step behind some ends that the other side lacks."""

    calls: dict[int, Call] = field(default_factory=dict)  # by id
    sources: dict[int, Value] = field(default_factory=dict)  # values that the other side lacks
    cut: dict[int, Value] = field(default_factory=dict)  # where the walk stopped

    @property
    def first(self) -> Call | None:
        """The first call in execution order."""
        return self.calls[min(self.calls)] if self.calls else None


def cone_of(evaluation: Evaluation, other: Container[int], starts: Iterable[Value]) -> Cone:
    """Return the cone behind some values.

    Args:
        evaluation: of the side that is walked.
        other: the numbers that the other side has.
        starts: values that differ, even if the other side has their numbers.
    """
    flow = evaluation.flow
    found = Cone()
    seen: set[int] = set()
    waiting = list(starts)
    differ = {value.id for value in waiting}
    while waiting:
        value = waiting.pop()
        if value.id in seen:
            continue
        seen.add(value.id)
        if value.id not in differ and _is_known(evaluation, other, value):
            found.cut[value.id] = value
            continue
        if value.undefined and evaluation.depends(value):
            found.cut[value.id] = value  # memory that nothing wrote: its readers may be the cause
            continue
        maker = flow.maker(value)
        if maker is not None and flow.is_view(maker):
            found.calls[maker.id] = maker
            waiting += [v for _, v in flow.reads(maker)]
            continue
        writer = flow.writer(value)
        if maker is None and writer is None and (written := written_parts(value)):
            waiting += written
            continue
        if writer is None:
            if value.undefined:
                continue
            (found.sources if maker is None else found.cut)[value.id] = value
            continue
        call, slot, whole = writer
        if whole.id != value.id and value.id not in differ and _is_known(evaluation, other, whole):
            found.cut[whole.id] = whole
            continue
        found.calls[call.id] = call
        waiting += [v for _, v in flow.behind(call, slot)]
        if call.mutated:
            waiting += [v for v in flow.before(call, whole) if not _covers(whole, v)]
    return found


def _is_known(evaluation: Evaluation, other: Container[int], value: Value) -> bool:
    """Return True if the other side has a value, or each of its parts."""
    parts = parts_of(value)
    if evaluation.numbers.get(value.id) in other:
        return True
    return bool(parts) and all(evaluation.numbers.get(part.id) in other for part in parts)


def made_of_nothing(evaluation: Evaluation, cone: Cone, other: Container[int]) -> set[int]:
    """Return the ids of the calls of a cone that only read results of such calls: factories and tables."""
    flow = evaluation.flow
    found: set[int] = set()
    for number, call in sorted(cone.calls.items()):
        makers = []
        for _, value in flow.reads(call):
            maker = flow.maker(value)
            makers.append(None if evaluation.numbers.get(value.id) in other or maker is None else maker.id)
        if not call.mutated and all(maker in found for maker in makers):
            found.add(number)
    return found


def written_parts(value: Value) -> list[Value]:
    """Return the parts of a sparse tensor through which the program wrote to it."""
    return [part for part in value.parts.values() if part.version]


def _covers(whole: Value, part: Value) -> bool:
    """Return True if a write to one value overwrites all that another one saw; False if there are no strides."""
    if {whole.layout_name, part.layout_name} != {"strided"}:
        return False
    (low, high), (start, end) = extent(whole), extent(part)
    return low <= start and end <= high
