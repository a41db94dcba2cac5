"""Rules about single layers: modes, attention, dead units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ...dump import Call, Value
from .rule import Found, Rule
from .step_facts import StepFacts

_DROPOUTS: Final = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_ATTENTION: Final = "scaled_dot_product_attention"
_DROPOUT_P: Final = 4  # position of `dropout_p`
_SOFTMAX: Final = ("_softmax", "_log_softmax")
_FEWEST: Final = 64  # elements of a layer that may be called dead


def dropout_in_eval(step: StepFacts) -> Iterator[Found]:
    """Dropout drops, though its module is in evaluation."""
    for call in step.apis(*_DROPOUTS):
        share = _argument(*call.inputs, 1, "p", 0.5)
        drops = _argument(*call.inputs, 2, "training", 1.0)
        if call.training is False and drops and share and call.api.startswith("Functional."):
            yield Found(
                call,
                f"{call.api} drops in evaluation: give it training=self.training, as the default is True",
            )
    for call in step.apis(_ATTENTION):
        share = _argument(*call.inputs, _DROPOUT_P, "dropout_p", 0.0)
        if call.training is False and share:
            yield Found(
                call,
                f"attention drops {share:g} of its weights in evaluation: give it dropout_p=0.0 unless self.training",
            )


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], at: int, name: str, default: float) -> float:
    found = args[at] if len(args) > at else kwargs.get(name, default)
    return float(found) if isinstance(found, (int, float)) else 0.0


def masked_row(step: StepFacts) -> Iterator[Found]:
    """A row of attention is masked wholly: its softmax is NaN."""
    for call in step.ops(*_SOFTMAX):
        given, made = _only(call.input_values()), _only(call.output_values())
        if call.phase != "forward" or given is None or made is None:
            continue
        before, after = step.contents(given), step.contents(made)
        if before is None or after is None or before.nan or before.posinf or not before.neginf:
            continue
        if after.nan:
            yield Found(
                call, "a row of its input is -inf throughout: the softmax of it is NaN; leave one element of it"
            )
    for call in step.apis(_ATTENTION):
        tensors = [step.contents(value) for _, value in call.input_values()[:3]]
        made = _only(call.output_values())
        after = None if made is None else step.contents(made)
        mask = _argument_value(call, 3, "attn_mask")
        is_finite = all(one is not None and one.finite for one in tensors)
        if is_finite and mask is not None and after is not None and after.nan:
            yield Found(call, "a row of its mask is masked throughout: the result is NaN; leave one element of it")


def _argument_value(call: Call, at: int, name: str) -> Value | None:
    args, kwargs = call.inputs
    found = args[at] if len(args) > at else kwargs.get(name)
    return found if isinstance(found, Value) else None


def _only(values: list[tuple[str, Value]]) -> Value | None:
    return values[0][1] if len(values) == 1 else None


def dead_layer(step: StepFacts) -> Iterator[Found]:
    """All inputs of a ReLU are negative: nothing passes it, and no gradient comes back."""
    for call in step.ops("relu", "hardtanh"):
        given = _only(call.input_values())
        if not call.op.startswith("aten::relu") and _argument(*call.inputs, 1, "min_val", -1.0) != 0:
            continue  # of hardtanh only relu6
        if call.phase != "forward" or given is None or given.numel < _FEWEST or call.grad_enabled is not True:
            continue
        contents = step.contents(given)
        if contents is not None and contents.finite and contents.high is not None and contents.high < 0:
            text = f"all {contents.count} inputs are negative, the greatest {contents.high:.4g}"
            yield Found(call, f"{text}: its result is 0, and so is the gradient of all before it")


def training_in_eval(step: StepFacts) -> Iterator[Found]:
    """The model is in evaluation while an optimizer trains it."""
    if not any(one.calls for one in step.optimizer_steps):
        return
    for call in step.rank.calls.filter(kind="module", phase="forward"):
        is_outermost = call.parent is None or call.parent.kind != "module"
        if is_outermost and call.training is False and call.grad_enabled and call.backward:
            yield Found(call, "the model is trained in evaluation mode: dropout and batch statistics are off")


RULES: Final = (
    Rule("dropout-in-eval", "dropout drops though its module is in evaluation", ("api",), dropout_in_eval),
    Rule("masked-row", "a row of attention is masked wholly: its softmax is NaN", ("aten", "contents"), masked_row),
    Rule("dead-layer", "all inputs of a ReLU are negative: no gradient passes it", ("aten", "contents"), dead_layer),
    Rule(
        "training-in-eval",
        "an optimizer trains a model that is in evaluation",
        ("aten",),
        training_in_eval,
        is_default=False,
    ),
)
