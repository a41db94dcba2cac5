"""Is what ranks made together what the op, or some ops, make of what they hold together?

Theory of operation
    The counterpart's op is run in float64 on the target's tensors, put together of all ranks, and held against the
    target's result, put together likewise. Both come of one input, so that only the op's own rounding may be between
    them, also where the op blows up the rounding of what it is given: Adam's first step divides a gradient that is
    nothing but rounding by its own size.
"""

from __future__ import annotations

import math

import torch

from ...dump import Call, Value
from ...dump.across_ranks.assembled_rank import AssembledRank
from ..flow.cones import Cone
from ..rerun.op_errors import REPLAY_BYTES
from ..rerun.rounding import Rounding, terms_of
from ..rerun.rounding_error import SUSPECT, measure
from ..rerun.run_op import result_slots, run_on
from ..rerun.run_region import run_region, start_tensors


def is_made_of_the_whole(target: Call, baseline: Call, slot: str) -> bool:
    """Tell whether a result of the target's ranks is what the baseline's op makes of what these ranks hold together.

    False also where that cannot be told: a tensor is in parts that do not fit together, or the op cannot be run.
    """
    ours, theirs = dict(target.input_values()), dict(baseline.input_values())
    made = dict(target.result_values()).get(slot)
    if made is None or not made.is_floating or ours.keys() != theirs.keys():
        return False
    if sum(8 * value.numel for value in (*ours.values(), made)) > REPLAY_BYTES:
        return False
    try:
        return _is_made_of(baseline, {theirs[name].id: value for name, value in ours.items()}, slot, made)
    except Exception:  # noqa: BLE001 - what an op of a library made of it may raise anything
        return False


def _is_made_of(call: Call, instead: dict[int, Value], slot: str, made: Value) -> bool:
    """Tell whether the op of a call makes a result of tensors that take the place of its own, by their ids."""
    given = start_tensors(instead.values())
    reference = dict(result_slots(run_on(call, lambda value: given[instead[value.id].id])))[slot]
    if reference.shape != made.shape:
        return False
    sizes = sorted((value.numel for value in instead.values()), reverse=True)[:2]  # that count in `terms_of`
    rounding = Rounding(terms_of(call.op, sizes, made.numel))
    return measure(slot, made.tensor(), None, reference, rounding).ratio <= SUSPECT


def off_together(cone: Cone) -> tuple[Call, str, float] | None:
    """Return the first result in a region of several ranks that is not what its calls make of what ranks hold together.

    A bias that each rank adds to its term of a sum is right on each rank.

    Returns:
        the call, the slot, and how far it is off (relative L2); None where all are right, or nothing can be run.
    """
    made = [(call, slot, value) for call in cone.calls for slot, value in call.result_values()]
    made = [(call, slot, value) for call, slot, value in made if value.is_floating and value.has_data]
    values = [value for _, _, value in made]
    if not made or not isinstance(made[0][0].rank, AssembledRank):
        return None
    try:
        exact, rounded = (_run(cone, values, rounded=rounded) for rounded in (False, True))
    except Exception:  # noqa: BLE001 - what an op of a library made of it may raise anything
        return None
    for (call, slot, value), expected, honest in zip(made, exact, rounded, strict=True):
        found = value.tensor()
        if found.shape != expected.shape:
            continue
        rounding, plain = cone.rounding(found.numel()), honest.to_dense().to(found.dtype)
        error = measure(slot, found, plain, expected.to_dense(), rounding)
        if error.ratio > SUSPECT * math.sqrt(len(cone.pieces)):
            return call, slot, error.error
    return None


def _run(cone: Cone, values: list[Value], *, rounded: bool) -> list[torch.Tensor]:
    starts = start_tensors(cone.cut)
    return run_region(cone.pieces, {value: starts[value.id] for value in cone.cut}, values, rounded=rounded)
