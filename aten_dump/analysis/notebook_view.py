"""A comparison and a replay as a notebook shows them: their answers, and the numbers behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..choices import STATUS_TEXTS
from ..dump.shown.notebook_html import line, shown, table
from ..dump.shown.short_texts import format_number
from .evidence.findings import RankEvidence
from .evidence.row_summary import summary_of
from .rerun.rounding_error import LocalError

_OPS: Final = ("call", "slot", "module", "phase", "times the floor", "error", "floor")


def comparison_html(title: str, answer: str, ranks: Sequence[tuple[str, RankEvidence]]) -> str:
    """Return a comparison.

    Args:
        title: of the whole.
        answer: as `Comparison.answer` has it, the verdict first.
        ranks: each step-rank by its name.
    """
    counts = [summary_of(evidence.rows).statuses for _, evidence in ranks]
    statuses = [status for status in STATUS_TEXTS if any(count[status] for count in counts)]
    rows = [
        [where, f"{evidence.proven} of {evidence.judged}", *(f"{count[status]:,}" for status in statuses)]
        for (where, evidence), count in zip(ranks, counts, strict=True)
    ]
    return shown(title, *map(line, answer.split("\n")), table(["results", "proven calls", *statuses], rows))


def replay_html(title: str, sentence: str, ops: Iterable[tuple[str, str, str, LocalError]]) -> str:
    """Return a replay.

    Args:
        title: of the whole.
        sentence: what came of it.
        ops: name, module, phase and worst result of each op, the worst first.
    """
    rows = [
        [name, worst.slot, module, phase, *(format_number(n) for n in (worst.ratio, worst.error, worst.floor))]
        for name, module, phase, worst in ops
    ]
    return shown(title, line(sentence), table(_OPS, rows, texts=4))
