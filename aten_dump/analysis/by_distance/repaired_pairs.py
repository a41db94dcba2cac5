"""Calls of one op that came in another order on one side are paired by what they read."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ...dump import Call, Value
from ..evidence.evidence_rows import Pair
from ..flow.data_flow import DataFlow
from .sources import digest_of


def repaired(pairs: Sequence[Pair], flows: tuple[DataFlow, DataFlow]) -> list[Pair]:
    """Return pairs of calls; those that read other contents change partners where that makes them read the same.

    Args:
        pairs: as they were aligned.
        flows: of the target and the baseline.
    """
    ours, theirs = _Contents(flows[0]), _Contents(flows[1])
    odd = [pair for pair in pairs if ours.read(pair.target) != theirs.read(pair.baseline)]
    paired = {pair.target.id for pair in pairs}, {pair.baseline.id for pair in pairs}
    lone = [[call for call in flows[side].calls() if call.id not in paired[side]] for side in (0, 1)]
    by_contents: dict[Hashable, list[Call]] = {}
    for call in [*(pair.baseline for pair in odd), *lone[1]]:
        by_contents.setdefault(theirs.key(call), []).append(call)
    found: dict[int, Call] = {}
    for call in [*(pair.target for pair in odd), *lone[0]]:
        alike = by_contents.get(ours.key(call)) if ours.are_known(call) else None
        if alike:
            found[call.id] = alike.pop(0)
    if not found:
        return [*pairs]
    taken = {call.id for call in found.values()}
    left: dict[Hashable, list[Call]] = {}  # those that found no other share what partners are left, in order
    for pair in odd:
        if pair.baseline.id not in taken:
            left.setdefault((pair.baseline.op, pair.baseline.phase), []).append(pair.baseline)
    for pair in odd:
        partners = left.get((pair.target.op, pair.target.phase))
        if pair.target.id not in found and partners:
            found[pair.target.id] = partners.pop(0)
    odd_ids = {pair.target.id for pair in odd}
    kept = [_with_partner(pair, found.get(pair.target.id)) for pair in pairs]
    kept = [pair for pair in kept if pair.target.id not in odd_ids or pair.target.id in found]
    return [*kept, *(Pair(call, found[call.id], "flow") for call in lone[0] if call.id in found)]


def _with_partner(pair: Pair, partner: Call | None) -> Pair:
    is_other = partner is not None and partner.id != pair.baseline.id
    return Pair(pair.target, partner, "flow") if is_other and partner is not None else pair


class _Contents:
    """What the calls of one side read, as digests; each value's is taken once."""

    def __init__(self, flow: DataFlow) -> None:
        self._flow = flow
        self._digests: dict[int, str | None] = {}

    def read(self, call: Call) -> tuple[str | None, ...]:
        """Return the digests of what a call reads."""
        return tuple(self._digest(value) for _, value in self._flow.reads(call))

    def _digest(self, value: Value) -> str | None:
        if value.id not in self._digests:
            self._digests[value.id] = digest_of(value)
        return self._digests[value.id]

    def key(self, call: Call) -> Hashable:
        """Return what a call computes, and of what."""
        args, kwargs = call.inputs
        return call.op, call.phase, repr([_literal(item) for item in (*args, *kwargs.values())]), self.read(call)

    def are_known(self, call: Call) -> bool:
        """Return True if what a call reads is known, and is something."""
        read = self.read(call)
        return bool(read) and None not in read and not self._flow.is_view(call)


def _literal(item: object) -> object:
    """Return an argument without its tensors."""
    if isinstance(item, Value):
        return "tensor"
    return [_literal(entry) for entry in item] if isinstance(item, (list, tuple)) else item
