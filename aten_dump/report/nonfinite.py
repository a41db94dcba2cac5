"""Non-finite values as text: the first cause, then what made, passed on and placed them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from ..analysis.nonfinite.explanations import Slot
from ..analysis.nonfinite.search import Event, NonFinite
from ..dump.shown.command_lines import next_line
from ..dump.shown.short_texts import format_exactly
from ..dump.shown.step_ranks import over_ranks
from ..dump.wholeness import reason_of
from ..store.op_names import is_collective
from .table import Table, names, numbers, words

_MOST_NAMED: Final = 3


def answer_lines(found: NonFinite, earlier_step: int | None = None) -> Iterator[str]:
    """Yield the first cause in a paragraph, then counts.

    Args:
        found: of one step and rank.
        earlier_step: a step before it in which this rank had NaN or Inf already.
    """
    where = f"{found.path} (step {found.step}, rank {found.rank})"
    first = found.first
    if first is not None:
        yield from _event_lines(f"first in {where}", first)
        if first.kind == "outside" and earlier_step is not None:
            yield f"  step {earlier_step} of this rank had NaN or Inf already: look there first"
        elif found.has_scaler and first.phase == "backward" and "kept" not in first.reaches:
            yield (
                "  a gradient scaler was at work: it tries how large the loss may be scaled before gradients overflow, "
                "and skips the optimizer's step when they do; that is no error if it is rare"
            )
    elif found.scaled:
        yield from _event_lines(
            f"no error in {where}, but gradients overflowed as a gradient scaler expects", found.scaled[0]
        )
    elif found.lacks:
        yield f"whether a call of {where} made NaN or Inf is not known: the recording is {reason_of(found.lacks)}"
        yield "of the calls that can be read none made one that was not a mask"
    elif found.contained:
        is_known = " is known to have" if found.unknown else ""
        yield f"no NaN or Inf of {where}{is_known} reached a loss, a gradient or what the step leaves (masks ignored)"
    else:
        is_known = " is known to have" if found.unknown else ""
        yield f"no call of {where}{is_known} made a NaN or Inf that was not a mask"
    yield from _contained_lines(found)
    yield _counts(found)
    if found.unknown:
        yield (
            f"{_count(found.unknown, 'floating result')} could not be judged: neither statistics of NaN and "
            "Inf nor all bytes of them were kept"
        )


def what_next(found: NonFinite) -> Iterator[str]:
    """Yield the command that shows the call that explains most, if there is one."""
    told = found.first or next(iter((*found.scaled, *found.contained)), None)
    if told is not None:
        yield next_line("show", found.path, told.name, step=found.step, rank=found.rank)


def _counts(found: NonFinite) -> str:
    counts = (
        (len(found.producers), "producer"),
        (len(found.outside), "call given NaN or Inf from before the step"),
        (len(found.scaled), "scaled overflow"),
        (len(found.propagators), "propagator"),
        (len(found.contained), "call made one that reached nothing"),
        (len(found.masks), "mask"),
        (len(found.near_overflow), "value near overflow"),
    )
    said = [_count(n, what) for n, what in counts if n]
    return _count(found.calls, "call") + (f": {', '.join(said)}" if said else "")


def _contained_lines(found: NonFinite) -> Iterator[str]:
    """Yield what was made and reached nothing: no finding, so it comes behind."""
    names = [f"{event.name} ({event.why})" if event.why else event.name for event in found.contained]
    if names:
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        yield f"  no loss, gradient or memory that is left depends on that of {', '.join(names[:_MOST_NAMED])}{more}"


def _event_lines(head: str, event: Event) -> Iterator[str]:
    yield f"{head}: {event.name} ({event.op}), {'; '.join(map(_slot_text, event.results))}"
    yield f"  {event.why}" if event.why else "  from finite inputs"
    yield f"  {_place(event)}"
    for slot in event.inputs:
        if slot.contents.low is not None or not slot.contents.finite:
            yield f"  {_range_text(slot)}"


def _count(n: int, what: str) -> str:
    head, space, rest = what.partition(" ")
    if head in ("call", "value"):
        return f"{n} {head}{'' if n == 1 else 's'}{space}{rest}"
    return f"{n} {what}{'' if n == 1 else 's'}"


def total_lines(all_found: Sequence[NonFinite], clean: int) -> Iterator[str]:
    """Yield, for several steps and ranks, where it began and how many have nothing to report.

    Within a step a call that made it goes before one that was given it, and both before a collective, which may have
    brought it from one of them.
    """
    began = min((found for found in all_found if found.first), key=how_early, default=None)
    if began is not None and began.first is not None:
        yield f"it began in step {began.step}, rank {began.rank}: {began.first.name} ({began.first.op})"
    contained = sum(1 for found in all_found if found.first is None and not found.scaled and found.contained)
    aside = f" (in {contained} a NaN or Inf reached nothing)" if contained else ""
    folders = f"{len(all_found)} step/rank folders have"
    yield f"{clean} of {folders} no NaN or Inf, masks ignored{aside}" if clean else f"all {folders} NaN or Inf{aside}"
    lacking = sum(1 for found in all_found if found.first is None and found.lacks)
    if lacking:
        yield f"of {lacking} that are not whole it is not known"
    unknown = sum(1 for found in all_found if found.first is None and found.unknown and not found.lacks)
    if unknown:
        yield f"of {unknown} of these not all could be judged"


def how_early(found: NonFinite) -> tuple[int, int]:
    """Return the order of what has NaN or Inf: by step, and by how far from their maker they were seen."""
    assert found.first is not None
    return found.step, 2 if is_collective(found.first.op) else int(found.first.kind == "outside")


def short_lines(all_found: Iterable[NonFinite]) -> Iterator[str]:
    """Return a line for steps and ranks of which no more is said, those of which the same is said together."""
    return over_ranks((found.step, found.rank, _in_short(found)) for found in all_found)


def _in_short(found: NonFinite) -> str:
    if found.first is not None and is_collective(found.first.op):
        return f"brought by {found.first.name} ({found.first.op})"
    if found.first is not None:
        return f"first in {found.first.name} ({found.first.op})"
    if found.scaled:
        return "no error, but gradients overflowed as a gradient scaler expects"
    if found.lacks:
        return "not whole: it is not known whether a call made NaN or Inf"
    return "not all could be judged" if found.unknown else "near overflow"


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
    ends = (format_exactly(end, slot.dtype) for end in (found.low, found.high) if end is not None)
    return f"{slot.name}: {slot.dtype} from {' to '.join(ends)}"


def events_table(found: NonFinite, limit: int | None, *, propagators: bool) -> tuple[Table, int]:
    """Return a row for each event in execution order, and how many rows `limit` left out.

    What reached nothing comes last.

    Args:
        found: the events.
        limit: most rows; None is all.
        propagators: show propagators too.
    """
    events = [*found.producers, *found.outside, *found.scaled, *found.masks]
    events += found.propagators if propagators else ()
    events.sort(key=lambda event: event.call_id)
    events += found.contained
    table = Table(
        names("call"),
        words("kind", spare=1),
        words("phase", spare=2),
        names("module", spare=3),
        words("slot"),
        numbers("NaN"),
        numbers("+Inf"),
        numbers("-Inf"),
    )
    rows = [(event, slot) for event in events for slot in event.results]
    for event, slot in islice(rows, limit):
        counts = slot.contents
        counted = (counts.nan, counts.posinf, counts.neginf)
        table.add_row(event.name, event.kind, event.phase, event.module or "-", slot.name, *counted)
    return table, max(0, len(rows) - (len(rows) if limit is None else limit))


def near_lines(all_found: Iterable[NonFinite], limit: int | None) -> Iterator[str]:
    """Yield the values near overflow of all steps and ranks, the nearest first."""
    values = [(value, found) for found in all_found for value in found.near_overflow]
    values.sort(key=lambda item: -item[0].share)
    for value, found in islice(values, limit):
        share = f"{100 * value.share:.0f}% of the greatest {value.dtype}"
        place = f"step {found.step}, rank {found.rank}"
        yield f"near overflow: {value.name} ({place}) reaches {value.greatest:.3g}, {share}"
    if limit is not None and len(values) > limit:
        yield f"{len(values) - limit} more values are near overflow; --all prints them"
