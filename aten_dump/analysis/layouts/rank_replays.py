"""Float64 replays of calls of several ranks: each rank's own ops on its own parts; the worst rank counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...dump import Call
from ...dump.across_ranks.assembled_rank import AssembledRank
from ...store.op_names import is_collective
from ..rerun.op_errors import Replays
from ..rerun.rounding_error import SUSPECT, LocalError


def leaves_of(call: Call) -> list[Call]:
    """Return the ops that did the work of an op on one rank: the innermost inside it, or itself."""
    inner = [leaf for child in call.children if child.kind == "aten" for leaf in leaves_of(child)]
    return inner or [call]


@dataclass(slots=True)
class OwnErrors:
    """Errors of one call by rank and slot, against float64 replays."""

    by_rank: dict[int, dict[str, LocalError]] = field(default_factory=dict)
    ratios: dict[int, float] = field(default_factory=dict)  # worst over its slots, in units of the dtype's limits


class RankReplays(Replays):
    """Replays that know of several ranks; `own` keeps what was found, by call id of the target's or baseline's lead."""

    def __init__(self, *, enabled: bool = True) -> None:
        super().__init__(enabled=enabled)
        self.own: dict[tuple[int, int], OwnErrors] = {}

    def errors(self, call: Call) -> dict[str, LocalError] | str:
        """Return the distance of each output from a replay, on the rank where it is greatest; or why there is none."""
        whole = call.rank
        if not isinstance(whole, AssembledRank):
            return super().errors(call)
        own = self.own_errors(whole, call.id)
        if isinstance(own, str):
            return own
        self.own[id_of(call)] = own
        worst: dict[str, LocalError] = {}
        for found in own.by_rank.values():
            for slot, error in found.items():
                if slot not in worst or error.ratio / SUSPECT > worst[slot].ratio / SUSPECT:
                    worst[slot] = error
        return worst or "no rank has an op of it that could be run again"

    def own_errors(self, whole: AssembledRank, call_id: int) -> OwnErrors | str:
        """Return the errors of each rank's own ops of a call, also of one that serves the layout; or why there is none.

        Args:
            whole: the ranks.
            call_id: the lead's.
        """
        own = OwnErrors()
        for rank, id in whole.whole.local_calls(call_id).items():
            found = self._on_rank(whole, rank, whole.ranks[rank].call(id))
            if isinstance(found, str):
                return found
            own.by_rank[rank] = found
            own.ratios[rank] = max((error.ratio / SUSPECT for error in found.values()), default=0.0)
        return own

    def _on_rank(self, whole: AssembledRank, rank: int, call: Call) -> dict[str, LocalError] | str:
        """Return the errors of a call on one rank, under its own slots; those of helpers count for all slots."""
        holders = whole.whole.holders[rank]
        results = call.result_values()
        slots: dict[int, list[str]] = {}
        for slot, value in results:
            slots.setdefault(holders.of(value).id, []).append(slot)
        found: dict[str, LocalError] = {}
        for leaf in leaves_of(call):
            if is_collective(leaf.op):
                continue
            errors = super().errors(leaf)
            if isinstance(errors, str):
                if any(value.is_floating for _, value in leaf.output_values()):
                    return errors
                continue
            made = dict(leaf.result_values())
            for slot, error in errors.items():
                for name in slots.get(made[slot].id, [slot for slot, _ in results]):
                    if name not in found or error.ratio / SUSPECT > found[name].ratio / SUSPECT:
                        found[name] = error
        return found


def id_of(call: Call) -> tuple[int, int]:
    """Return what tells calls of all dumps apart."""
    return id(call.rank), call.id
