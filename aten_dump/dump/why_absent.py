"""Why something is not in a dump, in sentences that say what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import islice
from typing import Final

import numpy as np

from ..patterns import op_names, outer_modules
from ..store import records
from ..store.records import DAMAGED, FAILED, RECOVERED
from .call_filter import CallFilter, Wanted
from .index.source import Source
from .index.tables import Tables
from .value_facts import ValueFacts

_LEVELS_WITH_BYTES: Final = ("tensor", "full")
_MAX_NAMES: Final = 5


def why_no_data(value: ValueFacts, tables: Tables, source: Source) -> str:
    """Return the message for a value whose bytes cannot be read."""
    return f"no bytes of value {value.id} ({_shape(value)}) in {tables.where}: {_reason(value, tables, source)}"


def why_no_calls(where: str, calls: int, notes: Iterable[records.Note]) -> str | None:
    """Return the sentence for a step and rank of which the configuration left out every call; None where it did not."""
    left_out = next((note.message for note in notes if note.code == "selection"), None)
    return None if calls or left_out is None else f"{where} has no calls: {left_out}"


def _shape(value: ValueFacts) -> str:
    return f"{value.dtype_name}[{', '.join(map(str, value.shape))}]"


def _reason(value: ValueFacts, tables: Tables, source: Source) -> str:
    config = tables.header.config
    data = config.get("data", "unknown")
    if value.undefined:
        return (
            "it is memory that nothing had written yet (torch.empty), so it has no contents; "
            "read the value after its first write"
        )
    if value.extra.get("sum"):
        return "it stands for a sum that autograd made out of sight; read the values that went into it"
    if value.opaque:
        return (
            "the tensor has no bytes of its own (meta, fake, or a subclass with its own dispatch); "
            "read the values of the ops inside it"
        )
    if data not in _LEVELS_WITH_BYTES:
        return (
            f'it was recorded with DumpConfig.data="{data}", which keeps no bytes; '
            'record again with data="tensor" or "full"'
        )
    if value.id in tables.data or tables.commit is None or _is_recovered(tables):
        missing = missing_parts(tables, len(source.lost_blobs(tables)))
        return f"the dump was interrupted before they were written; {_first(missing)}"
    if config.get("max_bytes") is not None:
        return (
            f"DumpConfig.max_bytes={config['max_bytes']} may have been spent before it (see `notes`); "
            "raise max_bytes, or select fewer ops, modules or steps"
        )
    if config.get("io", "all") != "all":
        return f'DumpConfig.io="{config["io"]}" left it out; record again with io="all"'
    notes = "".join(f"; it noted: {note.message}" for note in islice(tables.notes, _MAX_NAMES))
    return f"the recorder did not store it{notes}; see `aten-dump verify` and docs/limitations.md"


def _is_recovered(tables: Tables) -> bool:
    return any(note.code == RECOVERED for note in tables.notes)


def _first(sentences: Iterable[str]) -> str:
    return next(iter(sentences), "see `aten-dump verify`")


def no_such_call(name: object, known: Iterable[str], where: str, listing: str) -> str:
    """Return the message for a call name that is not in the index, with the nearest ones; `listing` lists all."""
    if not isinstance(name, str):
        return (
            f"{name!r:.100} is no name of a call in {where}: names are texts; `rank.calls[0]` is the first call, "
            "`rank.call(3)` the one whose id is 3"
        )
    names = list(known)
    if not names:
        return f"no call {name!r} in {where}: it has no calls at all; record a step with DumpMode around it"
    near = nearest(name, names)
    hint = f"nearest: {', '.join(near)}" if near else f"the first are {', '.join(names[:_MAX_NAMES])}"
    return f"no call {name!r} in {where}, which has {len(names)} calls; {hint}. List them with `{listing}`"


def no_such_filter(tables: Tables, wanted: Wanted) -> str:
    """Return which texts of filters for ops and modules match no call at all, and what is like them; "" for neither."""
    everything = range(len(tables.calls))
    modules = {tables.text(int(number)) for number in np.unique(tables.calls.column("module"))}
    known = {
        "op": {name for op in tables.ops.records() for name in op_names(op.op, f"{op.prefix}.{op.api}")[1:]},
        "module": {path for module in modules for path in outer_modules(module)},
    }
    clauses = []
    for field, names in known.items():
        text = getattr(wanted, field)
        if text is not None and not len(CallFilter(tables, Wanted(**{field: text})).select(everything)):
            lowered = {name.lower(): name for name in sorted(names)[:_SEARCHED]}
            near = [lowered[name] for name in get_close_matches(text.lower(), lowered, n=_MAX_NAMES, cutoff=0.5)]
            clauses.append(f"no {field} matches {text!r}" + (f", nearest: {', '.join(near)}" if near else ""))
    return "; ".join(clauses)


def nearest(name: str, known: list[str]) -> list[str]:
    """Return up to five names like `name`, nearest first.

    Names with the same api are tried first: difflib over a million names would take minutes.
    """
    lowered = name.lower()
    parts = [part for part in lowered.split(".") if part and not part.isdigit() and part not in records.PHASES]
    likely = [other for other in known if parts and parts[-1] in other.lower()] or known
    if len(likely) > _SEARCHED:
        likely = [other for other in likely if other.lower().startswith(lowered[:6])][:_SEARCHED] or likely[:_SEARCHED]
    return get_close_matches(name, likely, n=_MAX_NAMES, cutoff=0.5)


_SEARCHED: Final = 5000


def missing_parts(tables: Tables, lost_blobs: int) -> list[str]:
    """Return what a step and rank lacks, in sentences; empty for a whole one.

    Args:
        tables: its records.
        lost_blobs: journaled tensors whose bytes are not in their shard.
    """
    found = list(_lost_records(tables))
    if tables.unfinished:
        names = [tables.call_name(tables.calls[tables.positions[id]]) for id in sorted(tables.unfinished)]
        shown = ["...", *names[-_MAX_NAMES:]] if len(names) > _MAX_NAMES else names
        found.append(f"{len(names)} module calls were cut short, without outputs: {', '.join(shown)}")
    if tables.commit is None:
        orphans = np.setdiff1d(tables.calls.column("parent"), np.append(tables.calls.column("id"), 0))
        if len(orphans):
            found.append(f"{len(orphans)} calls that others ran in were cut short before they were recorded")
    if lost_blobs:
        found.append(f"the bytes of {lost_blobs} of {len(tables.blobs)} stored tensors are not in their shards")
    stored = tables.data.rows
    unstored = np.isin(stored.column(2), tables.blobs.rows.column(1), invert=True).sum() if len(stored) else 0
    if unstored:
        found.append(f"{unstored} values name stored bytes that the index does not describe")
    return found


def _lost_records(tables: Tables) -> Iterator[str]:
    """Yield what an index has lost of its end, or never had."""
    told = {note.code: note.message for note in tables.notes}
    finished = len(tables.calls) - len(tables.unfinished)
    if tables.damage is not None:
        had = "" if tables.lost_commit is None else f" of {tables.lost_commit.calls}"
        yield f"{finished}{had} calls can be read: {tables.damage}"
    elif tables.commit is None:
        yield (
            "no commit record: the program ended before the step was complete; "
            f"{finished} finished calls and {len(tables.values)} values are there"
        )
    elif DAMAGED in told:
        yield f"recovered after it was damaged: {told[DAMAGED]}"
    elif RECOVERED in told:
        yield (
            "recovered after it was cut short: the last calls, and bytes of small tensors seen just before, may be "
            f"gone; {finished} finished calls are there"
        )
    if FAILED in told:
        yield f"the recorder failed, and what came after is not there: {told[FAILED]}"
    if not tables.has_header and tables.damage is None:
        yield "no header record: the program ended before the first records were written"
    if tables.dropped_bytes and tables.damage is not None:
        yield f"{tables.dropped_bytes} of the {tables.index_bytes} bytes of the index are dropped"
    elif tables.dropped_bytes:
        yield f"the last {tables.dropped_bytes} bytes of the index were torn and have been dropped"
