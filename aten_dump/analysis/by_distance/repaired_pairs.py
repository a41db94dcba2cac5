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
    odd = [pair for pair in pairs if _read(pair.target, flows[0]) != _read(pair.baseline, flows[1])]
    ours, theirs = {pair.target.id for pair in pairs}, {pair.baseline.id for pair in pairs}
    lone = [call for call in flows[0].calls() if call.id not in ours]
    by_contents: dict[Hashable, list[Call]] = {}
    for call in [*(pair.baseline for pair in odd), *(call for call in flows[1].calls() if call.id not in theirs)]:
        by_contents.setdefault(_key(call, flows[1]), []).append(call)
    found: dict[int, Call] = {}
    for call in [*(pair.target for pair in odd), *lone]:
        alike = by_contents.get(_key(call, flows[0])) if _is_told(call, flows[0]) else None
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
    return [*kept, *(Pair(call, found[call.id], "flow") for call in lone if call.id in found)]


def _with_partner(pair: Pair, partner: Call | None) -> Pair:
    is_other = partner is not None and partner.id != pair.baseline.id
    return Pair(pair.target, partner, "flow") if is_other and partner is not None else pair


def _is_told(call: Call, flow: DataFlow) -> bool:
    """Return True if what a call reads is known, and is something."""
    read = _read(call, flow)
    return bool(read) and None not in read and not flow.is_view(call)


def _read(call: Call, flow: DataFlow) -> tuple[str | None, ...]:
    """Return the digests of what a call reads."""
    return tuple(digest_of(value) for _, value in flow.reads(call))


def _key(call: Call, flow: DataFlow) -> Hashable:
    """Return what a call computes, and of what."""
    args, kwargs = call.inputs
    return call.op, call.phase, repr([_literal(item) for item in (*args, *kwargs.values())]), _read(call, flow)


def _literal(item: object) -> object:
    """Return an argument without its tensors."""
    if isinstance(item, Value):
        return "tensor"
    return [_literal(entry) for entry in item] if isinstance(item, (list, tuple)) else item
