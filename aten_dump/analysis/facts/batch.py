"""The batch of a step: the inputs of its outermost modules that no module made."""

from __future__ import annotations

from ...dump import Call, RankDump, Value


def batch_of(rank: RankDump) -> list[Value]:
    """Return the inputs of outermost modules, except those that were made from another module's results.

    A program may call the parts of its model one by one.
    """
    calls = [call for call in rank.calls.filter(kind="module", phase="forward") if call.parent is None]
    known: dict[int, bool] = {}
    return [value for call in calls for _, value in call.input_values() if not _is_made(value, known)]


def _is_made(value: Value, known: dict[int, bool]) -> bool:
    """Return True if a module made a value or anything behind it; `known` has the answers for calls, by id."""
    waiting, seen = [value], set[int]()
    found = False
    while waiting and not found:
        producer = waiting.pop().producer
        if producer is None or producer[0].id in seen:
            continue
        call: Call = producer[0]
        seen.add(call.id)
        found = known[call.id] if call.id in known else bool(call.module)
        waiting += [] if call.id in known else [one for _, one in call.input_values()]
    known |= dict.fromkeys(seen if not found else (), False)
    return found
