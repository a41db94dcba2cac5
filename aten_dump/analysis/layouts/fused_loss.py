"""The loss of ``loss_parallel``, whose backward is computed in one op where others take two.

Theory of operation
    With classes divided over ranks, ``nll_loss_backward`` returns what the backward of the softmax would make of it,
    and that one hands it on. So the first has no counterpart by its numbers, and the second is held against the
    counterpart alone, with what noise explains at its depth.
"""

from __future__ import annotations

import math
from typing import Final

from ...dump import Call
from ...dump.across_ranks.assembled_value import AssembledValue
from ...store.op_names import read_op_name
from ..evidence.evidence_rows import Pair
from ..evidence.judgement import Compared, Judgement
from ..evidence.noise_floors import limits_of
from ..evidence.states import Inputs
from ..judging.input_links import inputs_from, state_from
from ..judging.pair_walk import Walk

_FIRST: Final = frozenset(("aten::nll_loss_backward", "aten::nll_loss2d_backward"))
_SECOND: Final = "aten::_log_softmax_backward_data"
_GROWTH: Final = 4.0  # of the dtype's limit, times the root of depth and ranks
_NOTE: Final = "loss_parallel computes the backward of the loss and of its softmax in one"


class LayoutWalk(Walk):
    """A walk that knows a backward computed ahead: what hands it on stands against what computes it."""

    def _pair(self, pair: Pair) -> None:
        is_second = read_op_name(pair.target.op).without_overload == _SECOND
        if not is_second or is_fused(pair.target) == is_fused(pair.baseline):
            super()._pair(pair)
            return
        knows, theirs = self.knows, dict(pair.baseline.output_values())
        inputs = inputs_from([link for link in knows.links.of(pair) if link.state is not None])
        for slot, value in pair.target.output_values():
            if slot in theirs:
                close = knows.known.close(value, theirs[slot])
                ranks = getattr(knows.judge, "ranks", 2)
                said = judge_fused(
                    pair.target, Judgement("different", True), (value, theirs[slot], close), inputs, ranks
                )
                knows.known.keep(value, theirs[slot], state_from(said, close, inputs.depth + 1))
                row = knows.evidence.judged(pair, slot, close, said, inputs)
                if said.guilty:
                    knows.evidence.blame("op", row, f"its result does not agree ({_NOTE})", "", (pair.target.id, 1))
        knows.proofs.estimated.add(pair.target.id)


def is_fused(call: Call) -> bool:
    """Tell whether a call is of a loss whose classes are divided over ranks."""
    if read_op_name(call.op).without_overload not in (*_FIRST, _SECOND):
        return False
    return any(isinstance(value, AssembledValue) and _divides_classes(value) for _, value in call.input_values())


def judge_fused(call: Call, said: Judgement, compared: Compared, inputs: Inputs, ranks: int) -> Judgement:
    """Judge a result of such a call; `said` is what another call would be told."""
    _, baseline, close = compared
    if not close.known:
        return Judgement("unknown", note=close.reason)
    if not said.guilty or close.shape is not None or close.nonfinite or close.error is None:
        return said
    if read_op_name(call.op).without_overload in _FIRST:
        return Judgement("within", note=f"{_NOTE}: the second of both is compared")
    limit = limits_of(baseline, baseline).rel_l2 * _GROWTH * math.sqrt((1 + inputs.depth) * ranks)
    ratio = close.error / limit
    return Judgement("different" if ratio > 1 else "within", ratio > 1, limit, "depth", ratio, note=_NOTE)


def _divides_classes(value: AssembledValue) -> bool:
    grid = value.assembly.grid
    dim = 1 if len(value.shape) > 1 else 0
    return grid is not None and any(
        placement.kind == "shard" and placement.dim == dim and size > 1
        for placement, size in zip(grid.placements, grid.shape, strict=True)
    )
