"""Mistakes in a training loop: its optimizer, its data, what is cleared and what is left as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .training import Training

Change = Callable[[Training], "str | None"]  # returns who is guilty; None where it does not apply


@dataclass(frozen=True)
class LoopSlip:
    """`change` returns a regular expression of "step|kind|call|module|phase" of the guilty."""

    name: str
    change: Change


LOOP_SLIPS: dict[str, LoopSlip] = {}
OPTIMIZER = r"\|optimizer$"
LATER = rf"^1\|.*{OPTIMIZER}"
_LABELS = ("labels", "tags", "goal", "clicked", "action")


def loop_slip(name: str) -> Callable[[Change], Change]:
    def add(change: Change) -> Change:
        LOOP_SLIPS[name] = LoopSlip(name, change)
        return change

    return add


def _edit_batch(training: Training, step: int, name: str, edit: Callable[[Tensor], Tensor]) -> None:
    training.batches[step] = {**training.batches[step], name: edit(training.batches[step][name])}


@loop_slip("gradients not cleared")
def _(training: Training) -> str | None:
    training.clears_gradients = False
    return r"^1\|.*(add|Accumulate|gradient|empty_like|copy_|mul).*\|(backward|)$"


@loop_slip("learning rate x1.05")
def _(training: Training) -> str | None:
    training.settings = {**training.settings, "lr": training.settings["lr"] * 1.05}
    return rf"^0\|.*{OPTIMIZER}"


@loop_slip("weight decay added")
def _(training: Training) -> str | None:
    training.settings = {**training.settings, "weight_decay": training.settings.get("weight_decay", 0.01) + 0.1}
    return rf"^0\|.*{OPTIMIZER}"


@loop_slip("momentum slips")
def _(training: Training) -> str | None:
    if "momentum" in training.settings:
        training.settings = {**training.settings, "momentum": training.settings["momentum"] - 0.1}
        return OPTIMIZER
    if issubclass(training.optimizer, torch.optim.Adam):  # type: ignore[arg-type]
        training.settings = {**training.settings, "betas": (0.9, 0.99)}
        return OPTIMIZER
    return None


@loop_slip("optimizer made anew")
def _(training: Training) -> str | None:
    step = training.step
    training.step = lambda optimizer, batch: step(training.make_optimizer(), batch)  # type: ignore[method-assign]
    if (
        training.optimizer is torch.optim.Adagrad
    ):  # makes its state when it is made: that of the first is left as it was
        return rf"{LATER}|^0\|left\|.*(tensor|full_like)\."
    return LATER


@loop_slip("labels shifted from step 1")
def _(training: Training) -> str | None:
    name = next((name for name in _LABELS if name in training.batches[0]), None)
    if name is None:
        return None
    _edit_batch(training, 1, name, lambda t: t.roll(1, -1))
    return r"^1\|(source|rewired|argument)\|.*\|forward$"


@loop_slip("rows in another order from step 1")
def _(training: Training) -> str | None:
    names = [name for name in training.batches[0] if name not in _LABELS and training.batches[0][name].dim() > 1]
    if not names:
        return None
    _edit_batch(training, 1, names[0], lambda t: t.flip(0))
    return r"^1\|(source|rewired|argument)\|.*\|forward$"


@loop_slip("the first batch again")
def _(training: Training) -> str | None:
    training.batches[1] = training.batches[0]
    return r"^1\|(source|rewired|argument|random|op|shape)\|.*\|forward$"


@loop_slip("clipping left out")
def _(training: Training) -> str | None:
    if training.clip is None:
        return None
    training.clip = None
    return r"(norm|clamp|stack|_foreach_mul_|mul_|reciprocal|_foreach_|lerp_|addcmul_|addcdiv_)|\|optimizer$"


@loop_slip("clipped at half")
def _(training: Training) -> str | None:
    if training.clip is None:
        return None
    training.clip /= 2
    return r"\|Aten\.(div|mul|reciprocal|clamp|_foreach_mul_)"


@loop_slip("rate decays")
def _(training: Training) -> str | None:
    training.decay = 0.9
    return LATER


@loop_slip("loss halved")
def _(training: Training) -> str | None:
    training.factor = 0.5
    return r"^0\|.*\|Aten\.(mul|ones_like|div|neg|nll_loss_backward|view|mse_loss_backward|expand)\..*"


def _weighted(model: nn.Module) -> list[str]:
    names = [name for name, p in model.named_parameters() if p.dim() > 1 and p.requires_grad]
    return names[len(names) // 3 :] + names[: len(names) // 3]


@loop_slip("weight x1.001")
def _(training: Training) -> str | None:
    name = _weighted(training.model)[0]
    with torch.no_grad():
        training.model.get_parameter(name).mul_(
            1.001 if training.model.get_parameter(name).dtype == torch.float32 else 1.02
        )
    return rf"^0\|source\|.*\|{name.rpartition('.')[0]}(\.\w+)?\|forward$"


@loop_slip("parameter frozen")
def _(training: Training) -> str | None:
    name = _weighted(training.model)[0]
    training.model.get_parameter(name).requires_grad_(False)
    return rf"^0\|(gradient\|.*|.*\|{name.rpartition('.')[0]}\|(backward|forward))$"


@loop_slip("normalises by the batch before")
def _(training: Training) -> str | None:
    found = [(name, m) for name, m in training.model.named_modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    if not found:
        return None
    found[0][1].eval()
    return rf"^0\|.*\|{found[0][0]}\|forward$"


@loop_slip("other random numbers at step 1")
def _(training: Training) -> str | None:
    def before(_: Any, number: int) -> None:
        if number == 1:
            torch.manual_seed(7)

    training.before_step = before
    return r"^1\|random\|"
