"""Random numbers that both sides drew alike."""

from __future__ import annotations

from collections.abc import Iterable

from ..evidence.evidence_rows import Pair
from ..evidence.states import State
from ..flow.counterparts import Counterparts
from ..flow.data_flow import DataFlow


def tie_draws(known: Counterparts, flow: DataFlow, pairs: Iterable[Pair]) -> None:
    """Know equal random numbers before the walk reaches them: behind a loss may lie labels that are drawn last."""
    for pair in pairs:
        drew = flow.rank.tables.random.get(pair.target.id) is not None
        if not drew or flow.reads(pair.target):
            continue
        theirs = dict(pair.baseline.result_values())
        for slot, value in flow.results(pair.target):
            other = theirs.get(slot)
            if other is not None and known.close(value, other).bitwise:
                known.keep(value, other, State("same"))
