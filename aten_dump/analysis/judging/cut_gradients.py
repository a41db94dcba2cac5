"""Where a gradient was cut off that the other side has: a detach, or a block without gradients.

Theory of operation
    A gradient that is lost shows in backward, as calls that only one side has; the mistake is in forward. Of the pairs
    of forward calls that have a backward on one side only, the last is where backward first goes another way. If it
    made a node on the side that lacks the backward, what it made was cut off; if not, what it was given was, at the
    first call behind it of which that holds. The detach that did it is named, if there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Sequence
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
    if not found or not _is_of_backward(knows, found[0]):
        return found
    reasons = [found[0], *(finding for finding in found[1:] if _is_lone(finding))]
    for reason in reasons:
        for side in (0, 1):
            lacking = _lacking(knows, side)
            if lacking and _is_about(knows, reason, side, lacking):
                found.remove(reason)
                return [_at(knows, reason, _cut(knows, side, lacking), side), *found]
    return sorted(found, key=lambda finding: not _is_lone(finding)) if found[0].row.place.phase != "backward" else found


def _is_of_backward(knows: Knowledge, finding: Finding) -> bool:
    """Tell whether a finding is of the backward or of what comes after it: clipping, the optimizer."""
    begun = next((call.id for call in knows.target.calls if call.phase == "backward"), sys.maxsize)
    return finding.kind == "gradient" or finding.order[0] >= begun


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


def _is_about(knows: Knowledge, finding: Finding, side: Side, lacking: Iterable[_Pair]) -> bool:
    """Tell whether a finding has to do with the backward that a side lacks."""
    if _is_lone(finding):
        return (finding.row.target is None) == (side == 0)
    having = (knows.target, knows.baseline)[1 - side]
    lost = {other.id for _, other in lacking}
    calls = [call for call in having.calls if call.phase == "backward" and call.name in set(finding.calls)]
    return any(call.forward is not None and call.forward.id in lost for call in calls)


def _cut(knows: Knowledge, side: Side, lacking: list[_Pair]) -> Call:
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
