"""Tables for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from rich.table import Table

from ..analysis.live_collectives import Group
from ..dump import Call, Dump, RankDump, SavedForBackward
from ..dump.index.summary import Summary
from ..dump.saved_for_backward import NOT_RECORDED
from ..store.records import CALL_KINDS, Note
from .units import counted, format_bytes, format_number, tensor_type

_LEFT: Final = "left"
UNCHECKED: Final = "unchecked"  # state of an index that ends with its commit record, and was not read whole


def _table(title: str | None, *names: str, left: int = 1, is_terminal: bool) -> Table:
    """Return an empty table whose first `left` columns are text and the others numbers."""
    from rich import box

    # In a pipe: no lines, so that a column is a word for awk and grep.
    table = Table(title=title, title_justify=_LEFT, box=box.SIMPLE_HEAD if is_terminal else None, pad_edge=False)
    for number, name in enumerate(names):
        table.add_column(name, justify=_LEFT if number < left else "right", no_wrap=True, overflow="ignore")
    return table


def run_lines(dump: Dump) -> Iterator[str]:
    """Yield what run.json says, a line a field; nested fields as ``name=value``."""
    yield f"{dump.path}: {counted(len(dump.steps), 'step')}, {counted(len(dump.ranks), 'rank')}"
    for name, fact in dump.run.items():
        text = " ".join(f"{key}={item}" for key, item in fact.items()) if isinstance(fact, dict) else str(fact)
        yield f"  {name}: {text}"
    for restarts, attempt in dump.attempts.items():
        sizes = f"{counted(len(attempt.steps), 'step')}, {counted(len(attempt.ranks), 'rank')}"
        yield f"  restart {restarts}: {sizes} in {attempt.path}"


def steps_table(
    found: Iterable[tuple[RankDump, Summary]],
    kinds: dict[RankDump, Counter[str]] | None,
    states: Mapping[RankDump, str] | None = None,
    *,
    is_terminal: bool,
) -> Table:
    """Return a row for each step and rank; with counts of calls by kind where given.

    Args:
        found: the steps and ranks, and what the two ends of their indexes say.
        kinds: counts of calls.
        states: their states; where they are not given, nobody has read what lies between the ends.
        is_terminal: draw lines.
    """
    kind_names = CALL_KINDS if kinds is not None else ()
    names = ("step", "rank", "state", "calls", *kind_names, "values", "index", "shards", "shard files")
    table = _table(None, *names, left=3, is_terminal=is_terminal)
    for rank, summary in found:
        state = (states or {}).get(rank) or (UNCHECKED if summary.commit else "interrupted")
        commit = summary.commit if state in (UNCHECKED, "complete") else None
        counts = kinds[rank] if kinds is not None and rank in kinds else None
        table.add_row(
            str(rank.step),
            str(rank.rank),
            state,
            str(commit.calls) if commit else "?" if counts is None else str(counts.total()),
            *(str(counts[kind]) if counts is not None else "?" for kind in kind_names),
            str(commit.values) if commit else "?",
            format_bytes(summary.index_bytes),
            format_bytes(summary.shard_bytes),
            str(summary.shards),
        )
    return table


def collectives_table(steps: Mapping[int, int], groups: Iterable[Group], *, is_terminal: bool) -> Table:
    """Return for each group and rank the collectives that it has begun: the last that ended, and what is pending.

    Args:
        steps: the step in which each rank is; a rank that has none on file is left out.
        groups: the groups.
        is_terminal: draw lines.
    """
    names = ("group", "last that ended", "pending", "step", "rank", "begun")
    table = _table(None, *names, left=3, is_terminal=is_terminal)
    for group in groups:
        for rank, begun in sorted(group.begun.items()):
            ended = [str(one) for one in begun if one.ended]
            pending = [str(one) for one in (*begun, *group.receiving.get(rank, ())) if not one.ended]
            last, step = ended[-1] if ended else "", str(steps.get(rank, "none"))
            table.add_row(group.name, last, "; ".join(pending), step, str(rank), str(len(begun)))
    return table


def note_sentences(rank: RankDump) -> Iterator[str]:
    """Yield what lacks in a step and rank, and its notes."""
    yield from rank.missing
    notes: list[Note] = rank.notes
    for note in notes:
        yield note.message + (f" ({note.count} times)" if note.count > 1 else "")


def statistics_table(
    calls: Iterable[Call], names: list[str], limit: int | None, *, is_terminal: bool
) -> tuple[Table, int]:
    """Return a row for each (call, slot, value) of some calls, and how many rows `limit` left out.

    Args:
        calls: the calls.
        names: the statistics to show.
        limit: most rows; None is all.
        is_terminal: draw lines.
    """
    table = _table(None, "call", "slot", "tensor", *names, left=3, is_terminal=is_terminal)
    rows = ((call.name, slot, value) for call in calls for slot, value in call.all_values())
    for name, slot, value in islice(rows, limit):
        stats: dict[str, Any] = dict(value.stats or {})
        table.add_row(name, slot, tensor_type(value), *(format_number(stats.get(key)) for key in names))
    return table, sum(1 for _ in rows)


def saved_by_call(saved: SavedForBackward, limit: int | None, *, is_terminal: bool) -> Table:
    """Return the calls that keep most bytes for backward."""
    table = _table("by call", "call", "module", "bytes", "nbytes", left=2, is_terminal=is_terminal)
    for call, nbytes in islice(sorted(saved.by_call().items(), key=lambda item: -item[1]), limit):
        name, module = (call.name, call.module) if call is not None else (NOT_RECORDED, "")
        table.add_row(name, module or "-", format_bytes(nbytes), str(nbytes))
    return table


def offload_by_module(saved: SavedForBackward, depth: int | None, limit: int | None, *, is_terminal: bool) -> Table:
    """Return what keeping the saved tensors of modules elsewhere would free and move."""
    table = _table(
        "offload by module", "module", "frees", "moves out", "and back", "for nothing", is_terminal=is_terminal
    )
    for one in islice(saved.offload(depth), limit):
        moved = format_bytes(one.moved_bytes)
        table.add_row(one.module or "-", format_bytes(one.freed_bytes), moved, moved, format_bytes(one.wasted_bytes))
    return table


def saved_by_module(saved: SavedForBackward, depth: int | None, limit: int | None, *, is_terminal: bool) -> Table:
    """Return the modules whose calls keep most bytes for backward."""
    table = _table("by module", "module", "bytes", "nbytes", is_terminal=is_terminal)
    for fqn, nbytes in islice(sorted(saved.by_module(depth).items(), key=lambda item: -item[1]), limit):
        table.add_row(fqn or "-", format_bytes(nbytes), str(nbytes))
    return table
