"""The answer for one dump: what ran, what was not seen, what it cost, where NaN and Inf came from, loss scale."""

from __future__ import annotations

from typing import Any, Final

from ....analysis.nonfinite.explanations import Slot
from ....analysis.nonfinite.search import Event, NonFinite, find_nonfinite
from ....dump import Dump, RankDump
from ....dump.known_tables import once_for_alike
from ....errors import AtenDumpError, MissingDataError
from ....store.run_json import ranges_of
from ...nonfinite import answer_lines

_MOST_EVENTS: Final = 12
_RUN_FACTS: Final = (
    "world_size",
    "python",
    "platform",
    "recorder",
    "packages",
    "devices",
    "computing",
    "threads",
    "command",
)


def run_facts(dump: Dump) -> dict[str, Any]:
    """Return what ran, without what is shown elsewhere."""
    return {name: dump.run[name] for name in _RUN_FACTS if name in dump.run}


def rank_outline(rank: RankDump) -> dict[str, Any]:
    """Return sizes, notes and costs of a step and rank, as far as its files and its tables show."""
    return {
        "step": rank.step,
        "rank": rank.rank,
        "complete": rank.complete,
        "state": rank.state,
        **_said(rank),
        "index_bytes": rank.tables.index_bytes,
        "shard_bytes": rank.shard_bytes,
        "missing": rank.missing,
        "seconds": rank.seconds,
        "loss_scales": [_loss_scale(update) for update in rank.loss_scales] if _scales_losses(rank) else [],
        "nonfinite_values": _nonfinite_values(rank),
    }


@once_for_alike
def _said(rank: RankDump) -> dict[str, Any]:
    """Return what steps that say the same have in common."""
    return {
        "calls": len(rank.calls),
        "kinds": dict(rank.calls_by_kind()),
        "values": len(rank.values),
        "statistics": list(rank.config.get("statistics") or ()),
        "notes": [{"code": note.code, "message": note.message, "count": note.count} for note in rank.notes],
        "config": {name: rank.config.get(name) for name in ("level", "data", "io", "stacks", "sample", "trigger")},
        "saved_bytes": rank.saved_for_backward().nbytes,
    }


@once_for_alike
def _scales_losses(rank: RankDump) -> bool:
    return bool(rank.loss_scales)


def _nonfinite_values(rank: RankDump) -> int | None:
    """Count the values whose statistics count NaN or infinities; None where none were recorded."""
    names = rank.config.get("statistics") or ()
    at = [number for number, name in enumerate(names) if name in ("nan", "posinf", "neginf")]
    if not at or not len(rank.tables.statistics):
        return None
    near = slice(min(at), max(at) + 1)
    rows = [row for row in rank.tables.statistics.in_order() if any(row[near])]
    return sum(any(isinstance(row[n], int) and row[n] > 0 for n in at if n < len(row)) for row in rows)


def _loss_scale(update: Any) -> dict[str, Any]:
    return {
        "call": update.call.name, "scale": update.scale, "found_inf": update.found_inf, "next_scale": update.next_scale
    }  # fmt: skip


def nonfinite_answer(rank: RankDump) -> dict[str, Any]:
    """Return where NaN and Inf of a step and rank came from, or why that is not known."""
    try:
        found = find_nonfinite(rank)
    except MissingDataError as error:
        return {"unknown": str(error)}
    except AtenDumpError as error:  # a damaged dump: the rest of it is worth a report
        return {"unknown": f"could not be searched: {error}"}
    if found.lacks and found.first is None:
        return {"unknown": f"the recording is {found.lacks}"}
    return {
        "lines": list(answer_lines(found)),
        "first": None if found.first is None else _event(found.first),
        "producers": [_event(event) for event in found.producers[:_MOST_EVENTS]],
        "counts": _counts(found),
        "calls_by_kind": _calls_by_kind(rank, found),
        "calls": found.calls,
        "could_not_be_judged": found.unknown,
    }


def _calls_by_kind(rank: RankDump, found: NonFinite) -> dict[str, str]:
    """Return the positions of the calls that made NaN or Inf, or brought them in, and of masks, as ranges."""
    positions = rank.tables.positions
    kinds = {"made": (*found.producers, *found.outside, *found.scaled), "mask": found.masks}
    return {kind: ranges_of(positions[event.call_id] for event in events) for kind, events in kinds.items()}


def _counts(found: NonFinite) -> dict[str, int]:
    return {
        "producers": len(found.producers),
        "from outside": len(found.outside),
        "propagators": len(found.propagators),
        "masks": len(found.masks),
        "scaled overflows": len(found.scaled),
        "that reached nothing": len(found.contained),
        "near overflow": len(found.near_overflow),
    }


def _event(event: Event) -> dict[str, Any]:
    return {
        "kind": event.kind, "call": event.name, "op": event.op, "phase": event.phase, "module": event.module,
        "source": event.source, "forward": event.forward, "why": event.why,
        "slots": [_slot(slot) for slot in event.results],
    }  # fmt: skip


def _slot(slot: Slot) -> list[Any]:
    """Return name, dtype, elements, NaN, +Inf, -Inf."""
    found = slot.contents
    return [slot.name, slot.dtype, found.count, found.nan, found.posinf, found.neginf]
