"""Rules about gradient scalers: what must happen to scaled gradients before they are clipped or applied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...dump import Call
from ...store.op_names import UNSCALE_GRADIENTS, read_op_name
from .optimizer_rules import clippings
from .rule import Found, Rule
from .step_facts import StepFacts

_SCALER: Final = "torch/amp/grad_scaler.py"


def step_beside_scaler(step: StepFacts) -> Iterator[Found]:
    """An optimizer applies gradients of a scaled loss that were not unscaled."""
    scaled = _scaled_at(step)
    for optimizer in step.optimizer_steps if scaled is not None else ():
        reads = optimizer.reads
        for name, gradient in step.rank.gradients.items():
            if name not in step.named or gradient.storage not in reads or not gradient.storage:
                continue
            since = step.named[name][1]
            if since > optimizer.begins.id or scaled is None or scaled.id > since:
                continue
            if not any(since < c.id < optimizer.begins.id and _has(c, gradient.storage) for c in _unscalings(step)):
                yield Found(
                    optimizer.begins,
                    f"{optimizer.name}.step() applies gradients of the scaled loss: call scaler.step(optimizer)",
                )
                break


def clip_before_unscale(step: StepFacts) -> Iterator[Found]:
    """Gradients are clipped while they are those of the scaled loss."""
    for call in clippings(step):
        storages = {value.storage for _, value in call.written_values()}
        later = [one for one in _unscalings(step) if any(_has(one, storage) for storage in storages)]
        if later and all(one.id > call.id for one in later):
            yield Found(call, "gradients are clipped before they are unscaled: call scaler.unscale_(optimizer) first")


def _scaled_at(step: StepFacts) -> Call | None:
    """Return the call at which a scaler multiplies a loss by another number than 1."""
    for call in step.ops("mul"):
        if call.phase == "forward" and step.runs_in(call, _SCALER, "scale", "apply_scale"):
            scale = step.contents(call.input_values()[-1][1])
            if scale is None or scale.low != 1.0:
                return call
    return None


def _unscalings(step: StepFacts) -> Iterator[Call]:
    return step.ops(read_op_name(UNSCALE_GRADIENTS).name.rstrip("_"))


def _has(call: Call, storage: int) -> bool:
    return any(value.storage == storage for _, value in call.input_values())


RULES: Final = (
    Rule(
        "step-beside-scaler",
        "an optimizer applies gradients that a gradient scaler has scaled and nobody unscaled",
        ("whole", "aten", "stacks"),
        step_beside_scaler,
    ),
    Rule(
        "clip-before-unscale",
        "gradients are clipped while they are still scaled",
        ("aten",),
        clip_before_unscale,
    ),
)
