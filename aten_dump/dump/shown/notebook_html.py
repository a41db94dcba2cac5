"""Small pieces of HTML for a notebook: no scripts, no colours, so that light and dark both do.

All text comes through `escaped`: names and messages of a dump may be anything, and never become markup.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ...store.records import CALL_KINDS, PHASES
from ..call_facts import CallFacts
from ..index.summary import Summary
from ..index.tables import Tables
from ..value_facts import ValueFacts
from .short_texts import duration_text, format_bytes, format_number, tensor_type

MOST_SUMMED_UP: Final = 12  # step-ranks of a dump; more would be thousands of files to open for a glance

_STATISTICS: Final = ("min", "max", "mean", "l2norm", "nan", "posinf", "neginf")
Slots = Sequence[tuple[str, ValueFacts]]

_MOST_ROWS: Final = 12
_MOST_TEXT: Final = 200  # of a name
_MOST_SENTENCE: Final = 2000
_STYLE: Final = """<style>
.aten-dump { line-height: 1.5 }
.aten-dump p { margin: 2px 0; white-space: pre-wrap }
.aten-dump table { border-collapse: collapse; margin: 4px 0; font-size: .92em }
.aten-dump tr > * { padding: 2px 14px 2px 0; vertical-align: baseline; font-weight: normal; white-space: pre-wrap;
  text-align: right; border-bottom: 1px solid rgba(128, 128, 128, .3) }
