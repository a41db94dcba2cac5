"""Numbers that were read of tensors and given to later calls: they may differ as what they were read of does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aten_dump import compare, open_dump
from aten_dump.analysis.comparison import Comparison
from aten_dump.analysis.evaluation.numbers_in_python import COMPUTED
from aten_dump.analysis.flow.argument_differences import ArgumentDifference
from aten_dump.dump import Call
from tests.analysis.by_distance.steps import record, seeded
from tests.analysis.transformer import OtherDevice
from tests.models import single_thread

Step = Callable[[nn.Module, int], object]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with single_thread():
        yield


# -- programs ------------------------------------------------------------------------------------------------------


def trained(path: Path, step: Step, device: OtherDevice | None = None, steps: int = 1, **config: Any) -> Path:
    """Record steps of a small model: its gradients, and what a program does with them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))

    def body(number: int) -> None:
        model.zero_grad()
        loss = F.mse_loss(model(seeded(32, 64)), seeded(32, 4, seed=1))
        loss.backward()
        step(model, number)

    return record(path, body, model, device=device, steps=steps, **config)


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def clipped(most: float = 0.1, eps: float = 1e-6, foreach: bool = False, off: float = 1.0) -> Step:
    """Clipping by hand: the norm is read, what gradients are scaled by is computed of it."""

    def step(model: nn.Module, number: int) -> None:
        found = gradients(model)
        norm = sum(gradient.norm().item() ** 2 for gradient in found) ** 0.5
        factor = min(1.0, most / (norm + eps)) * off
        if foreach:
            torch._foreach_mul_(found, factor)
        else:
            for gradient in found:
                gradient.mul_(factor)
        for parameter in model.parameters():
            parameter.detach().sub_(parameter.grad)

    return step


def divided_by_what_was_read(model: nn.Module, number: int) -> None:
    for gradient in gradients(model):
        gradient.div_(gradient.norm().item())


def both(tmp_path: Path, target: Step, baseline: Step, **options: Any) -> Comparison:
    one = trained(tmp_path / "target", target, OtherDevice(), **options)
    return compare(one, trained(tmp_path / "baseline", baseline, **options))


def test_a_factor_computed_of_a_norm_that_was_read_is_no_other_argument(tmp_path: Path) -> None:
    found = both(tmp_path, clipped(), clipped())
    assert found.exit_code == 0, found.answer()
    (evidence,) = found.ranks
    assert "Aten.mul_.0.forward" in evidence.unproven, "how it was computed is not known"
    assert any(row.note == COMPUTED and row.place.op == "aten::mul_.Tensor" for row in evidence.rows)


def test_a_number_that_was_read_is_known(tmp_path: Path) -> None:
    found = both(tmp_path, divided_by_what_was_read, divided_by_what_was_read)
    assert found.exit_code == 0, found.answer()
    (evidence,) = found.ranks
    assert not evidence.unproven
    divisions = [row for row in evidence.rows if row.place.op == "aten::div_.Tensor" and row.slot == "output.0"]
    assert divisions and not any(row.note == COMPUTED for row in divisions)
    assert any(row.status == "within" for row in divisions)


def test_numbers_that_were_read_stand_for_each_other_in_regions(tmp_path: Path) -> None:
    """One call on all gradients against a loop: what each makes is compared in float64."""
    found = both(tmp_path, clipped(foreach=True), clipped())
    assert found.exit_code == 0, found.answer()
    assert "Aten._foreach_mul_.0.forward" in found.ranks[0].unproven
    wrong = both(tmp_path / "wrong", clipped(foreach=True, off=1.0001), clipped())
    assert wrong.exit_code == 1, wrong.answer()


@pytest.mark.parametrize("wrong", [clipped(most=0.1001), clipped(eps=1e-3), clipped(off=1.00001)])
def test_a_factor_that_is_wrong_is_found(wrong: Step, tmp_path: Path) -> None:
    found = both(tmp_path, wrong, clipped())
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None and found.cause.kind == "argument", found.answer()
    assert found.cause.row.place.op == "aten::mul_.Tensor"


def test_a_number_that_was_written_is_not_computed(tmp_path: Path) -> None:
    """In bfloat16 numbers that are read are further apart than the two that the program has."""

    def scaled(by: float) -> Step:
        def step(model: nn.Module, number: int) -> None:
            for gradient in gradients(model):
                gradient.bfloat16().matmul(gradient.bfloat16().t()).norm().item()
            gradients(model)[0].mul_(by)

        return step

    found = both(tmp_path, scaled(0.1001), scaled(0.1))
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None and found.cause.kind == "argument", found.answer()


@pytest.mark.parametrize("reads", ["nothing", "what is equal", "later"])
def test_without_a_number_that_differs_before_it_a_number_is_another_argument(reads: str, tmp_path: Path) -> None:
    def scaled(by: float) -> Step:
        def step(model: nn.Module, number: int) -> None:
            if reads == "what is equal":
                seeded(4).norm().item()
            gradients(model)[0].mul_(by)
            if reads == "later":
                gradients(model)[1].norm().item()

        return step

    found = both(tmp_path, scaled(0.123456789012 * (1 + 5e-6)), scaled(0.123456789012))
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None and found.cause.kind == "argument", found.answer()


def test_numbers_that_the_step_before_read_count(tmp_path: Path) -> None:
    def scaled(off: float = 1.0) -> Step:
        mean = [1.0]

        def step(model: nn.Module, number: int) -> None:
            for gradient in gradients(model):
                gradient.mul_(mean[0] * (off if number else 1.0))
            mean[0] = 0.3 * gradients(model)[0].norm().item()

        return step

    found = both(tmp_path, scaled(), scaled(), steps=2)
    assert found.exit_code == 0, found.answer()
    wrong = both(tmp_path / "wrong", scaled(1.0001), scaled(), steps=2)
    assert wrong.exit_code == 1, wrong.answer()
    assert wrong.cause is not None and wrong.cause.kind == "argument", wrong.answer()


def test_lbfgs_agrees(tmp_path: Path) -> None:
    def run(name: str, device: OtherDevice | None, rate: float = 1.0) -> Path:
        torch.manual_seed(0)
        model = nn.Linear(64, 4)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=rate, max_iter=3)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(seeded(32, 64)), seeded(32, 4, seed=1))
            loss.backward()
            return loss

        return record(tmp_path / name, lambda step: optimizer.step(closure), model, device=device)  # type: ignore[arg-type]

    baseline = run("baseline", None)
    found = compare(run("honest", OtherDevice()), baseline)
    assert found.exit_code == 0, found.answer()
    assert compare(run("wrong", OtherDevice(), 1.001), baseline).exit_code == 1


# -- what is known of numbers --------------------------------------------------------------------------------------


@pytest.fixture
def reading(tmp_path: Path) -> Callable[[float], Call]:
    """reading(number): a call that read a number of a float32 tensor."""
    count = iter(range(100))

    def make(number: float) -> Call:
        path = record(tmp_path / str(next(count)), lambda step: torch.tensor(number).item())
        return next(call for call in open_dump(path).rank(0, 0).calls if isinstance(call.outputs, float))

    return make


def given(*pairs: tuple[float, float]) -> ArgumentDifference:
    return ArgumentDifference("other", "", "", numbers=pairs)
