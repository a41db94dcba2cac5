"""A dump and a step-rank as a notebook shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ...store.records import CALL_KINDS, PHASES
from ..index.summary import Summary
from ..index.tables import Tables
from .notebook_html import facts, line, shown, table
from .short_texts import format_bytes

MOST_SUMMED_UP: Final = 12  # step-ranks of a dump; more would be thousands of files to open for a glance


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
