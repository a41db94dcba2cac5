"""What is said of a tensor that was not the same after it was moved between ranks."""

from __future__ import annotations

from ...dump import Call, Value
from ...dump.across_ranks.assembled_rank import AssembledRank
from ...dump.across_ranks.assembled_value import AssembledValue
from ...store.op_names import is_collective
from ..evidence.findings import Finding, Row
from ..evidence.place_of_call import place_of
from .layout_pair_walk import shares, who_is_off
from .moved_values import Fault
from .rank_replays import RankReplays


def moved_finding(rank: AssembledRank, fault: Fault, replays: RankReplays, *, is_baseline: bool) -> Finding:
    """Return the finding: the op on the way that a rank computed wrong, else the last collective."""
    value, origin = rank.value_by_id(fault.value), rank.value_by_id(fault.origin)
    wrong = _wrong_on_the_way(rank, fault, replays)
    if wrong is not None:
        call, who = wrong
        text = f"its result is wrong for its inputs, on the way from {_name(origin)} to {fault.reader.name}; {who}"
    else:
        call, text = fault.moved_by, f"what it made of {_name(origin)} on the way to {fault.reader.name} is not what "
        text += "went in, all ranks put together"
        if fault.found.level == "tensor" and isinstance(value, AssembledValue):
            text += f": {shares(value, origin)}"
    if is_baseline:
        text = f"in the baseline, {text}"
    place = place_of(call)
    target, baseline = (None, place) if is_baseline else (place, None)
    ratio = (fault.found.error or 0.0) / fault.limit if fault.limit else None
    row = Row(target, baseline, "", "output", "different", fault.found, fault.limit, "dtype", ratio)
    return Finding("op" if wrong else "moved", row, text, "", (call.id, 1))


def _wrong_on_the_way(rank: AssembledRank, fault: Fault, replays: RankReplays) -> tuple[Call, str] | None:
    """Return the first op on the way that a rank computed wrong, and which rank did."""
    for call in fault.behind:
        if is_collective(call.op):
            continue
        own = replays.own_errors(rank, call.id)
        if not isinstance(own, str) and max(own.ratios.values(), default=0.0) > 1:
            return call, who_is_off(own.ratios)
    return None


def _name(value: Value) -> str:
    made = value.producer
    return f"{made[0].name} {made[1]}" if made else f"a tensor {value.dtype_name}{list(value.shape)} from outside"
