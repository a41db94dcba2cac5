"""Calls as evidence names them."""

from __future__ import annotations

from ...dump import Call
from .findings import Place


def place_of(call: Call) -> Place:
    """Return a call as evidence names it."""
    forward = call.forward
    rank = call.rank
    return Place(
        rank.step, rank.number_of(call.id), call.id, call.name, call.op, call.kind, call.phase, call.module, call.where,
        forward.name if forward else "", "",
    )  # fmt: skip
