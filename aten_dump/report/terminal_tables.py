"""Tables for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from ..dump import Call, Dump, RankDump, SavedForBackward
from ..dump.index.summary import Summary
from ..dump.saved_for_backward import NOT_RECORDED
from ..dump.shown.step_ranks import listed
from ..plain_text import counted
from ..store.records import CALL_KINDS, Note
from .table import Table, names, numbers, words
from .units import format_bytes, format_number, tensor_type

# How well a statistic can be spared where a terminal is narrow; with the shapes at 1, NaN stay the longest.
_SPARE: Final = {"nan": -1, "min": 0, "max": 0, "posinf": 2, "neginf": 2, "mean": 3, "l2norm": 3, "std": 4}
_LEAST_TELLING: Final = 5
_MOST_RANKS: Final = 16  # of a step that have a row each
_MOST_SCOPES: Final = 12  # that are named
UNCHECKED: Final = "unchecked"  # state of an index that ends with its commit record, and was not read whole


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
) -> Table:
    """Return a row for each step and rank, or for those alike of many; with counts of calls by kind where given.

    Bytes and files of several ranks are sums.

    Args:
        found: the steps and ranks, and what the two ends of their indexes say.
        kinds: counts of calls.
        states: their states; where they are not given, nobody has read what lies between the ends.
    """
    kind_names = CALL_KINDS if kinds is not None else ()
    table = Table(
        words("step"),
        words("rank"),
        words("state"),
        numbers("calls"),
        *(numbers(kind, spare=2) for kind in kind_names),
        numbers("values"),
        numbers("index", spare=1),
        numbers("shards"),
        numbers("shard files", spare=3),
    )
    for (step, _, *told), alike in _alike_ranks(found, kinds, states or {}).items():
        summaries = [summary for _, summary in alike]
        table.add_row(
            str(step),
            listed(rank for rank, _ in alike),
            *told,
            format_bytes(sum(summary.index_bytes for summary in summaries)),
            format_bytes(sum(summary.shard_bytes for summary in summaries)),
            str(sum(summary.shards for summary in summaries)),
        )
    return table


def _alike_ranks(
    found: Iterable[tuple[RankDump, Summary]],
    kinds: dict[RankDump, Counter[str]] | None,
    states: Mapping[RankDump, str],
) -> dict[tuple[Any, ...], list[tuple[int, Summary]]]:
    """Return the ranks of each row, by step, rank and cells: of many ranks those with equal cells are one row."""
    places = list(found)
    sizes = Counter(rank.step for rank, _ in places)
    rows: dict[tuple[Any, ...], list[tuple[int, Summary]]] = {}
    for rank, summary in places:
        state = states.get(rank) or (UNCHECKED if summary.commit else "interrupted")
        commit = summary.commit if state in (UNCHECKED, "complete") else None
        counts = kinds[rank] if kinds is not None and rank in kinds else None
        cells = (
            state,
            str(commit.calls) if commit else "?" if counts is None else str(counts.total()),
            *(() if kinds is None else ("?" if counts is None else str(counts[kind]) for kind in CALL_KINDS)),
            str(commit.values) if commit else "?",
        )
        one = rank.rank if sizes[rank.step] <= _MOST_RANKS else None
        rows.setdefault((rank.step, one, *cells), []).append((rank.rank, summary))
    return rows


def note_sentences(rank: RankDump) -> Iterator[str]:
    """Yield what lacks in a step and rank, and its notes."""
    yield from rank.missing
    notes: list[Note] = rank.notes
    for note in notes:
        yield note.message + (f" ({note.count} times)" if note.count > 1 else "")


def scopes_line(rank: RankDump) -> str:
    """Return which scopes a step has, and how often each was entered; "" for none."""
    found = [name if len(calls) == 1 else f"{name} ({len(calls)} times)" for name, calls in rank.scopes.items()]
    more = f" and {len(found) - _MOST_SCOPES} more" if len(found) > _MOST_SCOPES else ""
    return f"scopes: {', '.join(found[:_MOST_SCOPES])}{more}" if found else ""


def statistics_table(calls: Iterable[Call], statistics: list[str], limit: int | None) -> tuple[Table, int]:
    """Return a row for each (call, slot, value) of some calls, and how many rows `limit` left out.

    Args:
        calls: the calls.
        statistics: those to show.
        limit: most rows; None is all.
    """
    table = Table(
        names("call"),
        words("slot"),
        words("tensor", spare=1),
        *(numbers(key, _SPARE.get(key, _LEAST_TELLING)) for key in statistics),
    )
    rows = ((call.name, slot, value) for call in calls for slot, value in call.all_values())
    for name, slot, value in islice(rows, limit):
        stats: dict[str, Any] = dict(value.stats or {})
        table.add_row(name, slot, tensor_type(value), *(format_number(stats.get(key)) for key in statistics))
    return table, sum(1 for _ in rows)


def saved_by_call(saved: SavedForBackward, limit: int | None) -> Table:
    """Return the calls that keep most bytes for backward."""
    table = Table(
        names("call"), names("module", spare=1), numbers("bytes", spare=2), numbers("nbytes"), title="by call"
    )
    for call, nbytes in islice(sorted(saved.by_call().items(), key=lambda item: -item[1]), limit):
        name, module = (call.name, call.module) if call is not None else (NOT_RECORDED, "")
        table.add_row(name, module or "-", format_bytes(nbytes), str(nbytes))
    return table


def offload_by_module(saved: SavedForBackward, depth: int | None, limit: int | None) -> Table:
    """Return what keeping the saved tensors of modules elsewhere would free and move."""
    table = Table(
        names("module"), *map(numbers, ("frees", "moves out", "and back", "for nothing")), title="offload by module"
    )
    for one in islice(saved.offload(depth), limit):
        moved = format_bytes(one.moved_bytes)
        table.add_row(one.module or "-", format_bytes(one.freed_bytes), moved, moved, format_bytes(one.wasted_bytes))
    return table


def saved_by_module(saved: SavedForBackward, depth: int | None, limit: int | None) -> Table:
    """Return the modules whose calls keep most bytes for backward."""
    table = Table(names("module"), numbers("bytes", spare=1), numbers("nbytes"), title="by module")
    for fqn, nbytes in islice(sorted(saved.by_module(depth).items(), key=lambda item: -item[1]), limit):
        table.add_row(fqn or "-", format_bytes(nbytes), str(nbytes))
    return table
