"""Loss scaling of a step: what a gradient scaler did, read from the ops that it ran.

Theory of operation
    ``torch.amp.GradScaler`` unscales gradients with ``aten::_amp_foreach_non_finite_check_and_unscale_``, which also
    looks for Inf and NaN, and ends a step with ``aten::_amp_update_scale_``, whose arguments are the scale, and whether
    anything was found. Both are recorded like all ops, so nothing else needs to be kept; FSDP's scaler runs the same.
    A value is read from its bytes, or from its statistics: of one element, min is the element.
    Where a step ends before the scaler's update, as under ``aten-dump run``, the update is recorded with the step
    after it. So an update before any backward and any unscaling of the step is of the scale before, and left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..store.op_names import UNSCALE_GRADIENTS
from .handle_sequences import Calls
from .handles import Call, Value

_UPDATE = "aten::_amp_update_scale_"


@dataclass(frozen=True, slots=True)
class LossScale:
    """One update of a gradient scaler. A number is None where the dump holds neither bytes nor statistics of it."""

    call: Call  # the update; the unscaling where the step ended without update
    scale: float | None  # that the step's loss was multiplied by
    found_inf: bool | None  # a gradient had Inf or NaN: the scaler skipped the optimizer's step
    next_scale: float | None  # of the step after; None where nothing was updated


def loss_scales_of(calls: Calls) -> list[LossScale]:
    """Return the updates of loss scales, in execution order; empty where no scaler ran."""
    updates = [call for call in calls.filter(op=_UPDATE, kind="aten") if call.op == _UPDATE]
    unscaled = [call for call in calls.filter(op=UNSCALE_GRADIENTS, kind="aten") if call.op == UNSCALE_GRADIENTS]
    if updates:
        used = min((call.id for call in (*unscaled, *calls.filter(phase="backward")[:1])), default=0)
        updates = [call for call in updates if call.id > used]
    return [_of_update(call) for call in updates] or [_of_unscaling(call) for call in unscaled]


def _of_update(call: Call) -> LossScale:
    args = call.inputs[0]
    found = _number(args[2])
    return LossScale(
        call, _number(args[0]), None if found is None else found > 0, _number(call.mutated_values.get("self"))
    )


def _of_unscaling(call: Call) -> LossScale:
    inverse = _number(call.inputs[0][2])
    found = _number(call.mutated_values.get("found_inf"))
    return LossScale(call, 1 / inverse if inverse else None, None if found is None else found > 0, None)


def _number(value: Any) -> float | None:
    """Return the element of a value with one element, as far as the dump holds it."""
    if not isinstance(value, Value) or value.numel != 1:
        return None
    if value.has_data:
        return float(value.tensor().item())
    least = value.stats.get("min") if value.stats is not None else None
    return least if isinstance(least, float | int) else None
