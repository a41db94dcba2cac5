"""Proves from two indexes alone that two steps are equal bit by bit: then nothing has to be evaluated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat, zip_longest
from typing import Any, Final

import torch

from ...dump import RankDump, Value
from ...store import records
from ...store.op_names import is_workspace
from ..distance.value_distance import Closeness, closeness, same_bits
from ..evaluation.memory import UNREADABLE
from ..evidence.evidence_rows import Pair
from ..evidence.findings import Place, Row, Status, place_of
from ..flow.data_flow import DataFlow
from ..pairing.alignment import How
from ..pairing.call_keys import normal_module

_EQUAL: Final = Closeness("tensor", bitwise=True, error=0.0)
_TIMES: Final = frozenset(("start_ns", "duration_ns", "sequence_nr", "stack", "thread", "op", "module"))
_CALL_FIELDS: Final = tuple(n for n, name in enumerate(records.Call._fields) if name not in _TIMES)


def is_equal_step(target: RankDump, baseline: RankDump) -> bool:
    """Return True if both made the same calls in the same order, on values with the same bytes.

    Bytes are compared by their checksums. False proves nothing: equal steps that were written differently have
    different indexes.
    """
    ours, theirs = target.tables, baseline.tables
    return (
        len(ours.calls) == len(theirs.calls)
        and len(ours.data) == len(theirs.data)
        and all(_same_op(target, baseline, number) for number in ours.ops)
        and all(map(_same_call, ours.calls, theirs.calls, repeat(ours), repeat(theirs)))
        and all(one == other for one, other in zip_longest(_values(ours), _values(theirs)))
        and _same_bytes(target, baseline)
        and all(one[1:3] == other[1:3] for one, other in zip_longest(ours.gradients, theirs.gradients, fillvalue=()))
    )


def _same_op(target: RankDump, baseline: RankDump, number: int) -> bool:
    one, other = target.tables.ops.find(number), baseline.tables.ops.find(number)
    if one is None or other is None:
        return one is other
    return target.tables.call_head(number) == baseline.tables.call_head(number) and one.call_kind == other.call_kind


def _same_call(one: records.Call, other: records.Call, ours: Any, theirs: Any) -> bool:
    if one.op != other.op or ours.text(one.module) != theirs.text(other.module):
        return False
    return all(one[n] == other[n] for n in _CALL_FIELDS if n < len(one) and n < len(other)) and len(one) == len(other)


def _values(tables: Any) -> Iterator[tuple[Any, ...]]:
    for value in tables.values.records():
        yield (*value[:5], tables.text(value.dtype), list(value.shape), list(value.stride), *value[8:])


def _same_bytes(target: RankDump, baseline: RankDump) -> bool:
    """Return True if all values hold the same bytes; bytes are read only if blobs were packed differently.

    The workspace of a kernel does not count.
    """
    if set(target.tables.data) != set(baseline.tables.data):
        return False
    for id in target.tables.data:
        values = target.value_by_id(id), baseline.value_by_id(id)
        if same_bits(*values) or (any(map(_shares_blob, values)) and _same_elements(*values)):
            continue
        maker = values[0].producer
        if maker is None or not is_workspace(maker[0].op, maker[1]):
            return False
    return True


def _shares_blob(value: Value) -> bool:
    """Return True if a value's bytes share a blob with others, so that the checksum is not theirs alone."""
    data = value.data
    return data is not None and value.rank.tables.blobs[data.blob].nbytes != value.numel * value.dtype.itemsize


def _same_elements(one: Value, other: Value) -> bool:
    try:
        ours, theirs = (value.shared_tensor().contiguous().view(-1).view(torch.uint8) for value in (one, other))
    except UNREADABLE:
        return False
    return torch.equal(ours, theirs)


@dataclass(slots=True)
class EqualStep:
    """The rows of two bitwise equal steps."""

    rows: list[Row] = field(default_factory=list)
    judged: int = 0  # calls with results
    hows: Counter[How] = field(default_factory=Counter)  # pairs by how they were found
    paired: dict[str, str] = field(default_factory=dict)  # names of calls
    modules: Counter[tuple[str, str]] = field(default_factory=Counter)  # their modules


def rows_of_equal(flow: DataFlow, pairs: Iterable[Pair]) -> EqualStep:
    """Return the rows of pairs of bitwise equal calls."""
    found = EqualStep()
    for pair in pairs:
        call = pair.target
        found.hows[pair.how] += 1
        found.paired[call.name] = pair.baseline.name
        found.modules[normal_module(call.module), normal_module(pair.baseline.module)] += 1
        is_op = call.kind == "aten"
        if is_op and not flow.takes_part(call):
            continue
        results = flow.results(call) if is_op else [*call.output_values()]
        found.judged += bool(is_op and results)
        theirs = dict(pair.baseline.result_values() if is_op else pair.baseline.output_values())
        places: tuple[Place, Place] | None = None
        for slot, value in results:
            if slot in theirs:
                is_known = value.data is not None and value.numel and not is_workspace(call.op, slot)
                close = _EQUAL if is_known and not value.absence else closeness(value, theirs[slot])
                places = places or _places(pair)
                if not close.bitwise and is_op and is_workspace(call.op, slot):
                    continue
                status: Status = "same" if close.bitwise else "unknown"
                found.rows.append(Row(*places, pair.how, slot, status, close, note=close.reason, floor_from="exact"))
    return found


def _places(pair: Pair) -> tuple[Place, Place]:
    """Return both calls of a pair as evidence names them; the place once, if both have the same."""
    ours, theirs = place_of(pair.target), place_of(pair.baseline)
    return ours, ours if ours == theirs else theirs
