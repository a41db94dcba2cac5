"""Gradients that a rank goes on with as it made them, where ranks should have reduced them.

Theory of operation
    Where DDP copies reduced gradients out of its buckets nobody sees it: data flow ends there, and a gradient that was
    not reduced shows where an optimizer reads it. What a rank holds there tells: the bits are those that an op of its
    own backward pass made. Where no rank has reduced it, the terms make up the right gradient, and still each rank
    makes a step of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from ...dump import Call, Value
from ...dump.across_ranks.assembled_rank import AssembledRank
from ...dump.across_ranks.assembled_value import AssembledValue
from ...store.op_names import is_collective
from ..distance.value_distance import closeness
from ..evidence.evidence_rows import Pair
from ..evidence.findings import Finding, Row
from ..evidence.place_of_call import place_of
from ..flow.data_flow import DataFlow
from ..judging.sources import digest_of

_TERM: Final = "each rank is given a term of it, which nothing has reduced, and makes a step of its own"


def unreduced_findings(pairs: Sequence[Pair], read_data: bool) -> Iterator[Finding]:
    """Yield what an optimizer reads of which each rank has a term on one side alone, each once.

    Args:
        pairs: of calls, with the values that they were given: not yet taken for those that they were moved from.
        read_data: compare by tensors, where they were recorded.
    """
    seen: set[int] = set()
    for pair in pairs:
        theirs = dict(pair.baseline.input_values()) if pair.target.phase == "optimizer" else {}
        for slot, value in pair.target.input_values():
            other = theirs.get(slot)
            if other is None or value.id in seen or _is_term(value) == _is_term(other):
                continue
            seen.add(value.id)
            close = closeness(value, other, data=read_data)
            row = Row(place_of(pair.target), place_of(pair.baseline), pair.how, slot, "different", close, 0.0, "exact")
            where = "" if _is_term(value) else "in the baseline, "
            yield Finding("moved", row, f"{where}{_TERM}", "", (pair.target.id, 0))


def _is_term(value: Value) -> bool:
    """Tell whether ranks hold terms of what a value is put together of."""
    if not isinstance(value, AssembledValue) or value.assembly.grid is None or not value.assembly.settled:
        return False
    return not value.assembly.shared and value.assembly.grid.placements[0].kind in ("sum", "avg")


def told_where_reduced(finding: Finding, target: AssembledRank) -> Finding:
    """Return a finding at the collective that should have reduced what it is about, if it is about such a gradient."""
    row = finding.row
    if row.target is None or not row.slot.startswith("input"):
        return finding
    reader = target.call(row.target.id)
    value = dict(reader.input_values()).get(row.slot)
    if not isinstance(value, AssembledValue) or value.assembly.shared or len(value.assembly.parts) < 2:
        return finding
    makers = {number: call for number, call in _makers(target, value) if call.id < reader.id}
    if not makers:
        return finding
    made = min(makers.values(), key=lambda call: call.id)
    between = (call for call in target.lead.calls.filter(kind="aten") if made.id < call.id < reader.id)
    reduces = next((call for call in between if is_collective(call.op)), None)
    if reduces is None:
        return finding
    ranks = ", ".join(map(str, makers))
    text = f"on rank {ranks}, {reader.name} is given what {made.name} made there, as if this had reduced nothing"
    return replace(finding, kind="moved", row=replace(row, target=place_of(reduces)), text=text, order=(reduces.id, 1))


def _makers(target: AssembledRank, value: AssembledValue) -> Iterator[tuple[int, Call]]:
    """Yield (rank, the lead's call) for each rank that holds the very bits that an op of its backward pass made."""
    for number, part in value.assembly.parts.items():
        wanted = digest_of(part)
        if wanted is None:
            continue
        flow = DataFlow(target.ranks[number], "aten")
        for other in _of_shape(part):
            maker = flow.maker(other)
            if maker is not None and maker.phase == "backward" and digest_of(other) == wanted:
                lead = _of_lead(target, number, maker)
                if lead is not None and lead.id not in target.aside:  # not what a collective brought
                    yield number, lead
                    break


def _of_lead(target: AssembledRank, number: int, call: Call) -> Call | None:
    """Return the lead's call that corresponds to one of another rank."""
    here = target.whole.local_calls
    return next((mine for mine in target.lead.calls if here(mine.id).get(number) == call.id), None)


def _of_shape(part: Value) -> Iterator[Value]:
    """Yield the other values of a rank that have the shape and dtype of one."""
    mine = part.record
    for record in part.rank.tables.values.records():
        if record.id != mine.id and (record.dtype, record.shape) == (mine.dtype, mine.shape):
            yield part.rank.value_by_id(record.id)
