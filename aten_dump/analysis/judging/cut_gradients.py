"""Where a gradient was cut off that the other side has: a detach, or a block without gradients.

Theory of operation
    A gradient that is lost shows in backward, as calls that only one side has; the mistake is in forward. Of the pairs
    of forward calls that have a backward on one side only, the last is where backward first goes another way. If it
    made a node on the side that lacks the backward, what it made was cut off; if not, what it was given was, at the
    first call behind it of which that holds. The detach that did it is named, if there is one. Where the calls have a
    backward on both sides, one operand of one of them may be detached, such as a weight.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Final

from ...dump import Call
from ...store.op_names import read_op_name
from ..evidence.findings import Finding
from ..flow.counterparts import Side
from ..flow.data_flow import DataFlow
from .knowledge import Knowledge

_DETACH: Final = "aten::detach"
_Pair = tuple[Call, Call]


def named_at_the_cut(knows: Knowledge, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings, first what cuts a gradient off if that is the reason of the first one."""
    found = list(findings)
    if not found or _is_wrong_op(found[0]) or not _is_of_backward(knows, found[0]):
        return found
    reasons = [found[0], *(finding for finding in found[1:] if _is_lone(finding))]
    sides: tuple[Side, Side] = (0, 1)
    lacking = _lacking(knows, 0), _lacking(knows, 1)
    for cut_of in (_cut_through, _cut_beside):
        for reason in reasons:
            for side in sides:
                cut = cut_of(knows, reason, side, lacking[side])
                if cut is not None:
                    found.remove(reason)
                    return [_at(knows, reason, cut, side), *found]
    return sorted(found, key=lambda finding: not _is_lone(finding)) if found[0].row.place.phase != "backward" else found


def _is_of_backward(knows: Knowledge, finding: Finding) -> bool:
    """Tell whether a finding is of the backward or of what comes after it: clipping, the optimizer."""
    begun = next((call.id for call in knows.target.calls if call.phase == "backward"), sys.maxsize)
    return finding.kind == "gradient" or finding.order[0] >= begun


def _is_wrong_op(finding: Finding) -> bool:
    """Tell whether a region means the same on both sides, so that nothing is cut off, and an op in it is wrong."""
    return bool(finding.calls) and finding.row.floor_from == "replay"


def _is_lone(finding: Finding) -> bool:
    """Tell whether it is that a parameter has a gradient on one side only."""
    return finding.kind == "gradient" and not finding.calls and None in (finding.row.target, finding.row.baseline)


def _lacking(knows: Knowledge, side: Side) -> list[_Pair]:
    """Return the pairs of forward calls, the lacking side's first, of which that side has no backward."""
    pairs = [(knows.target.call(number), other) for number, other in sorted(knows.wiring.pairs.items())]
    ordered = [pair if side == 0 else (pair[1], pair[0]) for pair in pairs]
    return [
        (ours, other) for ours, other in ordered if ours.phase == "forward" and other.backward and not ours.backward
    ]


def _cut_through(knows: Knowledge, finding: Finding, side: Side, lacking: Sequence[_Pair]) -> Call | None:
    """Return what cuts off the gradients of calls, if a finding is about the backward of these that a side lacks."""
    if not lacking:
        return None
    if _is_lone(finding):
        is_about = (finding.row.target is None) == (side == 0)
    else:
        lost = {other.id for _, other in lacking}
        is_about = any(call.id in lost for call in _forwards_of(knows, finding, side))
    return _cut(knows, side, lacking) if is_about else None


def _cut_beside(knows: Knowledge, finding: Finding, side: Side, lacking: Sequence[_Pair]) -> Call | None:
    """Return what cuts off the gradient of one operand of a call that has a backward on both sides."""
    forwards = _forwards_of(knows, finding, side)
    lost = {number for _, other in lacking for _, number in other.output_slots()}
    if any(number in lost for call in forwards for _, number in call.input_slots()):
        return _cut(knows, side, lacking)
    wanted = {call.id for call in forwards}
    for number, other in sorted(knows.wiring.pairs.items()):
        ours, theirs = (knows.target.call(number), other) if side == 0 else (other, knows.target.call(number))
        if theirs.id in wanted:
            found = detach_of(knows, side, {value for _, value in ours.input_slots()}, (0, ours.id))
            if found is not None:
                return found
    return None


def _forwards_of(knows: Knowledge, finding: Finding, side: Side) -> list[Call]:
    """Return the forward calls, of the side that has their backward, that a finding's calls are the backward of."""
    names = {*finding.calls, finding.row.place.call}
    having = (knows.target, knows.baseline)[1 - side]
    calls = (call.forward for call in having.calls if call.phase == "backward" and call.name in names)
    return [call for call in calls if call is not None]


def _cut(knows: Knowledge, side: Side, lacking: Sequence[_Pair]) -> Call:
    flow = knows.flows[side]
    last, other = lacking[-1]
    if last.sequence_nr is None and other.sequence_nr is not None:
        without = {ours.id for ours, other in lacking if ours.sequence_nr is None and other.sequence_nr is not None}
        first = _first_behind(flow, last, without)
        read = {number for _, number in first.input_slots()}
        return detach_of(knows, side, read, (0, first.id)) or first
    made = {number for _, number in last.output_slots()}
    return detach_of(knows, side, made, (last.id, sys.maxsize)) or last


def detach_of(knows: Knowledge, side: Side, values: set[int], between: tuple[int, int]) -> Call | None:
    """Return a detach of one of some values that the other side lacks; what it returns is no new value."""
    pairs = knows.wiring.pairs
    paired = pairs.keys() if side == 0 else {other.id for other in pairs.values()}
    for call in knows.flows[side].calls():
        if not between[0] < call.id < between[1] or call.id in paired:
            continue
        is_detach = read_op_name(call.op).without_overload == _DETACH
        if is_detach and any(number in values for _, number in call.input_slots()):
            return call
    return None


def _first_behind(flow: DataFlow, call: Call, among: Container[int]) -> Call:
    """Return the first call, in execution order, from which only such calls lead to a call."""
    first, waiting, seen = call, [call], {call.id}
    while waiting:
        for _, value in waiting.pop().input_values():
            maker = flow.maker(value)
            if maker is not None and maker.id in among and maker.id not in seen:
                seen.add(maker.id)
                waiting.append(maker)
                first = min(first, maker, key=lambda found: found.id)
    return first


def _at(knows: Knowledge, finding: Finding, call: Call, side: Side) -> Finding:
    there = knows.evidence.place(call)
    row = replace(finding.row, target=None if side else there, baseline=there if side else None, slot="output")
    who = ("the target", "the baseline")
    text = f"no gradient flows back through it in {who[side]}, in {who[1 - side]} one does; {finding.text}"
    return replace(finding, row=row, text=text, order=(call.id if side == 0 else finding.order[0], 0))
