"""Non-finite values as text: the first cause, then what made, passed on and placed them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from rich.table import Table

from ..analysis.nonfinite import Event, NonFinite, Slot
from .tables import _table


def answer_lines(found: NonFinite) -> Iterator[str]:
    """Yield the first cause in a paragraph, then counts."""
    where = f"{found.path} (step {found.step}, rank {found.rank})"
    first = found.first
    if first is None:
        yield f"no call of {where} made a NaN or Inf that was not a mask"
    else:
        yield f"first in {where}: {first.name} ({first.op}), {'; '.join(map(_slot_text, first.results))}"
        yield f"  {first.why}" if first.why else "  from finite inputs"
        yield f"  {_place(first)}"
        for slot in first.inputs:
            yield f"  {_range_text(slot)}"
    yield (
        f"{found.calls} calls: {len(found.producers)} producers, {len(found.outside)} given from outside, "
        f"{len(found.propagators)} propagators, {len(found.masks)} masks, "
        f"{len(found.near_overflow)} values near overflow"
    )
    if found.unknown:
        yield f"{found.unknown} floating results could not be judged: neither statistics nor bytes of them were kept"


def _place(event: Event) -> str:
    parts = [f"phase {event.phase}"]
    parts += [f"module {event.module}"] if event.module else []
    parts += [f"belongs to {event.forward}"] if event.forward else []
    parts += [event.source] if event.source else []
    return ", ".join(parts)


def _slot_text(slot: Slot) -> str:
    found = slot.contents
    counts = [f"{n} {what}" for n, what in ((found.nan, "NaN"), (found.posinf, "+Inf"), (found.neginf, "-Inf")) if n]
    return f"{slot.name} has {', '.join(counts)} of {found.count} {slot.dtype}"


def _range_text(slot: Slot) -> str:
    found = slot.contents
    if not found.finite:
        return _slot_text(slot)
    if found.low is None or found.high is None:
        return f"{slot.name}: {slot.dtype}"
    return f"{slot.name}: {slot.dtype} from {found.low:.6g} to {found.high:.6g}"


def events_table(found: NonFinite, limit: int | None, *, propagators: bool, is_terminal: bool) -> tuple[Table, int]:
    """Return a row for each event in execution order, and how many rows `limit` left out.

    Args:
        found: the events.
        limit: most rows; None is all.
        propagators: show propagators too.
        is_terminal: draw lines.
    """
    events = [*found.producers, *found.outside, *found.masks, *(found.propagators if propagators else ())]
    events.sort(key=lambda event: event.call_id)
    table = _table(
        None, "call", "kind", "phase", "module", "slot", "NaN", "+Inf", "-Inf", left=5, is_terminal=is_terminal
    )
    rows = [(event, slot) for event in events for slot in event.results]
    for event, slot in islice(rows, limit):
        counts = slot.contents
        numbers = (str(counts.nan), str(counts.posinf), str(counts.neginf))
        table.add_row(event.name, event.kind, event.phase, event.module or "-", slot.name, *numbers)
    return table, max(0, len(rows) - (len(rows) if limit is None else limit))


def near_lines(found: NonFinite, limit: int | None) -> Iterator[str]:
    """Yield the values near overflow, the nearest first."""
    nearest = sorted(found.near_overflow, key=lambda value: -value.share)
    for value in islice(nearest, limit):
        share = f"{100 * value.share:.0f}% of the greatest {value.dtype}"
        yield f"near overflow: {value.name} reaches {value.greatest:.3g}, {share}"
