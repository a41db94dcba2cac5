"""Tensors that an all-reduce was given and made, where the other program has no counterpart of them.

Theory of operation
    Tensor parallel code that is written by hand adds a bias to what was reduced, where one process has all of it in
    one op: neither the terms of the sum nor the sum stand against anything. The collective itself says what they are:
    what it left alike on all ranks is a whole, and what it was given are the terms that this was made of. So are the
    tensors that these were views or copies of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...dump import Value
from ...dump.across_ranks.assembled_rank import AssembledRank
from ...store.op_names import is_reduction, read_op_name
from ..flow.data_flow import DataFlow
from .part_arrangement import Settler

_COPIES: Final = ("clone", "_to_copy")


def settle_reduced(rank: AssembledRank, settler: Settler) -> None:
    """Settle what all-reduces made, and what they were given."""
    flow = DataFlow(rank.lead, "aten")
    for id, kind in rank.aside.items():
        call = rank.lead.call(id)
        if kind != "collective" or not is_reduction(call.op):
            continue
        results = [_whole(rank, value) for _, value in call.output_values()]
        for (_, given), made in zip(call.input_values(), results, strict=False):
            term = _whole(rank, given)
            settler.settle_reduced(term, made)
            for earlier in _seen_before(flow, given):
                settler.settle_alike(_whole(rank, earlier), term)


def _seen_before(flow: DataFlow, value: Value) -> Iterator[Value]:
    """Yield what a value is a view or a copy of, the newest first."""
    maker = flow.maker(value)
    while maker is not None and (flow.is_view(maker) or read_op_name(maker.op).name in _COPIES):
        value = maker.input_values()[0][1]
        yield value
        maker = flow.maker(value)


def _whole(rank: AssembledRank, value: Value) -> Value:
    return rank.value_by_id(rank.ids[value.id])
