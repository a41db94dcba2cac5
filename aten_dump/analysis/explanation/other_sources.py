"""Two calls that read different memory from outside the step, even if its contents are equal."""

from __future__ import annotations

from ...dump import Call, Value
from ...store.op_names import reads_no_elements
from ..cone.cone import Cone
from ..evaluation.evaluation import Evaluation
from ..flow.argument_differences import argument_differences
from ..flow.data_flow import DataFlow
from ..signatures.signature import is_same, sign_value
from ..sources.stand_ins import Sources
from .left_alone import name_of

_LEFT = "the step before left it, but it is another tensor than in the baseline"


def other_source(
    sides: tuple[Evaluation, Evaluation], sources: Sources, first: Call, other: Call
) -> tuple[str, str] | None:
    """Return the slot in which two calls read different memory from outside, and a sentence; None if there is none."""
    theirs = dict(sides[1].flow.reads(other))
    for slot, value in sides[0].flow.reads(first):
        if slot not in theirs or sides[0].numbers.get(value.id) == sides[1].numbers.get(theirs[slot].id):
            continue
        if sides[0].flow.maker(value) is not None or sides[1].flow.maker(theirs[slot]) is not None:
            continue
        if _held_the_same(value, theirs[slot]):
            names = name_of(sides[0].flow, value), name_of(sides[1].flow, theirs[slot])
            return slot, f"it reads {names[0]}, in the baseline {names[1]} of another place, which held the same"
        writers = None if sources.before is None else sources.before.writers(value, theirs[slot])
        if writers is not None:
            return slot, _LEFT + _apart(*writers)
    return None


def _apart(target: Call | None, baseline: Call | None) -> str:
    """Return a clause on how the calls that left two values differ; "" if their arguments are the same."""
    if target is None or baseline is None:
        return ""
    if target.op != baseline.op:
        return f": {_with_line(target)} wrote it last, in the baseline {_with_line(baseline)}"
    differences = "; ".join(map(str, argument_differences(target, baseline)))
    return f": {_with_line(target)} wrote it last, and was given other arguments: {differences}" if differences else ""


def _with_line(call: Call) -> str:
    return f"{call.name} ({call.where})" if call.where else call.name


def computing(flow: DataFlow, cone: Cone) -> Call | None:
    """Return the first call of a cone that is no view."""
    return next((call for _, call in sorted(cone.calls.items()) if not flow.is_view(call)), None)


def _held_the_same(one: Value, other: Value) -> bool:
    return one.has_data and other.has_data and is_same(sign_value(one), sign_value(other))


def first_reader(evaluation: Evaluation, numbers: set[int]) -> Call | None:
    """Return the first call that reads all or most of some values, also through views."""
    flow = evaluation.flow
    shown = {number: number for number in numbers}
    found: Call | None = None
    most = 0
    for call in flow.calls():
        read = (evaluation.numbers.get(value.id, 0) for _, value in call.input_values())
        given = {shown[number] for number in read if number in shown}
        if given and flow.is_view(call):
            for _, value in call.output_values():
                shown.setdefault(evaluation.numbers.get(value.id, 0), min(given))
        elif len(given) > most and not reads_no_elements(call.op):
            found, most = call, len(given)
            if most == len(numbers):
                break
    return found