.aten-dump tr > .text { text-align: left }
.aten-dump th { opacity: .7 }
.aten-dump td, .aten-dump b { font-family: ui-monospace, Menlo, Consolas, monospace }
</style>"""


def escaped(text: Any, most: int = _MOST_TEXT) -> str:
    """Return a text as HTML; what is not to be seen, or turns the direction of text, becomes its escape."""
    plain = str(text)
    cut = plain if len(plain) <= most else f"{plain[:most]}..."
    seen = (one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in cut)
    return html.escape("".join(seen))


def shown(title: str, *parts: str) -> str:
    """Return the whole: a title, and pieces of HTML made by the functions below."""
    return f'<div class="aten-dump">{_STYLE}<p><b>{escaped(title)}</b></p>{"".join(parts)}</div>'


def line(text: str) -> str:
    """Return a sentence."""
    return f"<p>{escaped(text, _MOST_SENTENCE)}</p>" if text else ""


def facts(named: Mapping[str, Any]) -> str:
    """Return names and facts; those that are None or empty are left out."""
    told = [(name, fact) for name, fact in named.items() if fact not in (None, "")]
    return _table("", (f'<th class="text">{escaped(name)}</th>{_cell(fact, True)}' for name, fact in told))


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, texts: int = 1) -> str:
    """Return a table of the first rows, and how many there are beyond.

    Args:
        columns: titles.
        rows: cells.
        texts: so many columns from the left are texts, the others numbers.
    """
    if not rows:
        return ""
    head = "".join(f"<th{_class(at < texts)}>{escaped(column)}</th>" for at, column in enumerate(columns))
    body = ("".join(_cell(cell, at < texts) for at, cell in enumerate(row)) for row in rows[:_MOST_ROWS])
    more = len(rows) - _MOST_ROWS
    return _table(f"<thead><tr>{head}</tr></thead>", body) + (line(f"... and {more} more") if more > 0 else "")


def _class(is_text: bool) -> str:
    return ' class="text"' if is_text else ""


def _cell(cell: Any, is_text: bool) -> str:
    return f"<td{_class(is_text)}>{escaped('' if cell is None else cell)}</td>"


def _table(head: str, rows: Iterable[str]) -> str:
    return f"<table>{head}<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table>"


def call_html(call: CallFacts, values: Slots, forward: CallFacts | None) -> str:
    """Return a call: what and where it is, and its tensors.

    Args:
        call: the call.
        values: slot and value of all its tensors.
        forward: the forward call that it belongs to.
    """
    named = {
        "op": call.op,
        "kind": f"{call.kind}, {call.phase}",
        "module": call.module,
        "source": call.source,
        "belongs to": None if forward is None else forward.name,
        "time": duration_text(call) or None if call.finished else "unknown: the call was cut short",
        "written in place": ", ".join(call.mutated),
        "error": call.error,
    }
    return shown(call.name, facts(named), _values_table(values))


def _values_table(values: Slots) -> str:
    names = [name for name in _STATISTICS if any(_is_known(value, name) for _, value in values)]
    rows = [[slot, tensor_type(value), *(_statistic(value, name) for name in names)] for slot, value in values]
    return table(["slot", "tensor", *names], rows, texts=2)


def _is_known(value: ValueFacts, name: str) -> bool:
    """Return True if a statistic has a column: counts of what is not finite only where there is some."""
    number = None if value.stats is None else value.stats.get(name)
    return number is not None and (name not in ("nan", "posinf", "neginf") or number != 0)


def _statistic(value: ValueFacts, name: str) -> str:
    return "" if value.stats is None else format_number(value.stats.get(name))


def value_html(value: ValueFacts, nbytes: int, made_by: str, read_by: Sequence[str]) -> str:
    """Return a value: its geometry, statistics, who made it and who reads it.

    Args:
        value: the value.
        nbytes: of its elements.
        made_by: name and slot of its producer, ``""`` where it was created before this step.
        read_by: names and slots of its consumers.
    """
    named: dict[str, Any] = {
        "stride": list(value.stride),
        "device": value.device_name,
        "bytes": format_bytes(nbytes),
        "storage": f"{value.storage}, version {value.version}",
        "made by": made_by or "created before this step",
        "read by": _listed(read_by),
        "hash": value.hash,
    }
    stats = dict(value.stats or {})
    numbers = table(list(stats), [[format_number(number) for number in stats.values()]], texts=0) if stats else ""
    return shown(
        f"{tensor_type(value)}, value {value.id}", facts(named), numbers or line("no statistics were recorded")
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def dump_html(title: str, run: Mapping[str, Any], rows: Sequence[Sequence[Any]], problems: Sequence[str]) -> str:
    """Return a dump: what ran, and each step and rank by the two ends of its index.

    Args:
        title: of the whole.
        run: what run.json says.
        rows: step, rank and `sizes` of each step-rank.
        problems: what is wrong with the folder.
    """
    packages, config = (found if isinstance(found := run.get(name), dict) else {} for name in ("packages", "config"))
    named = {
        "world size": run.get("world_size"),
        "packages": _pairs(packages),
        "recorded": _pairs({name: config.get(name) for name in ("level", "data")}),
    }
    columns = ["step", "rank", "state", "calls", "index", "tensors"]
    return shown(title, facts(named), table(columns, rows, texts=3), *map(line, problems))


def _pairs(named: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {fact}" for name, fact in named.items() if fact)


def sizes(summary: Summary) -> list[str]:
    """Return state, calls, bytes of index and shards."""
    commit = summary.commit
    state = ("interrupted", "") if commit is None else ("complete", f"{commit.calls:,}")
    return [*state, format_bytes(summary.index_bytes), format_bytes(summary.shard_bytes)]


def rank_html(title: str, tables: Tables, missing: Sequence[str]) -> str:
    """Return a step-rank: how many calls of each phase and kind it has, and what it lacks, in sentences."""
    counts = _counts(tables)
    kinds = [kind for kind in CALL_KINDS if any((phase, kind) in counts for phase in PHASES)]
    phases = [phase for phase in PHASES if any((phase, kind) in counts for kind in kinds)]
    rows = [[phase, *(f"{counts.get((phase, kind), 0):,}" for kind in kinds)] for phase in phases]
    config = tables.header.config
    named = {
        "calls": f"{len(tables.calls):,}",
        "values": f"{len(tables.values):,}",
        "recorded": _pairs({name: config.get(name) for name in ("level", "data")}),
        "not seen": f"{len(tables.notes)} notes" if len(tables.notes) else None,
    }
    return shown(title, facts(named), table(["phase", *kinds], rows), *map(line, missing))


def _counts(tables: Tables) -> dict[tuple[str, str], int]:
    """Count calls by phase and kind."""
    calls = tables.calls
    pairs, numbers = np.unique(np.stack((calls.column("phase"), calls.column("op"))), axis=1, return_counts=True)
    found: dict[tuple[str, str], int] = {}
    for phase, op, number in zip(*pairs.tolist(), numbers.tolist(), strict=True):
        key = PHASES[phase], CALL_KINDS[tables.op(op).call_kind]
        found[key] = found.get(key, 0) + number
    return found
